"""Train the tiny GPT, after a clean-up that made each micro-batch count the same."""

import torch
from data import MicroBatches, build_corpus
from model import TinyGPT
from torch.nn import functional as F

CONFIG = {"vocabulary": 48, "sequences": 29, "length": 24, "micro_batch": 4, "accumulate": 2, "steps": 6}


def token_loss(model: TinyGPT, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch[:, 1:].reshape(-1))


def accumulate(model: TinyGPT, group: list[torch.Tensor]) -> float:
    """Backward over all micro-batches; the sum of the scaled losses."""
    share = 1 / len(group)
    total = 0.0
    for batch in group:
        part = token_loss(model, batch) * share
        part.backward()
        total += part.item()
    return total


def main() -> None:
    torch.manual_seed(0)
    model = TinyGPT(CONFIG["vocabulary"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    stream = MicroBatches(
        build_corpus(CONFIG["vocabulary"], CONFIG["sequences"], CONFIG["length"]), CONFIG["micro_batch"], CONFIG["accumulate"]
    )
    for step in range(CONFIG["steps"]):
        loss = accumulate(model, stream.next_group())
        optimizer.step()
        optimizer.zero_grad()
        norm = sum(parameter.detach().norm().item() ** 2 for parameter in model.parameters()) ** 0.5
        print(f"step {step} loss {loss:.6f} weight norm {norm:.4f}")


if __name__ == "__main__":
    main()
