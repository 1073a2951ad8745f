import torch

from .checkpoint import CheckpointManager
from .loop import Session


def batches(first, last):
    for step in range(first, last):
        gen = torch.Generator().manual_seed(1000 + step)
        ids = torch.randint(0, 120, (16, 14), generator=gen)
        yield step, ids, ids[:, 0] % 5


def drive(session, first, last):
    for step, ids, labels in batches(first, last):
        print(f"step {step} loss {session.step(ids, labels):.7f}")


manager = CheckpointManager()
session = Session()
drive(session, 0, 3)
manager.save("last", session.app)
session = Session()
manager.load("last", session.app)
drive(session, 3, 6)
