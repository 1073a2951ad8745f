import torch
from torch.nn.functional import cross_entropy

from model import Tagger

LENGTHS = [[9, 9, 9, 9], [7, 7, 7, 7], [8, 8, 8, 8], [9, 4, 6, 9], [5, 9, 9, 2]]


def batches():
    g = torch.Generator().manual_seed(70)
    for lengths in LENGTHS:
        ids = torch.zeros(4, max(lengths), dtype=torch.long)
        for row, n in enumerate(lengths):
            ids[row, :n] = torch.randint(1, 30, (n,), generator=g)
        yield ids, torch.tensor(lengths), torch.randint(0, 3, (4,), generator=g)


torch.manual_seed(71)
model = Tagger()
opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
for step, (ids, lengths, y) in enumerate(batches()):
    loss = cross_entropy(model(ids, lengths), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, f"{loss.item():.9g}")
