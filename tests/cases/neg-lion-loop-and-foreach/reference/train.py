import torch
import torch.nn as nn

from lion import Lion


def main():
    torch.manual_seed(120)
    net = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(32, 16), nn.Mish(), nn.Linear(16, 20))
    opt = Lion(net.parameters(), lr=2e-3, weight_decay=0.1)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 6)
    ids = torch.randint(0, 20, (48, 5))
    for step in range(6):
        rows = ids[step * 8:step * 8 + 8]
        loss = nn.functional.cross_entropy(net(rows[:, :4]), rows[:, 4])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        print(step, loss.item().hex())


main()
