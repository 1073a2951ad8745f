"""Train the tiny GPT with gradient accumulation over two micro-batches; the corpus ends in a short one."""

import torch
from model import TinyGPT
from torch.nn import functional as F

VOCABULARY = 48
NUM_SEQUENCES = 29
LENGTH = 24
MICRO_BATCH = 4
ACCUMULATE = 2
STEPS = 6


def corpus() -> torch.Tensor:
    """Arithmetic progressions modulo the vocabulary, each with its own start and stride."""
    generator = torch.Generator().manual_seed(7)
    start = torch.randint(VOCABULARY, (NUM_SEQUENCES, 1), generator=generator)
    stride = torch.randint(1, 6, (NUM_SEQUENCES, 1), generator=generator)
    return (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY


def micro_batches(data: torch.Tensor):
    """Pieces of the corpus, over and over; the last piece of each pass is shorter."""
    while True:
        yield from data.split(MICRO_BATCH)


def main() -> None:
    torch.manual_seed(0)
    model = TinyGPT(VOCABULARY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    stream = micro_batches(corpus())
    for step in range(STEPS):
        group = [next(stream) for _ in range(ACCUMULATE)]
        num_tokens = sum(batch[:, 1:].numel() for batch in group)
        total = 0.0
        for batch in group:
            inputs, targets = batch[:, :-1], batch[:, 1:]
            logits = model(inputs)
            loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))
            share = targets.numel() / num_tokens
            part = loss * share
            part.backward()
            total += part.item()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {total:.6f}")


if __name__ == "__main__":
    main()
