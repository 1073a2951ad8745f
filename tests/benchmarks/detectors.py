"""What watches a training in the matrix, and what each says about two runs, in one form.

A detector's `watch` wraps one run of the program; its `say` compares what it kept of two runs. DebugMode is used as its
documentation shows: two logs, `check_hash_mismatches`. That answer names operators, not calls; where the first mismatch
lies is found here by asking it about one pair of records after the other.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._debug_mode import DebugMode

from opguard_core.capture.session import start
from opguard_core.certify.compare import compare
from opguard_core.certify.verdict import Verdict
from opguard_core.ids import Origin
from opguard_core.plan.config import RunConfig
from opguard_core.trace.manifest import RunManifest, write_manifest
from opguard_core.trace.reader import Run
from opguard_core.trace.schema import EventRow, SlotRow
from tests.benchmarks.plants import bytes_of


@dataclass(frozen=True, order=True)
class Call:
    """One call of an operator in a run: the qualified name, and how many calls of it came before."""

    operator: str
    number: int


@dataclass(frozen=True)
class Alarm:
    """What a detector says about two runs.

    Attributes:
        kind: "quiet", "alarm", "raises" or "inconclusive".
        at: The call it points to.
        order: All calls of the suspect that it has a record of, in order.
        mismatches: How many differences it lists.
        step: The step it names, if it does.
        text: In its own words, short.
        open: Our answer leaves something open that a replay of the step in mode verify decides (`compare --narrow`).
    """

    kind: str
    at: Call | None = None
    order: tuple[Call, ...] = field(default=(), repr=False)
    mismatches: int = 0
    step: int | None = None
    text: str = ""
    open: bool = False

    def position(self, call: Call) -> int:
        """Where a call stands among this detector's records."""
        return self.order.index(call)


class LossCurve:
    """A person who looks at the printed losses, to four decimals."""

    name = "loss curve"

    @contextlib.contextmanager
    def watch(self, folder: Path) -> Iterator[list[Any]]:
        """Nothing to do."""
        del folder
        yield []

    def say(self, reference: Any, suspect: Any, losses: tuple[list[float], list[float]]) -> Alarm:
        """The first step whose printed losses differ."""
        del reference, suspect
        for step, (one, other) in enumerate(zip(*losses, strict=True)):
            if f"{one:.4f}" != f"{other:.4f}":
                return Alarm("alarm", step=step, mismatches=1, text=f"{one:.4f} against {other:.4f}")
        return Alarm("quiet")


class TorchDebugMode:
    """PyTorch's DebugMode with tensor hashes.

    Args:
        name: Of the column.
        hash_fn: As `DebugMode.log_tensor_hashes` takes it.
        inputs: Whether inputs are hashed and compared too.
    """

    def __init__(self, name: str, hash_fn: str | Callable[[torch.Tensor], Any], *, inputs: bool) -> None:
        self.name, self.hash_fn, self.inputs = name, hash_fn, inputs

    @contextlib.contextmanager
    def watch(self, folder: Path | None = None) -> Iterator[list[Any]]:
        """Log the block; the list is filled when it ends."""
        del folder
        logs: list[Any] = []
        with DebugMode() as mode, DebugMode.log_tensor_hashes(hash_fn=self.hash_fn, hash_inputs=self.inputs):
            yield logs
        logs += mode.logs

    def say(self, reference: list[Any], suspect: list[Any], losses: Any = None) -> Alarm:
        """Its mismatches."""
        del losses
        try:
            found = DebugMode.check_hash_mismatches(reference, suspect, compare_inputs=self.inputs)
        except ValueError as error:
            return Alarm("raises", text=str(error))
        if not found:
            return Alarm("quiet")
        first = next(
            index
            for index, (one, other) in enumerate(zip(reference, suspect, strict=True))
            if DebugMode.check_hash_mismatches([one], [other], compare_inputs=self.inputs)
        )
        order = tuple(calls(log.op._schema.name if hasattr(log, "op") else type(log).__name__ for log in suspect))
        return Alarm("alarm", at=order[first], order=order, mismatches=len(found), text=found[0]["call"])


def byte_digest(tensor: torch.Tensor) -> int:
    """A hash that DebugMode does not bring, but takes: 63 bits of the bytes in logical order."""
    return int.from_bytes(hashlib.blake2b(bytes_of(tensor.detach().contiguous()), digest_size=8).digest(), "little") >> 1


