import torch
import torch.nn as nn
import torch.nn.functional as F

from state import Sampler, dump, restore


def build(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(7, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Dropout(0.2), nn.Linear(30, 3))
    opt = torch.optim.AdamW(net.parameters(), lr=5e-3, amsgrad=True)
    gen = torch.Generator().manual_seed(402)
    data = torch.randn(40, 7, generator=gen)
    return data, {"net": net, "opt": opt, "sched": torch.optim.lr_scheduler.CosineAnnealingLR(opt, 6), "sampler": Sampler(40, 12, gen)}


def run(data, parts, steps):
    net, opt = parts["net"], parts["opt"]
    for step in steps:
        x = data[parts["sampler"].next()]
        opt.zero_grad()
        loss = F.cross_entropy(net(x), x[:, :3].argmax(1))
        loss.backward()
        opt.step()
        parts["sched"].step()
        print(f"step {step} loss {loss.item():.7f}")


def main():
    data, parts = build(401)
    run(data, parts, range(4))
    saved = dump(parts)
    data, parts = build(999)
    restore(saved, parts)
    run(data, parts, range(4, 6))


if __name__ == "__main__":
    main()
