import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

from lion import ForeachLion


def main():
    torch.manual_seed(120)
    net = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(32, 16), nn.Mish(), nn.Linear(16, 20))
    opt = ForeachLion(net.parameters(), lr=2e-3, weight_decay=0.1)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 6)
    loader = DataLoader(TensorDataset(torch.randint(0, 20, (48, 5))), batch_size=8)
    for step, (rows,) in enumerate(loader):
        inputs, target = rows[:, :-1], rows[:, -1]
        loss = nn.functional.cross_entropy(net(inputs), target)
        loss.backward()
        norms = [p.grad.norm().item() for p in net.parameters()]
        opt.step()
        opt.zero_grad(set_to_none=False)
        sched.step()
        print(step, loss.item().hex())
        if max(norms) > 1e6:
            raise SystemExit("gradients exploded")


main()
