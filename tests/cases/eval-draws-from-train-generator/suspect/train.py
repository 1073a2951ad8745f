import torch

from task import Sorter, problem


class Data:
    def __init__(self, seed):
        self.generators = {"train": torch.Generator().manual_seed(seed), "held": torch.Generator().manual_seed(seed + 1)}

    def get(self, n=12, split="train"):
        return problem(self.generators[split], n)


class Loop:
    def __init__(self, seed=351, eval_at=3):
        torch.manual_seed(seed)
        self.net = Sorter()
        self.opt = torch.optim.Adadelta(self.net.parameters(), lr=0.5)
        self.data = Data(seed + 1)
        self.eval_at = eval_at

    def loss(self, items, ranks):
        return (self.net(items) - ranks).square().mean()

    @torch.no_grad()
    def evaluate(self):
        items, ranks = self.data.get(4)
        print(f"  held out {self.loss(items, ranks).item():.5f}")

    def run(self, steps):
        for step in range(steps):
            loss = self.loss(*self.data.get())
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            print(f"step {step} loss {loss.item():.7f}")
            if step == self.eval_at:
                self.evaluate()


if __name__ == "__main__":
    Loop().run(7)
