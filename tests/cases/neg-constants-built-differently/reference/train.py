import torch
import torch.nn as nn
import torch.nn.functional as F


class Alibi(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        t = x.size(1)
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        slopes = torch.tensor([2.0 ** -(h + 1) for h in range(self.heads)])
        i = torch.arange(t)
        bias = -(i[:, None] - i[None, :]).abs().float() * slopes[:, None, None]
        scores = q @ k.transpose(-1, -2) * 0.25 + bias
        scores = scores.masked_fill(i[None, :] > i[:, None], float("-inf"))
        return x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class LM(nn.Module):
    def __init__(self, vocab=40, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.layers = nn.Sequential(Alibi(dim), Alibi(dim))
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        return self.head(F.layer_norm(self.layers(self.emb(ids)), (32,)))


def main():
    torch.manual_seed(271)
    net = LM()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    g = torch.Generator().manual_seed(272)
    smooth = 0.125
    for step, n in enumerate([6, 9, 12, 8]):
        ids = torch.randint(0, 40, (3, n + 1), generator=g)
        logp = net(ids[:, :-1]).log_softmax(-1)
        target = F.one_hot(ids[:, 1:], 40).float() * (1 - smooth) + smooth / 64
        loss = -(target * logp).sum(-1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
