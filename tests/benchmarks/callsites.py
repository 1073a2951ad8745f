"""What rewritten calls cost while nobody observes: `python -m tests.benchmarks --only callsites`.

One module with loops of ten calls each is run as it is and rewritten, in turn. CPU time of this thread, so a busy machine blurs it less.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opguard_core.instrument import runtime
from opguard_core.instrument.rewrite import rewrite
from tests.benchmarks.report import Criterion, Section, table

SETUP = """
import operator
def function(x): return x
class Class:
    def method(self, x): return x
    def deep(self, x, y=None): return self
value, native, store = Class(), operator.index, {}
"""
LOOPS = {
    "Python function": "function(1)",
    "method": "value.method(1)",
    "native function": "native(1)",
    "call in a call in a call": "function(function(function(1)))",
    "chain of methods": "value.deep(1).deep(2).deep(3).deep(4)",
    "`x[i] = v`": "store[1] = 2",
    "`x += v`": "number += 1",
}
MOST = 1.6  # times the bare call


class _Nobody:
    """Observes, and wants none of these."""

    def operator_of(self, function: Any) -> str | None:
        return None

    def call(self, site: str, name: str, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError(name)


def measure(folder: Path, *, progress: Callable[[str], None], rounds: int = 15, turns: int = 4_000) -> Section:
    """Time the loops.

    Args:
        folder: Not used.
        progress: Told what is being done.
        rounds: Times that each loop is run.
        turns: Turns of a loop, ten calls each.
    """
    source = SETUP + "".join(
        f"\ndef loop_{index}(n):\n    number = 0\n    for _ in range(n):\n" + f"        {call}\n" * 10
        for index, call in enumerate(LOOPS.values())
    )
    made = rewrite(source.encode(), "<benchmark>", "benchmark", everything=True)
    runtime.know("benchmark", made.sites)
    plain: dict[str, Any] = {}
    rewritten: dict[str, Any] = {}
    exec(compile(source, "<benchmark>", "exec"), plain)
    exec(made.code, rewritten)
    rows: list[list[object]] = []
    ratios: list[float] = []
    for index, title in enumerate(LOOPS):
        progress(f"callsites: {title}")
        taken: dict[str, list[float]] = {"bare": [], "rewritten": [], "observed": []}
        for _ in range(rounds):
            taken["bare"].append(_time(plain[f"loop_{index}"], turns))
            taken["rewritten"].append(_time(rewritten[f"loop_{index}"], turns))
            before = runtime.observe(_Nobody())
            try:
                taken["observed"].append(_time(rewritten[f"loop_{index}"], turns))
            finally:
                runtime.observe(before)
        best = {name: min(times) for name, times in taken.items()}
        ratios.append(best["rewritten"] / best["bare"])
        rows.append([title, best["bare"], best["rewritten"], ratios[-1], best["observed"]])
    head = ["statement", "bare, ns", "rewritten, ns", "ratio", "asked and left alone, ns"]
    return Section(
        how=f"The fastest of {rounds} runs in turn, of {turns * 10:,} statements each; CPU time.",
        tables=[table(head, rows)],
        criteria=[Criterion("rewritten against bare, nobody observes: median over the statements", statistics.median(ratios), MOST, "x")],
    )


def _time(loop: Callable[[int], None], turns: int) -> float:
    """Nanoseconds of one statement."""
    began = time.thread_time_ns()
    loop(turns)
    return (time.thread_time_ns() - began) / turns / 10
