import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(2, 12, 5, padding=2)
        self.mid = nn.ModuleList(nn.Conv1d(12, 12, 3, padding=1) for _ in range(3))
        self.norm = nn.ModuleList(nn.GroupNorm(3, 12) for _ in range(3))
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        x = self.stem(x)
        for conv, norm in zip(self.mid, self.norm):
            x = x + F.silu(conv(norm(x)))
        return self.head(x.mean(-1))


def main():
    torch.manual_seed(181)
    net = Net()
    decay = [p for p in net.parameters() if p.dim() > 1]
    plain = [p for p in net.parameters() if p.dim() == 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=2e-3, foreach=False)
    g = torch.Generator().manual_seed(182)
    for step in range(5):
        x, y = torch.randn(8, 2, 30, generator=g), torch.randint(0, 4, (8,), generator=g)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        norm = torch.sqrt(sum(p.grad.square().sum() for p in net.parameters()))
        for p in net.parameters():
            p.grad.mul_(torch.clamp(0.5 / norm, max=1.0))
        opt.step()
        print(f"step {step} loss {loss.item():.7f}")


if __name__ == "__main__":
    main()
