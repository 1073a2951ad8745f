import torch

from nets import MultiTask

TASKS = [(0, 1, 2), (0, 1, 2), (0, 2), (0, 1, 2), (1, 2)]


class Signum(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, momentum=0.9):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if "m" not in self.state[p]:
                    self.state[p]["m"] = torch.zeros_like(p)
                if p.grad is None:
                    continue
                m = self.state[p]["m"]
                m.mul_(group["momentum"]).add_(p.grad, alpha=1 - group["momentum"])
                p.add_(m.sign(), alpha=-group["lr"])


def main():
    torch.manual_seed(161)
    net = MultiTask()
    opt = Signum(net.parameters(), lr=2e-3)
    g = torch.Generator().manual_seed(162)
    for step, tasks in enumerate(TASKS):
        x, y = torch.randn(18, 12, generator=g), torch.randint(0, 4, (18,), generator=g)
        task = torch.tensor(tasks)[torch.arange(18) % len(tasks)]
        loss = net.loss(x, y, task)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.7f}")


if __name__ == "__main__":
    main()
