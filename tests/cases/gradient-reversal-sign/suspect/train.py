import torch
import torch.nn.functional as F

from adapt import DomainNetwork


def pairs(gen, n=16):
    x = torch.randn(n, 15, generator=gen)
    return x, torch.randint(0, 4, (n,), generator=gen), torch.arange(n) % 2


torch.manual_seed(341)
net = DomainNetwork()
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
gen = torch.Generator().manual_seed(342)
for step in range(4):
    x, y, side = pairs(gen)
    opt.zero_grad()
    label, domain = net(x, 0.3 + 0.1 * step)
    task, adversary = F.cross_entropy(label, y), F.cross_entropy(domain, side)
    loss = task + adversary
    loss.backward()
    opt.step()
    print(f"step {step} loss {loss.item():.7f} task {task.item():.4f} domain {adversary.item():.4f}")
