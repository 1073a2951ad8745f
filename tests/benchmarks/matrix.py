"""The planted-fault matrix: the same program, in one process, with the same faults, under every detector.

`python -m tests.benchmarks --only matrix`. Each row is a fault, each column a detector, each cell what it said. Also what
watching costs, as CPU time of the training thread against the unwatched run, and what judging two runs costs.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from opguard_core.ids import MODES
from tests.benchmarks.detectors import Alarm, Call, Events, LossCurve, OpGuard, TorchDebugMode, byte_digest
from tests.benchmarks.plants import PLANTS, KernelFault, Kernels, Plant, StrayWrite, build, operators_of, replaced_kernels, train
from tests.benchmarks.report import Criterion, Section, table
from tests.benchmarks.training import Shape

SMALL = Shape(layers=4, width=128, vocab=256, context=32, batch=2)
FOUND = ("exact operator", "first consumer")
TINY = Shape(layers=4, width=16, vocab=32, context=8, batch=2)


def detectors(modes: Sequence[str] = MODES) -> list[Any]:
    """All columns; the loss curve comes first, it is the unwatched run."""
    return [
        LossCurve(),
        TorchDebugMode("DebugMode, norm, outputs (its default)", "norm", inputs=False),
        TorchDebugMode("DebugMode, norm, inputs too", "norm", inputs=True),
        TorchDebugMode("DebugMode, hash_tensor, inputs too", "hash_tensor", inputs=True),
        TorchDebugMode("DebugMode, a hash of ours, inputs too", byte_digest, inputs=True),
        *(OpGuard(mode) for mode in modes),
    ]


@dataclass(frozen=True)
class Truth:
    """Where a fault strikes in the suspect: the operator, or None for a stray write, and its first reader (None: nobody)."""

    operator: Call | None
    consumer: Call | None
    step: int


@dataclass(frozen=True)
class Ran:
    """One finished run: where its trace lies if it has one, what the detector kept, and the losses."""

    folder: Path
    kept: list[Any]
    losses: list[float]


@dataclass
class Costs:
    """CPU seconds of one detector."""

    steps: list[float] = field(default_factory=list)
    judging: list[float] = field(default_factory=list)


def truth_of(plant: Plant, events: Events, struck: int | None, step: int) -> Truth:
    """Where the fault is, read off a trace of everything.

    Args:
        plant: The row.
        events: The suspect's events in mode verify.
        struck: Which call of the operator was wrong, counted over the run.
        step: The step of the fault.
    """
    if isinstance(plant.fault, StrayWrite):
        reader = events.first_named(f"optim:{plant.fault.parameter}.{plant.fault.key}", step)
        return Truth(None, events.order[reader], step)
    assert isinstance(plant.fault, KernelFault) and struck is not None
    operator = Call(plant.fault.operator, struck)
    at = events.order.index(operator)
    slot = next(slot for slot in events.slots[at] if slot.slot == plant.fault.slot)
    reader_or_none = events.first_reader(at, slot.storage, (slot.extent_lo, slot.extent_hi))
    return Truth(operator, None if reader_or_none is None else events.order[reader_or_none], step)


def words(alarm: Alarm, truth: Truth | None) -> str:
    """A cell: what a detector said, measured against the truth.

    Args:
        alarm: What it said.
        truth: Where the fault is; None when nothing is wrong.
    """
    if alarm.kind in ("raises", "inconclusive"):
        return alarm.kind
    if truth is None:
        return "quiet" if alarm.kind == "quiet" else f"{alarm.mismatches} false mismatches"
    if alarm.kind == "quiet":
        return "nothing"
    if alarm.at is None:
        steps = (alarm.step or 0) - truth.step
        return "exact step" if steps == 0 else f"{steps} step{'s' if steps > 1 else ''} late"
    if alarm.at == truth.operator:
        return "exact operator"
    at = alarm.position(alarm.at)
    consumer = alarm.position(truth.consumer) if truth.consumer is not None else None
    fault = alarm.position(truth.operator) if truth.operator is not None else consumer
    assert fault is not None
    if at < fault:
        return records(fault - at, "early")
    # A record between the fault and its first reader is a view of the damaged tensor on the way there.
    if consumer is not None and at <= consumer:
        return "first consumer" if at - fault < 2 else f"first consumer (+{at - fault})"
    return records(at - fault, "late")


def records(count: int, which: str) -> str:
    """A distance in words."""
    return f"{count} record{'' if count == 1 else 's'} {which}"


class Matrix:
    """Runs the rows under the columns.

    Args:
        folder: Scratch space for traces.
        kernels: The replaced kernels.
        columns: Detectors; mode verify must be among them, its trace says where a fault is.
        shape: Sizes of the program.
        steps: How many.
    """

    def __init__(self, folder: Path, kernels: Kernels, columns: Sequence[Any], shape: Shape, steps: int) -> None:
        self.folder, self.kernels, self.columns, self.shape, self.steps = folder, kernels, columns, shape, steps
        self.costs = {column.name: Costs() for column in columns}
        self.alarms: dict[tuple[str, str], Alarm] = {}
        self._references: dict[tuple[str, str], Ran] = {}
        self._number = 0

    def row(self, plant: Plant) -> dict[str, str]:
        """All cells of one fault, by detector."""
        program = repr(sorted(plant.program.items()))
        suspects: dict[str, Ran] = {}
        struck = None
        for column in self.columns:
            if (column.name, program) not in self._references:
                self._references[column.name, program] = self._run(column, plant, suspect=False)
            suspects[column.name] = self._run(column, plant, suspect=True)
            struck = self.kernels.struck
        events = Events(suspects["verify"].kept[0])
        truth = None if plant.fault is None else truth_of(plant, events, struck, plant.step % self.steps)
        cells = {}
        for column in self.columns:
            reference, suspect = self._references[column.name, program], suspects[column.name]
            began = time.thread_time()
            alarm = self.alarms[plant.title, column.name] = column.say(reference.kept, suspect.kept, (reference.losses, suspect.losses))
            self.costs[column.name].judging.append(time.thread_time() - began)
            cells[column.name] = words(alarm, truth)
            if alarm.open and alarm.step is not None and not cells[column.name].startswith(FOUND):
                cells[column.name] += f"; its replay: {words(self._replay(plant, alarm.step, events), truth)}"
        for suspect in suspects.values():
            shutil.rmtree(suspect.folder, ignore_errors=True)
        return cells

    def _run(self, column: Any, plant: Plant, *, suspect: bool, timed: bool = True) -> Ran:
        """One run under one detector; the first step, which warms up, is not timed."""
        self._number += 1
        folder = self.folder / f"run-{self._number}"
        marks: list[float] = []
        # Built outside, as DebugMode's documentation has it: inside, its input hashes would read memory that nobody has written yet.
        training = build(self.shape, plant, suspect=suspect)
        with column.watch(folder) as kept:
            losses = train(
                training, plant, self.kernels, steps=self.steps, suspect=suspect, after_step=lambda: marks.append(time.thread_time())
            )
        if timed:
            self.costs[column.name].steps += [after - before for before, after in itertools.pairwise(marks)]
        return Ran(folder, kept, losses)

    def _replay(self, plant: Plant, step: int, events: Events) -> Alarm:
        """What `compare --mode sentinel` and `--narrow` do next: both sides again, in mode verify, around a step."""
        first = max(0, step - 1)
        column = OpGuard("verify", (first, step + 2))
        one, other = (self._run(column, plant, suspect=suspect, timed=False) for suspect in (False, True))
        alarm = column.say(one.kept, other.kept)
        before = events.calls_before(first)

        def whole(call: Call) -> Call:
            return Call(call.operator, call.number + before[call.operator])

        return replace(alarm, at=None if alarm.at is None else whole(alarm.at), order=tuple(map(whole, alarm.order)))


def measure(
    folder: Path,
    *,
    progress: Callable[[str], None],
    shape: Shape = SMALL,
    steps: int = 4,
    plants: Sequence[Plant] = PLANTS,
    modes: Sequence[str] = MODES,
) -> Section:
    """Run the matrix.

    Args:
        folder: Scratch space.
        progress: Told what is being done.
        shape: Sizes of the program.
        steps: Of each run.
        plants: Rows.
        modes: Modes of ours; "verify" must be among them, it says where the truth is.
    """
    columns = detectors(modes)
    rows = []
    with replaced_kernels(operators_of(tuple(plants))) as kernels:
        matrix = Matrix(folder, kernels, columns, shape, steps)
        for number, plant in enumerate(plants):
            progress(f"matrix {number + 1} of {len(plants)}: {plant.title}")
            cells = matrix.row(plant)
            rows.append((plant.title, *(cells[column.name] for column in columns)))
    bare = statistics.median(matrix.costs[columns[0].name].steps)
    names = [f"OpGuard, {column.name}" if isinstance(column, OpGuard) else column.name for column in columns]
    costs = [
        (name, statistics.median(cost.steps) * 1e3, statistics.median(cost.steps) / bare, statistics.median(cost.judging) * 1e3)
        for name, cost in zip(names, (matrix.costs[column.name] for column in columns), strict=True)
    ]
    section = Section(
        how=(
            f"GPT of {shape.layers} layers, width {shape.width}, {steps} steps, one process; each fault is written below the dispatcher by "
            "the kernel, or by a raw address. DebugMode counts its own records (views and annotations too), ours counts boundaries."
        ),
        tables=[
            table(("planted", *names), rows),
            table(("detector", "CPU ms a step", "against unwatched", "judging two runs, CPU ms"), costs),
        ],
    )
    section.criteria = criteria(rows, [column.name for column in columns])
    return section


def criteria(rows: Sequence[Sequence[str]], names: Sequence[str]) -> list[Criterion]:
    """What must hold where every operator is looked at: the operator or its first reader each time, and no false alarm.

    Args:
        rows: Title, then a cell for each name.
        names: Of the columns.
    """
    found = []
    for mode in ("verify", "full"):
        if mode in names:
            column = names.index(mode) + 1
            wrong = [row for row in rows if not row[column].startswith(("quiet",) if row[0].startswith("none") else FOUND)]
            text = f"matrix, mode {mode}: faults not found at the operator or its first reader, and false alarms"
            found.append(Criterion(text, len(wrong), 0))
    for mode in [name for name in names if name in MODES and name not in ("verify", "full")]:
        wrong = [row for row in rows if not right_at_last(row[0], row[names.index(mode) + 1])]
        found.append(Criterion(f"matrix, mode {mode} and the replay it asks for: the same", len(wrong), 0))
    return found


def right_at_last(title: str, cell: str) -> bool:
    """Whether a cell is right once the replay that the answer asked for has been done."""
    if title.startswith("none"):
        return cell == "quiet"
    return cell.rpartition("its replay: ")[2].startswith(FOUND)
