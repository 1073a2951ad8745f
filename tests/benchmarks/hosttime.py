"""Host time that observing adds to a training step: `python -m tests.benchmarks.hosttime` prints a Markdown table.

The GPT of 12 layers of DESIGN 13 with tensors of some dozen numbers on the CPU: its kernels cost next to nothing, so a step is the
host's work, torch's own and ours. Each mode takes turns with the bare program in one process; a round is bare steps, then a session with
steps that are not timed and the timed ones. Told: medians of all timed steps.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from opguard_core.capture.session import start
from opguard_core.plan.config import RunConfig
from tests.benchmarks.report import machine, table
from tests.gpu.models import Size, training

SIZE = Size(12, 8, 4, 1, 16)  # one head of eight numbers
MODES = ("trusted", "full", "verify")
UNTIMED = 4  # first places, first buffers
COLUMNS = ("mode", "bare", "observed", "added", "ratio", "ratio, wall", "other threads, added", "events a step", "us an event")


@dataclass
class Times:
    """Milliseconds of each step: processor time of the training's thread and of the process's others, and the clock's."""

    own: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def take(self, step, steps: int) -> None:
        """Time some steps; what other threads still have to do after the last one counts to nobody."""
        for _ in range(steps):
            began = time.thread_time(), time.process_time(), time.perf_counter()
            step()
            wall, process, own = time.perf_counter() - began[2], time.process_time() - began[1], time.thread_time() - began[0]
            self.own.append(1e3 * own)
            self.others.append(1e3 * (process - own))
            self.wall.append(1e3 * wall)


def program():
    """A function that does one step of the training."""
    torch.set_num_threads(1)
    model, step = training("a", SIZE, torch.device("cpu"), torch.float32)
    for block in model.blocks:
        block.heads = 1
    for _ in range(20):
        step()
    return step


def observe(step, mode: str, engine: str, steps: int, into: Times) -> float:
    """Timed steps of one session; the events of a step."""
    with tempfile.TemporaryDirectory(prefix="opguard-hosttime-") as scratch:
        session = start(RunConfig(run_dir=Path(scratch), user_root=Path.cwd(), mode=mode, engine=engine))
        try:
            for _ in range(UNTIMED):
                step()
            before = session.context.outbox.next_seq
            into.take(step, steps)
            events = (session.context.outbox.next_seq - before) / steps
        finally:
            session.stop("exit")
    if session.engine.name != engine:
        raise SystemExit(f"observed by {session.engine.name}: {session._why_not_native}")
    return events


def row(step, mode: str, engine: str, rounds: int, steps: int) -> tuple[object, ...]:
    """One mode's cells."""
    bare, ours, events = Times(), Times(), 0.0
    for _ in range(rounds):
        for _ in range(UNTIMED):
            step()
        bare.take(step, steps)
        events = observe(step, mode, engine, steps, ours)
    own, bare_own = statistics.median(ours.own), statistics.median(bare.own)
    wall = statistics.median(ours.wall) / statistics.median(bare.wall)
    others = statistics.mean(ours.others) - statistics.mean(bare.others)
    return mode, bare_own, own, own - bare_own, own / bare_own, wall, others, events, 1e3 * (own - bare_own) / events


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES)
    parser.add_argument("--engine", default="native")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    step = program()
    rows = [row(step, mode, options.engine, options.rounds, options.steps) for mode in options.modes]
    print(f"{machine()} torch {torch.__version__}. {SIZE}; {options.rounds} rounds of {options.steps} steps, engine {options.engine}.")
    print("Milliseconds of processor time of the training's thread a step, medians.\n")
    print(table(COLUMNS, rows))


if __name__ == "__main__":
    main()
