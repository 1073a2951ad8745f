"""Edits of a made-up program, each at a known place: what an aligner is asked to find.

An edit's ``at`` is an index into the unedited program, which is also the ``seq`` of the event there. At most one edit
touches an instruction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tests.support.instructions import Instruction, Out, Program, Site


@dataclass(frozen=True)
class Insert:
    """An extra instruction before ``at``. By default a clone that nobody reads, so that values stay as they are."""

    at: int
    instruction: Instruction | None = None

    def build(self, program: Program) -> Instruction:
        """The instruction to insert."""
        if self.instruction is not None:
            return self.instruction
        here = program[self.at]
        made = next((out for near in range(self.at, -1, -1) for out in program[near].outs), Out("nothing", (1,)))
        return Instruction(
            "aten.alias_copy.default",
            (made.var,) if self.at else (),
            (Out("inserted", made.shape, made.dtype, "keep" if self.at else "compute"),),
            site=Site("train.py", "probe", 90 + self.at % 7, "watch(x)"),
            calls=here.calls,
            phase=here.phase,
            module=here.module,
            role="log",
        )


@dataclass(frozen=True)
class Delete:
    """Instruction ``at`` is left out; readers of its outputs get its first input.

    Values stay as they are only where its role is "neutral" or "log".
    """

    at: int


@dataclass(frozen=True)
class Swap:
    """Instructions ``at`` and ``at + 1`` change places; they must not depend on each other (see `swappable`)."""

    at: int


@dataclass(frozen=True)
class Corrupt:
    """Output (or mutated argument) number ``output`` of instruction ``at`` has a wrong value: origin `operator`."""

    at: int
    output: int = 0


@dataclass(frozen=True)
class Arguments:
    """Instruction ``at`` has other non-tensor arguments, and so another result: origin `argument`."""

    at: int
    args: str


@dataclass(frozen=True)
class Overwrite:
    """``variable`` changes before instruction ``at`` without any event: origin `mutated`."""

    at: int
    variable: str


@dataclass(frozen=True)
class Reseed:
    """A random stream moves before instruction ``at``: origin `random-state` at its next consumer."""

    at: int
    generator: str = "cpu"


@dataclass(frozen=True)
class Become:
    """Instruction ``at`` is another one altogether."""

    at: int
    instruction: Instruction


Edit = Insert | Delete | Swap | Corrupt | Arguments | Overwrite | Reseed | Become


@dataclass(frozen=True)
class Turn:
    """What a side does next.

    Attributes:
        index: Index of the instruction in the unedited program, -1 for an inserted one.
        instruction: What to execute.
        skip: Leave it out (no event).
        corrupt: As in `Machine.run`.
        overwrite: Variable that changes just before.
        reseed: Random stream that moves just before.
    """

    index: int
    instruction: Instruction
    skip: bool = False
    corrupt: int | None = None
    overwrite: str = ""
    reseed: str = ""


@dataclass(frozen=True)
class Side:
    """A program with edits.

    Attributes:
        program: The unedited program.
        edits: What this side does differently.
        renamed: Sites moved to other places, old to new: same values, other places in the source.
    """

    program: Program
    edits: Sequence[Edit] = ()
    renamed: dict[Site, Site] = field(default_factory=dict)

    def turns(self) -> Iterator[Turn]:
        """Instructions in the order this side executes them."""
        edits: dict[int, Edit] = {edit.at: edit for edit in self.edits}
        if len(edits) != len(self.edits):
            raise ValueError("two edits of one instruction")
        renamed: dict[int, Instruction] = {}
        index, total = 0, len(self.program)
        while index < total:
            edit = edits.get(index)
            for turn in self._edited(index, edit):
                yield replace(turn, instruction=self._rename(turn.instruction, renamed)) if self.renamed else turn
            index += 2 if isinstance(edit, Swap) else 1

    def _rename(self, instruction: Instruction, cache: dict[int, Instruction]) -> Instruction:
        if id(instruction) not in cache:
            site = self.renamed.get(instruction.site, instruction.site) if instruction.site else None
            calls = tuple(self.renamed.get(call, call) for call in instruction.calls)
            cache[id(instruction)] = replace(instruction, site=site, calls=calls)
        return cache[id(instruction)]

    def _edited(self, index: int, edit: Edit | None) -> Iterator[Turn]:
        here = self.program[index]
        if edit is None:
            yield Turn(index, here)
        elif isinstance(edit, Insert):
            yield Turn(-1, edit.build(self.program))
            yield Turn(index, here)
        elif isinstance(edit, Delete):
            yield Turn(index, here, skip=True)
        elif isinstance(edit, Swap):
            yield Turn(index + 1, self.program[index + 1])
            yield Turn(index, here)
        elif isinstance(edit, Corrupt):
            yield Turn(index, here, corrupt=edit.output)
        elif isinstance(edit, Arguments):
            yield Turn(index, replace(here, args=edit.args))
        elif isinstance(edit, Overwrite):
            yield Turn(index, here, overwrite=edit.variable)
        elif isinstance(edit, Reseed):
            yield Turn(index, here, reseed=edit.generator)
        else:
            yield Turn(index, edit.instruction)

    def original_of(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """By ``seq`` of this side: index in the unedited program, -1 for inserted events."""
        return np.array([turn.index for turn in self.turns() if not turn.skip], np.int64)

    def seq_of(self, index: int) -> int | None:
        """``seq`` on this side of the instruction ``index`` of the unedited program; None if it is left out."""
        found = np.flatnonzero(self.original_of() == index)
        return int(found[0]) if len(found) else None


def depends(first: Instruction, second: Instruction) -> bool:
    """Whether two neighbouring instructions must keep their order."""
    if first.role == "marker" or second.role == "marker" or first.kind == "state" or second.kind == "state":
        return True
    if (first.rng and second.rng) or first.thread != second.thread or first.phase != second.phase or first.collective or second.collective:
        return True
    written_first = {out.var for out in first.outs} | set(first.mutates)
    written_second = {out.var for out in second.outs} | set(second.mutates)
    return (
        bool(written_first & (written_second | set(second.reads)) or written_second & set(first.reads)) or first.key == second.forward != ""
    )


def swappable(program: Program, start: int = 0, stop: int | None = None) -> list[int]:
    """Indices ``k`` where ``k`` and ``k + 1`` may change places without changing a value."""
    stop = len(program) - 1 if stop is None else stop
    return [index for index in range(start, stop) if not depends(program[index], program[index + 1])]


def harmless_edits(program: Program, seed: int, *, inserts: float = 0.01, deletes: float = 0.01, swaps: float = 0.02) -> list[Edit]:
    """Random edits over the whole run that change no value that matters.

    Args:
        program: The program.
        seed: Of a generator of its own.
        inserts: Share of instructions with an extra one before them.
        deletes: Share left out; only those with role "neutral" or "log" can be, so there may be fewer.
        swaps: Share swapped with their neighbour.
    """
    rng = np.random.default_rng(seed)
    total, period, prologue = len(program), len(program.body), len(program.prologue)
    body = np.arange(prologue, prologue + period * program.steps)
    can_swap = np.array([index - prologue for index in swappable(program, prologue, prologue + period - 1)], np.int64)
    can_delete = np.array([index for index, step in enumerate(program.body) if step.role in ("neutral", "log")], np.int64)
    steps = np.arange(program.steps)[:, None] * period + prologue
    chosen: dict[int, Edit] = {}

    def pick(candidates: np.ndarray[Any, Any], share: float) -> list[int]:
        count = min(len(candidates), round(share * total))
        return [int(index) for index in np.sort(rng.choice(candidates, count, replace=False))]

    for at in pick((steps + can_swap).ravel(), swaps):
        if at - 1 not in chosen and at + 1 not in chosen:
            chosen[at] = Swap(at)
    taken = set(chosen) | {at + 1 for at in chosen}
    for at in pick((steps + can_delete).ravel(), deletes):
        if at not in taken:
            chosen[at] = Delete(at)
    for at in pick(body, inserts):
        if at not in chosen and at not in taken:
            chosen[at] = Insert(at)
    return [chosen[at] for at in sorted(chosen)]
