import torch
import torch.nn as nn
import torch.nn.functional as F

from scratch import FlatGrads, RowBuffer


class Memory(nn.Module):
    def __init__(self, dim=16, vocab=32, rows=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.q, self.k, self.v, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, vocab)
        self.keys, self.values = RowBuffer(rows, dim), RowBuffer(rows, dim)

    def forward(self, ids):
        x = self.emb(ids)
        q, k, v = self.q(x), self.k(x), self.v(x)
        keys, values = self.keys.append(k.detach()), self.values.append(v.detach())
        preview = self.keys.scaled_copy()[: self.keys.used]  # for a plot
        weights = (q @ keys.t() / 4.0).softmax(-1)
        return self.out(x + weights @ values + v * k.sigmoid()), preview.abs().mean().item()


def clip(flat, params, limit=1.0):
    total = flat.gather().norm()
    scale = (limit / (total + 1e-6)).clamp(max=1.0)
    for p in params:
        p.grad.mul_(scale)
    return total.item()


torch.manual_seed(251)
net = Memory()
opt = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.5)
flat = FlatGrads(net.parameters())
gen = torch.Generator().manual_seed(252)
for step in range(5):
    ids = torch.randint(0, 32, (7,), generator=gen)
    opt.zero_grad()
    logits, size = net(ids[:-1])
    loss = F.cross_entropy(logits, ids[1:])
    loss.backward()
    norm = clip(flat, list(net.parameters()))
    opt.step()
    print(f"step {step} loss {loss.item():.7f} norm {norm:.4f} key size {size:.4f}")
