"""What observing a run is expected to cost: as its plan has it before it begins, or as its own first steps show while it goes on.

Plain arithmetic over numbers that others measured; nothing here looks at a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opguard_core.ids import SIDES

if TYPE_CHECKING:
    from opguard_core.plan.document import Plan  # needs orjson, which the launcher looks for first

LONG_S = 30.0
"""What takes longer than this is worth a line about how long it takes."""


@dataclass(frozen=True)
class Cost:
    """What a run is expected to cost; None for what is not known.

    Attributes:
        mode: Mode it is observed in.
        basis: Where the numbers come from.
        step_s: Seconds of an observed step.
        ratio: That over a step that nobody observes.
        step_bytes: Trace on the disk for each step, all ranks.
        start_bytes: Trace on the disk whatever the steps.
        steps: Steps that will be recorded.
    """

    mode: str
    basis: str
    step_s: float | None = None
    ratio: float | None = None
    step_bytes: int | None = None
    start_bytes: int = 0
    steps: int | None = None

    @property
    def total_s(self) -> float | None:
        """Seconds of all recorded steps."""
        return None if self.step_s is None or self.steps is None else self.step_s * self.steps

    def __str__(self) -> str:
        """One line without an end."""
        told = [f"mode {self.mode}"]
        if self.ratio is not None:
            told.append(f"about {self.ratio:.2f} times a bare step")
        if self.step_s is not None:
            told.append(f"{duration(self.step_s)} an observed step")
        if self.steps is not None:
            whole = f"about {duration(self.total_s)} for " if self.total_s is not None else ""
            told.append(f"{whole}{self.steps} step{'s' if self.steps != 1 else ''}")
        if self.step_bytes is not None:
            whole_bytes = self.start_bytes + self.step_bytes * (self.steps or 1)
            told.append(f"{size(whole_bytes)} of trace" + ("" if self.steps is not None else " a step"))
        return f"expected cost ({self.basis}): {', '.join(told)}"


def planned(plan: Plan, steps: int | None, sides: tuple[str, ...] = SIDES) -> Cost | None:
    """What a plan's preflight says about a run under it.

    Args:
        plan: The plan.
        steps: Steps that the run will record, None if nobody knows.
        sides: The side that it is; several where that is not known, and the dearest counts.

    Returns:
        None if the plan does not say.
    """
    about = plan.about.get("cost")
    told = [found for side in sides if isinstance(about, Mapping) and isinstance(found := about.get(side), Mapping)]
    step_s, ratio = (_largest(told, key) for key in ("observed_step_s", "ratio"))
    step_bytes, start_bytes = (_largest(told, key) for key in ("step_bytes", "start_bytes"))
    if step_s is None and ratio is None and step_bytes is None:
        return None
    return Cost(plan.mode, "measured by the plan's preflight", step_s, ratio, _whole(step_bytes), _whole(start_bytes) or 0, steps)


class Pace:
    """How long a step takes, from how many there were and when. The time until the first one is seen has the set-up in it and is left out.

    Attributes:
        step_s: Seconds of a step, None before two were seen at different times.
        left_s: Seconds until the planned steps are made at this pace, None if either is unknown.
    """

    def __init__(self, planned_steps: int | None) -> None:
        self._planned = planned_steps
        self._first: tuple[float, int] | None = None
        self.step_s: float | None = None
        self.left_s: float | None = None

    def seen(self, elapsed_s: float, done: int) -> None:
        """There were ``done`` steps after so many seconds."""
        if not done:
            return
        if self._first is None:
            self._first = (elapsed_s, done)
        seconds, steps = elapsed_s - self._first[0], done - self._first[1]
        if steps <= 0 or seconds <= 0:
            return
        self.step_s = seconds / steps
        self.left_s = None if self._planned is None else max(0, self._planned - done) * self.step_s

    def is_long(self) -> bool:
        """Whether the rest is worth a line: it is long, or nobody knows how long while steps are slow."""
        return self.step_s is not None and (self.step_s if self.left_s is None else self.left_s) >= (1.0 if self.left_s is None else LONG_S)


def measured(mode: str, pace: Pace, done: int, steps: int | None, step_bytes: int | None = None) -> str:
    """One line about a run that goes on; ``pace`` knows what a step takes."""
    assert pace.step_s is not None
    left = f", about {duration(pace.left_s)} until the last of {steps}" if pace.left_s is not None else ""
    room = f", {size(step_bytes)} of trace a step" if step_bytes else ""
    return f"cost measured on {done} steps: mode {mode}, {duration(pace.step_s)} an observed step{room}{left}"


def duration(seconds: float | None) -> str:
    """A time with two or three digits."""
    if seconds is None:
        return "an unknown time"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def size(num_bytes: int) -> str:
    """A size with at most three digits and a half."""
    return f"{num_bytes / 2**20:.1f} MiB" if num_bytes < 2**30 else f"{num_bytes / 2**30:.1f} GiB"


def _largest(told: list[Mapping[str, Any]], key: str) -> float | None:
    values = [value for one in told if isinstance(value := one.get(key), int | float) and not isinstance(value, bool)]
    return max((float(value) for value in values if math.isfinite(value) and value >= 0), default=None)


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)


__all__ = ["LONG_S", "Cost", "Pace", "duration", "measured", "planned", "size"]
