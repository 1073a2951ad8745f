"""Say how many steps a program has made while it runs, as its growing trace shows it."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

from opguard_core.plan.expected import duration
from opguard_harness.access.traces import RANK_FOLDERS
from opguard_harness.compare.cost import PaceWatch
from opguard_harness.compare.request import CaptureRequest
from opguard_harness.report.progress import Progress

if TYPE_CHECKING:
    from opguard_core.trace.growth import GrowingRank

LOOK_S = 0.5
SHARE = 0.02  # of the time that passes, spent on looking


class StepWatch:
    """Follows the ranks of one side; the slowest one counts.

    Args:
        name: What the phase is called: "reference", "suspect" or "run".
        trace: Its trace directory, which may not be there yet.
        steps: Window of steps that is recorded, or None for all.
        planned: Steps it will make, None if nobody knows.
        progress: Told at once that it has made none, and whenever the number changes.
        cost: Says what a step takes once that shows, None to say nothing.
    """

    def __init__(
        self,
        name: str,
        trace: Path,
        steps: tuple[int, int] | None,
        planned: int | None,
        progress: Progress,
        cost: PaceWatch | None = None,
    ) -> None:
        """Nothing is read yet."""
        progress.steps(name, 0, planned)
        self._name, self._trace, self._steps, self._progress = name, trace, steps, progress
        self._planned, self._cost = planned, cost
        self._ranks: dict[Path, GrowingRank] = {}
        self._next_s = 0.0
        self._told = 0

    def look(self, elapsed_s: float) -> None:
        """Look again if it is time to.

        Args:
            elapsed_s: Seconds since the program was started.

        Cost: at most `SHARE` of the time: the next look waits the longer, the longer this one took.
        """
        if elapsed_s < self._next_s:
            return
        began = time.monotonic()
        done = slowest(self._trace, self._steps, self._ranks)
        self._next_s = elapsed_s + max(LOOK_S, (time.monotonic() - began) / SHARE)
        if done is not None and done != self._told:
            self._told = done
            self._progress.steps(self._name, done, self._planned)
            if self._cost is not None and math.isfinite(elapsed_s) and (text := self._cost.seen(elapsed_s, done)):
                self._progress.say(f"{self._name}: {text}")

    @property
    def text(self) -> str:
        """What is known, for a line of progress: ``14 of 20 steps``; empty while that is nothing."""
        if not self._told:
            return ""
        if not self._planned:
            return f"{self._told} step{'s' if self._told > 1 else ''}"
        left_s = self._cost.pace.left_s if self._cost is not None else None
        return f"{self._told} of {self._planned} steps" + (f", {duration(left_s)} left" if left_s else "")


def slowest(trace: Path, steps: tuple[int, int] | None, ranks: dict[Path, GrowingRank] | None = None) -> int | None:
    """Steps that every rank of a trace has made; None while there is no rank.

    Args:
        trace: A trace directory, finished or not.
        steps: Window that counts, or None for all.
        ranks: What was read before; grows.
    """
    known = {} if ranks is None else ranks
    for folder in trace.glob(RANK_FOLDERS):
        if folder not in known:
            from opguard_core.trace.growth import GrowingRank  # readers of traces cost a second to import

            known[folder] = GrowingRank(folder, steps)
    return min((rank.look() for rank in known.values()), default=None)


def planned_steps(capture: CaptureRequest, other: Path | None = None) -> int | None:
    """Steps that a program is expected to record.

    Args:
        capture: How it is observed.
        other: Trace of the other side, if that has ended: its number of steps says most.
    """
    if capture.end_after is not None:
        return capture.end_after if capture.steps is None else min(capture.end_after, capture.steps[1]) - capture.steps[0]
    made = None if other is None else slowest(other, capture.steps)
    if made:
        return made
    if capture.steps is not None:
        return capture.steps[1] - capture.steps[0]
    return None if capture.plan is None else capture.plan.recorded_steps
