"""Semantic events of one rank as calls: what each got, what it gave, which gradients came back to it.

A call is told by its first event, that of its entry or of a named value; the others carry its number. A value is a call that only gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from opguard_core.ids import Kind, Phase, Status
from opguard_core.trace.columns import NO_NUMBER
from opguard_core.trace.reader import RankTrace
from opguard_core.trace.schema import EventRow, SlotRow
from opguard_core.trace.window import WindowTable

ENTER, EXIT, PROBE, GRAD = "enter", "exit", "probe", "grad"
GRADIENT = "grad_"
"""Before the name of the slot whose gradient it is."""

_KNOWN = (Status.PROBED, Status.CARRIED)


@dataclass(frozen=True, slots=True)
class Record:
    """One event.

    Attributes:
        event: Its row.
        slots: What it read.
        raised: Class of the exception that ended the call; empty if none did.
    """

    event: EventRow
    slots: tuple[SlotRow, ...]
    raised: str = ""

    @property
    def seq(self) -> int:
        """Its number."""
        return self.event.seq


@dataclass(slots=True)
class Call:
    """One named call, or one named value.

    Attributes:
        first: Its first event.
        entry: Events of its entry: one, or one for each tensor inside a compiled graph; none for a value.
        exit: Events of its exit, or of the value; empty while it is open.
        gradients: Events of gradients, in order.
    """

    first: Record
    entry: list[Record] = field(default_factory=list)
    exit: list[Record] = field(default_factory=list)
    gradients: list[Record] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What the program, or an order, calls it."""
        return self.first.event.operator

    @property
    def seq(self) -> int:
        """Number of its first event."""
        return self.first.seq

    @property
    def phase(self) -> str:
        """Phase of its entry; data counts as forward, since a code base may draw that line elsewhere."""
        phase = self.first.event.phase
        return Phase.FORWARD.value if phase == Phase.DATA else phase

    def entry_slots(self) -> list[SlotRow]:
        """What it got."""
        return [slot for record in self.entry for slot in record.slots]

    def exit_slots(self) -> list[SlotRow]:
        """What it gave."""
        return [slot for record in self.exit for slot in record.slots]

    @property
    def raised(self) -> str:
        """Class of the exception that ended it."""
        return next((record.raised for record in self.exit if record.raised), "")


def is_known(slot: SlotRow) -> bool:
    """Whether its digests say what the bytes were."""
    return slot.status in _KNOWN


def may_have(trace: RankTrace) -> bool:
    """Whether a trace may hold semantic events; a finished one says so without being read."""
    return trace.torn is not None or not trace.manifest.complete or "semantic" in trace.manifest.engines


class Calls:
    """Turns the windows of one rank into calls.

    Calls may end, and gradients come, in a later window than they began in; those of the window before are still open to that.

    Attributes:
        num_late: Ends and gradients of calls that began in none of these two windows; of what they tell nothing is compared.
    """

    def __init__(self) -> None:
        self._open: dict[int, Call] = {}
        self._before: dict[int, Call] = {}
        self.num_late = 0

    def take(self, table: WindowTable) -> list[Call]:
        """Calls that begin in a window, in order."""
        self._before, self._open = self._open, {}
        for record, at in _records(table):
            event = record.event
            known = None if event.forward_seq is None else self._open.get(event.forward_seq) or self._before.get(event.forward_seq)
            if known is None and event.forward_seq is None and at in (ENTER, PROBE):
                known = self._open[event.seq] = Call(record)
            if known is None:
                self.num_late += 1
                continue
            if at == ENTER:
                known.entry.append(record)
            elif at == GRAD:
                known.gradients.append(record)
            else:
                known.exit.append(record)
        begun = list(self._open.values())
        _give_back(begun)
        return begun


def _give_back(calls: list[Call]) -> None:
    """Gradients of a call that was only run again for them are those of the call that it repeats: it got the same.

    A checkpoint that runs its forward without a graph has its gradients from the repetition; another kind, or none, from the forward.
    """
    again = [call for call in calls if call.first.event.phase == Phase.RECOMPUTE and call.gradients]
    if not again:
        return
    bare = [call for call in calls if call.first.event.phase != Phase.RECOMPUTE and not call.gradients]
    for call in again:
        got = [(slot.slot, slot.mix64) for slot in call.entry_slots()]
        one = next(
            (other for other in bare if _place(other) == _place(call) and [(s.slot, s.mix64) for s in other.entry_slots()] == got), None
        )
        if one is not None:
            bare.remove(one)
            one.gradients, call.gradients = call.gradients, []


def _place(call: Call) -> tuple[str, int]:
    return call.name, call.first.event.microbatch


def _records(table: WindowTable) -> Iterator[tuple[Record, str]]:
    code = table.strings["kind"].code(Kind.SEMANTIC)
    if code == NO_NUMBER:
        return
    for index in np.flatnonzero(table.events["kind"] == code).tolist():
        event = table.event(index)
        facts = dict(part.partition("=")[::2] for part in event.args.split(";"))
        yield Record(event, tuple(table.slots_of(index)), facts.get("raised", "")), facts.get("at", "")
