import torch

from task import Sorter, problem


def main():
    torch.manual_seed(351)
    net = Sorter()
    opt = torch.optim.Adadelta(net.parameters(), lr=0.5)
    train, held = torch.Generator().manual_seed(352), torch.Generator().manual_seed(353)
    for step in range(7):
        x, rank = problem(train)
        loss = (net(x) - rank).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.7f}")
        if step == 3:
            with torch.no_grad():
                x, rank = problem(held, n=4)
                print(f"  held out {(net(x) - rank).square().mean().item():.5f}")


if __name__ == "__main__":
    main()
