from common import build, train_step


def main():
    net, opt, sched = build()
    ema = {name: p.detach().clone() for name, p in net.named_parameters()}
    for step in range(8):
        train_step(net, opt, sched, ema, step)
    print("ema", sum(v.double().sum().item() for v in ema.values()).hex())


main()
