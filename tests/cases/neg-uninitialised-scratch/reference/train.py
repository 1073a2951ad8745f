import torch
import torch.nn as nn
import torch.nn.functional as F


class Memory(nn.Module):
    """Attends over the last steps of a growing history."""

    def __init__(self, dim=16, vocab=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.q, self.k, self.v, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, vocab)

    def forward(self, ids, history):
        x = self.emb(ids)
        q, k, v = self.q(x), self.k(x), self.v(x)
        past_k, past_v = history
        keys, values = torch.cat([past_k, k.detach()]), torch.cat([past_v, v.detach()])
        w = (q @ keys.t() / 4.0).softmax(-1)
        return self.out(x + w @ values + v * k.sigmoid()), (keys, values)


def main():
    torch.manual_seed(251)
    net = Memory()
    opt = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.5)
    g = torch.Generator().manual_seed(252)
    history = torch.zeros(0, 16), torch.zeros(0, 16)
    for step in range(5):
        ids = torch.randint(0, 32, (7,), generator=g)
        logits, history = net(ids[:-1], history)
        loss = F.cross_entropy(logits, ids[1:])
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in net.parameters()])
        scale = (1.0 / (flat.norm() + 1e-6)).clamp(max=1.0)
        for p in net.parameters():
            p.grad.mul_(scale)
        opt.step()
        print(f"step {step} loss {loss.item():.7f}")


if __name__ == "__main__":
    main()
