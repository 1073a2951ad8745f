"""Trains again and again under capture, each time in a forked child that is killed with -9 at a random moment, and prints
what each left: one JSON object a line. Not a test module itself.

    python -m tests.faults.killed_training FOLDER KILLS SEED
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path

import torch
from torch import nn

from opguard_core.capture.session import start
from opguard_core.certify.compare import compare
from opguard_core.plan.config import RunConfig
from opguard_core.trace import flush
from opguard_core.trace.reader import Run
from opguard_core.trace.writer import TraceWriter

STEPS = 40
flush.FLUSH_PAUSE_MIN_S = flush.FLUSH_PAUSE_SHARE = 0.0  # a commit at every step's end, so that kills fall into commits as well


class TellingWriter(TraceWriter):
    """Writes one byte to a pipe for every event, so that a parent knows how far the training is."""

    def __init__(self, config: RunConfig, pipe: int) -> None:
        super().__init__(config.rank_dir, mode=config.mode, segment_events=150)
        self._pipe = pipe

    def emit(self, event, slots):
        super().emit(event, slots)
        os.write(self._pipe, b".")


def train() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        loss = (model(torch.randn(4, 8)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()


def run(folder: Path, kill_at: int | None) -> tuple[int, int]:
    """Train in a child; kill it once it told of ``kill_at`` events.

    Returns:
        Its wait status, and the number of events it told of.
    """
    folder.mkdir(mode=0o700)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        config = RunConfig(run_dir=folder, user_root=Path.cwd(), mode="verify")
        session = start(config, sink=TellingWriter(config, write_end))
        train()
        session.stop("exit")
        os._exit(0)
    os.close(write_end)
    told = 0
    while kill_at is None or told < kill_at:
        part = os.read(read_end, 4096 if kill_at is None else min(64, kill_at - told))
        if not part:
            break
        told += len(part)
    if kill_at is not None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(read_end)
    return status, told


def main(folder: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    status, total = run(folder / "whole", None)
    assert status == 0, status
    whole = Run.open(folder / "whole")
    rng = random.Random(seed)
    for number in range(kills):
        at = rng.randint(1, total)
        status, told = run(folder / f"killed-{number}", at)
        killed = Run.open(folder / f"killed-{number}")
        trace = killed.ranks[0]
        read = sum(len(window) for window in trace.iter_windows())
        frames, stacks, lifetimes = len(trace.frames), len(trace.stacks), len(trace.lifetimes)
        verdict = compare(whole, killed)
        print(
            json.dumps(
                {
                    "at": at,
                    "told": told,
                    "total": total,
                    "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
                    "events": read,
                    "interned": [frames, stacks, lifetimes],
                    "torn": trace.torn.slug if trace.torn else "",
                    "verdict": verdict.verdict,
                    "reasons": [reason.slug for reason in verdict.reasons],
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
