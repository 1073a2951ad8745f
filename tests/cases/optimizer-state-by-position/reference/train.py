import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, width=16, depth=11):
        super().__init__()
        self.embed = nn.Linear(10, width)
        self.ffn = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.ffn:
            x = x + 0.3 * torch.tanh(layer(x))
        return self.head(x)


def optimizer_for(net):
    params = list(net.parameters())
    return torch.optim.AdamW([{"params": [p for p in params if p.dim() > 1], "weight_decay": 0.05},
                              {"params": [p for p in params if p.dim() == 1], "weight_decay": 0.0}], lr=3e-3)


def run(net, opt, steps):
    for step in steps:
        g = torch.Generator().manual_seed(600 + step)
        x, y = torch.randn(12, 10, generator=g), torch.randint(0, 5, (12,), generator=g)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.7f}")


def main():
    torch.manual_seed(391)
    net = Net()
    opt = optimizer_for(net)
    run(net, opt, range(3))
    saved = net.state_dict(), opt.state_dict()
    again = Net()
    again.load_state_dict(saved[0])
    opt = optimizer_for(again)
    opt.load_state_dict(saved[1])
    run(again, opt, range(3, 6))


if __name__ == "__main__":
    main()
