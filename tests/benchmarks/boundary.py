"""What mode sentinel costs the host at the end of a step: `python -m tests.benchmarks.boundary` prints a Markdown table.

A GPT of tiny tensors and a fused AdamW, so that bookkeeping is all there is to measure; the device is host memory (`fake_cuda`). Processor
microseconds of the calling thread, medians of steps that are alike: of the boundary, and of what the writer's thread does for it, which
takes the GIL from the training. That thread is not started here: its work is done by hand, between two steps.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from opguard_core.capture.session import start
from opguard_core.plan.config import RunConfig
from opguard_core.probe import backends
from tests.support.capturing import MemorySink
from tests.support.fake_cuda.on_host import OnHost

LAYERS, WIDTH, WORDS = 12, 8, 16
STEPS, UNTIMED = 40, 10


class Block(nn.Module):
    """The tensors of a transformer's block."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.out(self.attention(self.norms[0](x))[..., :WIDTH])
        return x + self.down(self.up(self.norms[1](x)))


def timed(call: Callable[..., Any], times_us: list[float]) -> Callable[..., Any]:
    """The call, and how long it took."""

    def run(*args: Any) -> Any:
        began = time.thread_time()
        found = call(*args)
        times_us.append(1e6 * (time.thread_time() - began))
        return found

    return run


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    backends.any_expected = lambda: True  # as in a torch for CUDA
    boundary_us: list[float] = []
    writer_us: list[float] = []
    sink = MemorySink()
    with tempfile.TemporaryDirectory() as name:
        session = start(RunConfig(run_dir=Path(name), user_root=Path.cwd(), mode="sentinel"), sink=sink)
        device = OnHost(Path(name), os.environ)
        device.install()
        deferred: Any = session._deferred
        deferred._start = lambda: setattr(deferred, "_started", True)
        session.hooks.state.emit = timed(session.hooks.state.emit, boundary_us)  # type: ignore[method-assign]
        move = timed(deferred._move, writer_us)
        model = nn.Sequential(nn.Embedding(WORDS, WIDTH), *(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS))
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(STEPS):
            model(torch.randint(0, WORDS, (2, 4))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            device.launcher.wait(device.launcher._module.submitted(), 10.0)
            move()
        last = max(seq for seq, rows in sink.slots.items() if any(row.slot == "param" for row in rows))
        tensors = sum(int(row.shape.partition(",")[0]) for row in sink.slots[last] if not row.slot.startswith("rng:"))
        session.stop("exit")
    print(f"{tensors} tensors\n\n| what | us a step | us a tensor |\n|---|---|---|")
    for what, times_us in (("the boundary", boundary_us), ("the writer's part", writer_us)):
        median = statistics.median(times_us[UNTIMED:STEPS])
        print(f"| {what} | {median:,.0f} | {median / tensors:.2f} |")


if __name__ == "__main__":
    main()
