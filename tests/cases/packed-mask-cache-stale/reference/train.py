import torch
import torch.nn as nn
import torch.nn.functional as F

DOCS = [(6, 6), (6, 6), (4, 8), (5, 3, 4), (6, 6)]


def document_mask(lengths):
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    causal = torch.ones(owner.numel(), owner.numel(), dtype=torch.bool).tril()
    return causal & (owner[:, None] == owner[None, :])


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + self.out(F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask)[0])


class Packed(nn.Module):
    def __init__(self, vocab=36, dim=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Attention(dim) for _ in range(2))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids, lengths):
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x, document_mask(lengths))
        return self.head(x)


def main():
    torch.manual_seed(331)
    net = Packed()
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    g = torch.Generator().manual_seed(332)
    for step, lengths in enumerate(DOCS):
        ids = torch.randint(0, 36, (13,), generator=g)
        loss = F.cross_entropy(net(ids[:-1], lengths), ids[1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.7f}")


if __name__ == "__main__":
    main()
