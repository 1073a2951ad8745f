"""What a run will cost, said before it begins where something is known, and from its own first steps where nothing is."""

from __future__ import annotations

from pathlib import Path

from opguard_core.errors import TraceFormatError
from opguard_core.ids import SIDES
from opguard_core.plan.expected import LONG_S, Cost, Pace, measured, planned
from opguard_core.trace.manifest import read_run_manifest
from opguard_harness.access.traces import RANK_FOLDERS
from opguard_harness.compare.request import CaptureRequest


def expected(name: str, capture: CaptureRequest, steps: int | None, other: Path | None) -> Cost | None:
    """What one run is expected to cost: by the plan, else as the other side was, in the same mode.

    Args:
        name: "reference", "suspect", or "run", which may be either.
        capture: How it is observed.
        steps: Steps that it will record, None if nobody knows.
        other: Trace of the other side, if that has ended.

    Returns:
        None if nothing is known, or if it is known to be short and no plan says so.

    Cost: with a trace two of its segments are read.
    """
    if capture.plan is not None and (cost := planned(capture.plan, steps, (name,) if name in SIDES else SIDES)) is not None:
        return cost
    if other is None:
        return None
    cost = _as_other(capture, steps, other)
    return cost if cost is not None and (cost.total_s or 0.0) >= LONG_S else None


def _as_other(capture: CaptureRequest, steps: int | None, other: Path) -> Cost | None:
    from opguard_core.trace.growth import paced  # readers of traces cost a second to import

    try:
        if read_run_manifest(other).mode != capture.mode:
            return None  # another mode costs something else
    except TraceFormatError:
        return None
    ranks = [found for folder in sorted(other.glob(RANK_FOLDERS)) if (found := paced(folder)) is not None]
    if not ranks:
        return None
    slowest = max(rank.step_s for rank in ranks)
    return Cost(capture.mode, "as the other side was", slowest, None, sum(rank.step_bytes for rank in ranks), 0, steps)


class PaceWatch:
    """Says once, when the first steps have shown it, what a step takes; only of a run that is long and of which nothing was known.

    Args:
        trace: The trace that grows.
        mode: Mode of the run.
        planned_steps: Steps it will record, None if nobody knows.
        known: Whether its cost was said before.
    """

    def __init__(self, trace: Path, mode: str, planned_steps: int | None, *, known: bool) -> None:
        self._trace, self._mode, self._planned = trace, mode, planned_steps
        self.pace = Pace(planned_steps)
        self._told = known
        self._first_bytes: tuple[int, int] | None = None

    def seen(self, elapsed_s: float, done: int) -> str:
        """There were ``done`` steps after so many seconds; returns what to say, "" for nothing.

        Cost: sizes of the trace's files, at most twice.
        """
        self.pace.seen(elapsed_s, done)
        if self._told or not done:
            return ""
        if self._first_bytes is None:
            self._first_bytes = (done, self._bytes())
        if not self.pace.is_long():
            return ""
        self._told = True
        steps = done - self._first_bytes[0]
        step_bytes = max(0, self._bytes() - self._first_bytes[1]) // steps if steps > 0 else None
        return measured(self._mode, self.pace, done, self._planned, step_bytes)

    def _bytes(self) -> int:
        try:
            return sum(path.stat().st_size for path in self._trace.glob(f"{RANK_FOLDERS}/*"))
        except OSError:  # a file was renamed under our eyes: its size is not worth a second look
            return 0
