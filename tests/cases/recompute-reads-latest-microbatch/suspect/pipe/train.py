import torch
import torch.nn.functional as F

from .schedule import GPipe
from .stage import Stage

VISIBLE = [((9, 9), (9, 9)), ((9, 9), (9, 9)), ((9, 5), (7, 9)), ((4, 9), (9, 9))]


def reversal_loss(logits, ids):
    return F.cross_entropy(logits.flatten(0, 1), ids.flip(1).flatten())


def micro_batch(lengths, gen):
    ids = torch.randint(0, 30, (2, 9), generator=gen)
    return {"ids": ids, "hidden": torch.arange(9) >= torch.tensor(lengths)[:, None, None]}


def main():
    torch.manual_seed(211)
    stage = Stage()
    schedule = GPipe(stage, reversal_loss)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(212)
    for step, window in enumerate(VISIBLE):
        optimizer.zero_grad()
        loss = schedule.run([micro_batch(lengths, gen) for lengths in window])
        optimizer.step()
        print(f"step {step} loss {loss:.7f}")


if __name__ == "__main__":
    main()
