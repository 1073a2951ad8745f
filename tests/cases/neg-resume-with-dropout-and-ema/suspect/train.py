import io

import torch

from common import build, train_step


def save(net, opt, sched, ema, step):
    blob = io.BytesIO()
    torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict(), "ema": ema,
                "rng": torch.get_rng_state(), "step": step}, blob)
    return blob.getvalue()


def load(blob):
    net, opt, sched = build()
    state = torch.load(io.BytesIO(blob), weights_only=False)
    net.load_state_dict(state["net"])
    opt.load_state_dict(state["opt"])
    sched.load_state_dict(state["sched"])
    torch.set_rng_state(state["rng"])
    return net, opt, sched, state["ema"], state["step"]


def main():
    net, opt, sched = build()
    ema = {name: p.detach().clone() for name, p in net.named_parameters()}
    for step in range(4):
        train_step(net, opt, sched, ema, step)
    blob = save(net, opt, sched, ema, 4)
    del net, opt, sched, ema
    torch.rand(17)  # whatever else the process draws before it goes on
    net, opt, sched, ema, first = load(blob)
    for step in range(first, 8):
        train_step(net, opt, sched, ema, step)
    print("ema", sum(v.double().sum().item() for v in ema.values()).hex())


main()
