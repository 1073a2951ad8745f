"""What a preflight is asked, and what one side's short run left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opguard_core.errors import ConfigError
from opguard_core.plan.config import MAX_STEPS
from opguard_core.plan.document import PLANNED_MODES
from opguard_harness.compare.launching import SideRun
from opguard_harness.compare.request import CompareRequest

LEAST_STEPS = 2


@dataclass(frozen=True)
class PreflightRequest:
    """What to look at.

    Attributes:
        compare: Both sides; its mode, steps and knobs are those that the long run will have. Nothing is kept.
        first: Steps to run and record on each side.
        planned_steps: Steps that the long run will record on each side; None takes the window's, if there is one.
        plan: File to write the plan to; None makes none.
    """

    compare: CompareRequest
    first: int = 3
    planned_steps: int | None = None
    plan: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what tells nothing."""
        if self.first < LEAST_STEPS:
            raise ConfigError(
                f"--steps {self.first} is too few: the first step has the set-up in it.", hint=f"Look at {LEAST_STEPS} steps or more."
            )
        if self.compare.capture.mode not in PLANNED_MODES:
            raise ConfigError(
                f"--mode {self.compare.capture.mode} records no operators, so there is nothing to plan.",
                hint=f"Use --mode {' or '.join(PLANNED_MODES)}; the cost of sentinel is estimated as well.",
            )
        for option, count in (("--steps", self.first), ("--planned-steps", self.planned_steps)):
            if count is not None and not 1 <= count <= MAX_STEPS:
                raise ConfigError(f"{option} {count} is no number of steps.", hint=f"Give 1 to {MAX_STEPS}, or leave it out.")

    @property
    def recorded_steps(self) -> int | None:
        """Steps that the long run records, None if nobody said."""
        steps = self.compare.capture.steps
        return self.planned_steps if steps is None else steps[1] - steps[0]


@dataclass(frozen=True)
class Look:
    """One side's short run. ``how``: "ended" (by us, as planned), "finished" (by itself), "cut" (out of time), "stored" (a trace)."""

    run: SideRun
    how: str
