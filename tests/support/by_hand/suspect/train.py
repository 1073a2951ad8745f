import torch
import torch.nn as nn
import torch.nn.functional as F
from optim import MuonWithAdam


class Mlp(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.RMSNorm(dim)
        self.up = nn.Linear(dim, 3 * dim, bias=False)
        self.down = nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x):
        h = self.up(self.norm(x))
        return x + self.down(torch.relu(h).square())


class Lm(nn.Module):
    def __init__(self, vocab=48, dim=24, depth=2):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.mix = nn.Linear(dim, dim, bias=False)
        self.blocks = nn.Sequential(*[Mlp(dim) for _ in range(depth)])
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.tok(ids)
        count = torch.arange(1, ids.size(1) + 1)[:, None]
        x = x + self.mix(x.cumsum(1) / count)
        return self.head(self.blocks(x))


torch.manual_seed(3)
net = Lm()
matrices = [net.mix.weight, *(w for b in net.blocks for w in (b.up.weight, b.down.weight))]
known = {id(m) for m in matrices}
opt = MuonWithAdam(matrices, [p for p in net.parameters() if id(p) not in known])
gen = torch.Generator().manual_seed(4)
tokens = 0
for step in range(5):
    ids = torch.randint(0, 48, (4, 17), generator=gen)
    inputs, labels = ids[:, :-1], ids[:, 1:]
    opt.zero_grad()
    loss = F.cross_entropy(net(inputs).flatten(0, 1), labels.flatten())
    loss.backward()
    opt.step()
    tokens += labels.numel()
    print(f"step {step} loss {loss.item():.7f} tokens {tokens}")
