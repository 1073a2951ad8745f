import torch
import torch.nn as nn
import torch.nn.functional as F


def main():
    torch.manual_seed(401)
    net = nn.Sequential(nn.Linear(7, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Dropout(0.2), nn.Linear(30, 3))
    opt = torch.optim.AdamW(net.parameters(), lr=5e-3, amsgrad=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 6)
    g = torch.Generator().manual_seed(402)
    data, order = torch.randn(40, 7, generator=g), None
    for step in range(6):
        if step % 3 == 0:
            order = torch.randperm(40, generator=g)
        x = data[order[12 * (step % 3): 12 * (step % 3) + 12]]
        loss = F.cross_entropy(net(x), x[:, :3].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        print(f"step {step} loss {loss.item():.7f}")


if __name__ == "__main__":
    main()