class OpGuard:
    """Ours: capture through the real writer into a folder, judged by the real comparison.

    Args:
        mode: One of `ids.MODES`.
        steps: Half-open window of steps to record, or None for all.
    """

    def __init__(self, mode: str, steps: tuple[int, int] | None = None) -> None:
        self.name, self.mode, self.steps = mode, mode, steps

    @contextlib.contextmanager
    def watch(self, folder: Path) -> Iterator[list[Any]]:
        """Capture the block into a trace; the list holds its path."""
        folder.mkdir(parents=True)
        session = start(RunConfig(run_dir=folder, user_root=Path.cwd(), mode=self.mode, steps=self.steps))
        ended = "exception"
        try:
            yield [folder]
            ended = "exit"
        finally:
            session.stop(ended)
        write_manifest(
            folder,
            RunManifest(
                created_utc="2026-01-01T00:00:00Z",
                cwd=str(Path.cwd()),
                user_root=str(Path.cwd()),
                mode=self.mode,
                steps=self.steps,
                exit={"code": 0, "signal": None},
                ranks=[0],
                complete=True,
            ),
        )

    def judge(self, reference: list[Path], suspect: list[Path]) -> Verdict:
        """Our verdict."""
        return compare(Run.open(reference[0]), Run.open(suspect[0]))

    def say(self, reference: list[Path], suspect: list[Path], losses: Any = None) -> Alarm:
        """Our verdict, in the common form."""
        del losses
        verdict = self.judge(reference, suspect)
        text = ", ".join(reason.slug for reason in verdict.reasons)
        if verdict.located is not None:
            return Alarm("alarm", step=verdict.located["step"], mismatches=1, text=text, open=True)
        if verdict.verdict != "diverged":
            return Alarm("quiet" if verdict.verdict == "identical" else "inconclusive", text=text)
        assert verdict.pivot is not None
        events = Events(suspect[0])
        pivot = verdict.pivot
        at = events.order[events.index_of[pivot.seq.suspect]]
        unread = self.mode != "verify" and Origin.MUTATED.value in pivot.origin_alternatives
        return Alarm("alarm", at=at, order=events.order, mismatches=1, step=pivot.step, text=pivot.origin, open=unread)


class Events:
    """Operators of one captured run, in order.

    Args:
        folder: The trace.
    """

    def __init__(self, folder: Path) -> None:
        self.rows: list[EventRow] = []
        self.slots: list[list[SlotRow]] = []
        for window in Run.open(folder).ranks[0].iter_windows():
            for index in range(len(window)):
                row = window.event(index)
                if row.kind in ("operator", "collective", "read"):
                    self.rows.append(row)
                    self.slots.append(window.slots_of(index))
        self.order = tuple(calls(qualified(row.operator) for row in self.rows))
        self.index_of = {row.seq: index for index, row in enumerate(self.rows)}

    def calls_before(self, step: int) -> Counter[str]:
        """How many calls of each operator lie before a step."""
        return Counter(qualified(row.operator) for row in self.rows if row.window < step)

    def first_reader(self, after: int, storage: int | None, extent: tuple[int, int]) -> int | None:
        """First event after another that reads some of these bytes."""
        for index in range(after + 1, len(self.rows)):
            for slot in self.slots[index]:
                if slot.direction == "in" and slot.storage == storage and slot.extent_lo < extent[1] and slot.extent_hi > extent[0]:
                    return index
        return None

    def first_named(self, name: str, step: int) -> int:
        """First operator of a step that reads the state of this name."""
        return next(
            index
            for index, (row, slots) in enumerate(zip(self.rows, self.slots, strict=True))
            if row.window == step and any(slot.name == name and slot.direction == "in" for slot in slots)
        )


def qualified(operator: str) -> str:
    """As torch names an operator: "aten.add.Tensor" -> "aten::add"."""
    namespace, base = operator.split(".")[:2]
    return f"{namespace}::{base}"


def calls(operators: Iterator[str]) -> Iterator[Call]:
    """Number the calls of each operator."""
    counts: Counter[str] = Counter()
    for operator in operators:
        yield Call(operator, counts[operator])
        counts[operator] += 1
