import torch

from nets import MultiTask
from signum import FusedSignum

TASKS = [(0, 1, 2), (0, 1, 2), (0, 2), (0, 1, 2), (1, 2)]


def draw(gen, tasks, n=18):
    x, y = torch.randn(n, 12, generator=gen), torch.randint(0, 4, (n,), generator=gen)
    return x, y, torch.tensor(tasks)[torch.arange(n) % len(tasks)]


torch.manual_seed(161)
model = MultiTask()
optimizer = FusedSignum(model.parameters(), lr=2e-3)
gen = torch.Generator().manual_seed(162)
for step, tasks in enumerate(TASKS):
    optimizer.zero_grad()
    loss = model.loss(*draw(gen, tasks))
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.7f}")
