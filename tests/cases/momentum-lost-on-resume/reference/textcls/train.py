import torch
import torch.nn.functional as F

from . import checkpoint
from .net import TextCNN


def build():
    torch.manual_seed(11)
    model = TextCNN()
    return model, torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.02)


def batch(step):
    g = torch.Generator().manual_seed(1000 + step)
    ids = torch.randint(0, 120, (16, 14), generator=g)
    return ids, ids[:, 0] % 5


def run(first, last, model, optimizer):
    for step in range(first, last):
        ids, labels = batch(step)
        loss = F.cross_entropy(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.7f}")


def main():
    model, optimizer = build()
    run(0, 3, model, optimizer)
    saved = checkpoint.save(model, optimizer)
    model, optimizer = build()
    checkpoint.load(saved, model, optimizer)
    run(3, 6, model, optimizer)


if __name__ == "__main__":
    main()
