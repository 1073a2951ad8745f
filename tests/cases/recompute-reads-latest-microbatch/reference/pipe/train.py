import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

VISIBLE = [((9, 9), (9, 9)), ((9, 9), (9, 9)), ((9, 5), (7, 9)), ((4, 9), (9, 9))]


class Layer(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, hidden):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        att = (q @ k.transpose(1, 2) / q.size(-1) ** 0.5).masked_fill(hidden, float("-inf"))
        return x + self.out(att.softmax(-1) @ v)


class Stage(nn.Module):
    def __init__(self, vocab=30, dim=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(2))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids, hidden):
        x = self.emb(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, hidden, use_reentrant=True)
        return self.head(x)


def main():
    torch.manual_seed(211)
    stage = Stage()
    opt = torch.optim.AdamW(stage.parameters(), lr=2e-3)
    g = torch.Generator().manual_seed(212)
    for step, window in enumerate(VISIBLE):
        losses = []
        for lengths in window:  # all forwards first, as in a pipeline
            ids = torch.randint(0, 30, (2, 9), generator=g)
            hidden = torch.arange(9) >= torch.tensor(lengths)[:, None, None]
            losses.append(F.cross_entropy(stage(ids, hidden).flatten(0, 1), ids.flip(1).flatten()) / len(window))
        opt.zero_grad()
        for loss in losses:
            loss.backward()
        opt.step()
        print(f"step {step} loss {sum(l.item() for l in losses):.7f}")


if __name__ == "__main__":
    main()
