"""Small trainings whose traces do not depend on when a device answers. Each is a function without arguments."""

from __future__ import annotations

import functools
import threading

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), 0.1, self.training)


def training():
    """Two steps of a linear layer."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(3, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def transformer():
    """Checkpointed blocks, accumulation, clipping, a fused optimizer, bfloat16, reads in between."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 8), Block(8), Block(8), nn.Linear(8, 11))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    for _ in range(3):
        for _ in range(2):
            ids = torch.randint(0, 11, (2, 6))
            with torch.autocast("cpu", torch.bfloat16):
                x = model[0](ids)
                for block in model[1:3]:
                    x = checkpoint(block, x, use_reentrant=False)
                loss = F.cross_entropy(model[3](x).flatten(0, 1), ids.flatten())
            loss.backward()
            loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        model[3].weight.tolist()


def unusual_memory():
    """Views, writes through them, memory that is written piece by piece, shared and freed; sparse and complex values."""
    torch.manual_seed(0)
    table = nn.Embedding(7, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    for _ in range(2):
        buffer = torch.empty(4, 6)
        buffer[:2] = 1.0
        buffer[2:, ::2].fill_(2.0)
        buffer[2:, 1::2] = buffer[:2, 1::2]
        buffer.t().mul_(3)
        shared = buffer.numpy()
        shared[0, 0] = 5.0
        signal = torch.fft.rfft(buffer)
        (signal.conj() * signal).real.sum().item()
        table(torch.tensor([1, 3, 3])).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def undeclared_writes():
    """Foreign operators, one of which writes an argument that it does not declare."""
    torch.manual_seed(0)
    _define()
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        x = torch.randn(2, 4)
        torch.ops.opguard_late.looks(x)
        torch.ops.opguard_late.pokes(x)
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@functools.cache
def _define():
    """Once a process: the library lives as long as the operators that torch has handed out."""
    library = torch.library.Library("opguard_late", "FRAGMENT")
    library.define("looks(Tensor x) -> Tensor")
    library.define("pokes(Tensor x) -> Tensor")
    library.impl("looks", lambda x: x + 1, "CPU")
    library.impl("pokes", lambda x: x.mul_(2).sum(), "CPU")
    return library


def one_thread_after_another():
    """Work on threads that do not overlap, so that their events have one order."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())

    def work():
        model(torch.randn(3, 4)).square().sum().backward()

    for _ in range(2):
        for _ in range(2):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        optimizer.step()
        optimizer.zero_grad()


PROGRAMS = {program.__name__: program for program in (transformer, unusual_memory, undeclared_writes, one_thread_after_another)}
