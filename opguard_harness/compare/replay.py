"""Run both sides once more, in private copies of what they were before anything ran, and look closely at a few steps.

The copies are made before the first run, since a program may change its own folder. Whether a difference comes again is an
answer, too: a replay that fails or shows nothing is a value with a reason, never an error of the comparison.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from opguard_core.errors import Interrupted, OpGuardError
from opguard_core.ids import SIDES, Origin
from opguard_core.plan.config import rank_folder
from opguard_core.plan.keeping import Keep, Transplant, kept_file
from opguard_core.trace.boundary import BoundaryKey
from opguard_harness.compare.folders import private_copy
from opguard_harness.compare.launching import SideRun
from opguard_harness.compare.request import CaptureRequest
from opguard_harness.compare.sides import ProgramSide, Side

Run = Callable[[tuple[Side, Side], CaptureRequest, str], tuple[SideRun, SideRun]]
"""Runs both sides; the text names the folder of their results."""

Judge = Callable[[tuple[SideRun, SideRun], tuple[int, int]], dict[str, Any]]
"""Judges two runs whose window is given."""

REPLAY_MODE = "verify"
WIDER_STEPS = 16
"""Steps before the one in question that a second replay records, if the first one's window began too late."""

_FROM_OUTSIDE = (str(Origin.INITIAL_STATE), str(Origin.UNOBSERVED_PRODUCER))


@dataclass(frozen=True)
class Replay:
    """What a replay of some steps showed.

    Attributes:
        steps: Half-open window that was recorded.
        answer: Its own answer; None if there is none.
        problem: Why there is none.
        seconds: What both runs took.
        before: The window of a replay before this one, which began when what differs was there already; None if this is the first.
        name: Folder of its traces below the results.
    """

    steps: tuple[int, int]
    answer: dict[str, Any] | None
    problem: str
    seconds: float
    before: tuple[int, int] | None = None
    name: str = ""

    @property
    def diverged(self) -> bool:
        """It shows a difference, at a place."""
        return self.answer is not None and self.answer["verdict"] == "diverged"

    @property
    def outcome(self) -> str:
        """What came of it, for a sentence."""
        if self.answer is None:
            return self.problem
        if self.answer["verdict"] != "inconclusive":
            eager = any("compiled_regions_run_eagerly" in rank for side in self.answer["coverage"].values() for rank in side.values())
            return f"it was {self.answer['verdict']}{'; compiled regions run eagerly in a replay' if eager else ''}"
        return f"it was inconclusive ({', '.join(reason['slug'] for reason in self.answer['reasons'][:4])})"

    def facts(self, first: Mapping[str, Any]) -> dict[str, Any]:
        """The answer's ``replay`` object.

        Args:
            first: The answer of the first runs.
        """
        verdict = None if self.answer is None else self.answer["verdict"]
        return {"steps": list(self.steps), "verdict": verdict, "trace": first["trace"], "seconds": round(self.seconds, 3)}


@dataclass(frozen=True)
class Pair:
    """A boundary on both sides, for a transplant.

    Attributes:
        reference: Whose results are kept.
        suspect: Whose results are replaced.
        slots: Slot of the suspect -> slot of the reference; empty for all of the same names.
    """

    reference: BoundaryKey
    suspect: BoundaryKey
    slots: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pristine:
    """Both programs as they were before anything ran."""

    sides: tuple[ProgramSide, ProgramSide]
    scratch: Path


def keep_pristine(sides: tuple[Side, Side], scratch: Path) -> Pristine | None:
    """Copy both programs' folders; None if a side is a trace, which cannot run again.

    Args:
        sides: As resolved; nothing has run.
        scratch: Folder that outlives the replays.

    Raises:
        SpaceShort: The copies do not fit.
    """
    reference, suspect = sides
    if not isinstance(reference, ProgramSide) or not isinstance(suspect, ProgramSide):
        return None
    kept = tuple(replace(side, folder=private_copy(side.folder, scratch / f"pristine-{side.name}")) for side in (reference, suspect))
    return Pristine((kept[0], kept[1]), scratch)


@dataclass
class Replayer:
    """Replays steps.

    Attributes:
        pristine: What is run.
        capture: How it was observed the first time.
        run: Runs two sides.
        judge: Judges them.
        say: Told what goes on.
    """

    pristine: Pristine
    capture: CaptureRequest
    run: Run
    judge: Judge
    say: Callable[[str], None]
    _count: int = 0

    def look(self, step: int, end: int, first: int) -> Replay:
        """Replay a step, and more steps before it if what differs was there already when the window began.

        Args:
            step: The step in question.
            end: First step that need not be recorded.
            first: First step that the first runs recorded.
        """
        begin = max(first, step - 1)
        found = self._replay((begin, end))
        if not found.diverged or found.answer is None or found.answer["pivot"]["origin"] not in _FROM_OUTSIDE:
            return found
        earlier = max(first, step - WIDER_STEPS)
        if earlier == begin:
            return found
        self.say(f"what differs was there already when step {begin} began, so the steps before it are replayed as well")
        wider = self._replay((earlier, end))
        return replace(wider, before=found.steps) if wider.diverged else found

    def transplanted(self, steps: tuple[int, int], pairs: Sequence[Pair], limit_bytes: int) -> Replay:
        """Run both sides once more; the suspect gets the reference's bytes in place of its own results.

        Args:
            steps: The window to record, and so to judge.
            pairs: Boundaries of the reference, whose results are kept, and of the suspect, whose results are replaced.
            limit_bytes: What the reference may keep.
        """
        keys = tuple(dict.fromkeys(pair.reference for pair in pairs))
        trace = Path("..", SIDES[0], "trace")  # from the folder of the suspect's own run
        kept = {key: trace / rank_folder(key.rank) / kept_file(index) for index, key in enumerate(keys)}
        capture = replace(
            self.capture,
            keep={SIDES[0]: Keep(keys, limit_bytes)},
            transplants={SIDES[1]: tuple(Transplant(pair.suspect, kept[pair.reference], pair.slots) for pair in pairs)},
        )
        return self._replay(steps, capture)

    def _replay(self, steps: tuple[int, int], asked: CaptureRequest | None = None) -> Replay:
        """Run both sides in fresh copies, recording these steps."""
        self._count += 1
        name = f"replay-{self._count}"
        self.say(f"replaying steps {steps[0]} to {steps[1] - 1} of both sides in private copies, mode {REPLAY_MODE}")
        copies: list[ProgramSide] = []
        try:
            copies += [
                replace(side, folder=private_copy(side.folder, self.pristine.scratch / f"{name}-{side.name}"))
                for side in self.pristine.sides
            ]
            # One step more than is recorded: what the last one left is read there. A plan speaks of another mode and window.
            capture = replace(asked or self.capture, mode=REPLAY_MODE, steps=steps, plan=None, end_after=steps[1] + 1)
            runs = self.run((copies[0], copies[1]), capture, name)
            return Replay(steps, self.judge(runs, steps), "", sum(run.seconds for run in runs), name=name)
        except Interrupted:
            raise
        except OpGuardError as error:
            return Replay(steps, None, error.message, 0.0, name=name)
        finally:
            for side in self.pristine.sides:
                shutil.rmtree(self.pristine.scratch / f"{name}-{side.name}", ignore_errors=True)


def place_of(pivot: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes two pivots the same place: the operator and the expression on both sides."""
    places = (pivot[side] for side in SIDES)
    return pivot["operator"], *(place and (place["file"], place["line"], place["text"]) for place in places)
