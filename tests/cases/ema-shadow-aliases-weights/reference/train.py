import torch
import torch.nn as nn
import torch.nn.functional as F

from data import patches


class Ema:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {k: v.detach().clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        for k, v in model.state_dict().items():
            self.shadow[k].mul_(self.decay).add_(v, alpha=1 - self.decay)


def main():
    torch.manual_seed(41)
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.SiLU(), nn.Linear(32, 4))
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    ema = Ema(net, 0.9)
    for step, (x, y) in enumerate(patches(42)):
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update(net)
        print(f"step {step} loss {loss.item():.7f}")


if __name__ == "__main__":
    main()
