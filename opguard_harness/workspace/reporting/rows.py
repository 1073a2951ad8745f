"""Boundaries as a report shows them: what each side's trace recorded, slot beside slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opguard_core.errors import EvidenceNotFound
from opguard_core.evidence.neighbourhood import ALONE, Row, SlotPair
from opguard_core.evidence.refs import EventRef
from opguard_core.ids import SIDES
from opguard_core.trace.reader import RankTrace, Run
from opguard_core.trace.schema import EventRow, SlotRow
from opguard_harness.access.untrusted import one_line
from opguard_harness.workspace.reporting.tables import Tables

NAME_CHARS = 120
ARGS_CHARS = 300
KNOWN = ("probed", "carried")
_MOST_SLOTS = 24
_READ_FIRST = {"in": 0, "mut": 1, "out": 2}


@dataclass(frozen=True)
class Ranks:
    """The two traces of one rank pair.

    Attributes:
        runs: Both runs, the reference first.
        digests: Of both traces.
        numbers: The rank on each side.
    """

    runs: tuple[Run, Run]
    digests: tuple[str, str]
    numbers: tuple[int, int]

    @property
    def traces(self) -> tuple[RankTrace | None, RankTrace | None]:
        """Trace of each side, None where it has no such rank."""
        return self.runs[0].ranks.get(self.numbers[0]), self.runs[1].ranks.get(self.numbers[1])

    def event(self, side: int, seq: int) -> tuple[EventRow, list[SlotRow]]:
        """One event of a side.

        Raises:
            EvidenceNotFound: It is not recorded.
            TraceFormatError: The trace cannot be read.
        """
        trace = self.traces[side]
        found = None if trace is None else trace.event_at(seq)
        if found is None:
            raise EvidenceNotFound(f"{self.name(side, seq)} of the {SIDES[side]} is not recorded.")
        return found

    def name(self, side: int, seq: int) -> str:
        """The evidence id of an event."""
        return str(EventRef(self.digests[side], self.numbers[side], seq))


def row(ranks: Ranks, tables: Tables, found: Row) -> dict[str, Any]:
    """One row of a report.

    Args:
        ranks: The traces it is from.
        tables: Where frames, stacks and sources are told.
        found: Its event numbers and how its slots pair.

    Raises:
        EvidenceNotFound: An event is not recorded.
    """
    sides = [None if seq is None else ranks.event(side, seq) for side, seq in enumerate(found.seqs)]
    named = [{} if entry is None else {slot.slot: slot for slot in entry[1]} for entry in sides]
    pairs = sorted(found.slots, key=lambda pair: (not pair.differs, pair.how == ALONE))[:_MOST_SLOTS]
    kept = [pair for pair in found.slots if pair in set(pairs)]
    return {
        "rank": ranks.numbers[1],
        "results": found.results.value,
        **{
            name: None if entry is None else _event(ranks, tables, side, entry[0])
            for side, (name, entry) in enumerate(zip(SIDES, sides, strict=True))
        },
        "slots": [_pair(pair, named) for pair in kept],
        "slots_total": len(found.slots),
    }


def by_name(ranks: Ranks, seqs: Mapping[str, int | None]) -> Row:
    """A row of two events that an answer names together: slots of one name stand for each other.

    Args:
        ranks: The traces they are from.
        seqs: Event number by side.

    Raises:
        EvidenceNotFound: An event is not recorded.
    """
    from opguard_core.certify.spreading import Results

    numbers = (seqs.get(SIDES[0]), seqs.get(SIDES[1]))
    sides = [{} if seq is None else {slot.slot: slot for slot in ranks.event(side, seq)[1]} for side, seq in enumerate(numbers)]
    names = list(dict.fromkeys((*sides[0], *sides[1])))
    pairs = [
        SlotPair((name if name in sides[0] else None, name if name in sides[1] else None), how(sides[0].get(name), sides[1].get(name)))
        for name in names
    ]
    differs = any(pair.differs for pair in pairs)
    results = Results.ALONE if None in numbers else Results.DIFFER if differs else Results.SAME
    return Row(numbers, results, tuple(pairs))


def how(reference: SlotRow | None, suspect: SlotRow | None) -> str:
    """How two slots compare by themselves, in the words of the alignment; layouts are for those who know where data came from."""
    if reference is None or suspect is None:
        return ALONE
    if reference.nbytes == suspect.nbytes == 0:
        return "equal"
    if reference.status not in KNOWN or suspect.status not in KNOWN:
        return "unknown"
    if (reference.mix64, reference.dtype) == (suspect.mix64, suspect.dtype):
        return "equal"
    if reference.value64 == suspect.value64:
        return "cast"
    return "permuted" if reference.bag64 == suspect.bag64 else "different"


def slot(found: SlotRow) -> dict[str, Any]:
    """What a trace holds about one slot."""
    return {
        "slot": one_line(found.slot, NAME_CHARS),
        "dtype": one_line(found.dtype, NAME_CHARS),
        "shape": one_line(found.shape, NAME_CHARS),
        "bytes": found.nbytes,
        "status": one_line(found.status, NAME_CHARS),
        "digest": f"{found.mix64:016x}" if found.status in KNOWN else "",
        "tensor": one_line(found.name, NAME_CHARS),
    }


def event(ranks: Ranks, side: int, found: EventRow) -> dict[str, Any]:
    """What a trace holds about one event, less where it is in the source."""
    return {
        "id": ranks.name(side, found.seq),
        "seq": found.seq,
        "operator": one_line(found.operator, NAME_CHARS),
        "phase": one_line(found.phase, NAME_CHARS),
        "module": one_line(found.module, NAME_CHARS),
        "node": one_line(found.node, NAME_CHARS),
        "args": one_line(found.args, ARGS_CHARS),
        "thread": one_line(found.thread, NAME_CHARS),
    }


def _event(ranks: Ranks, tables: Tables, side: int, found: EventRow) -> dict[str, Any]:
    other = ranks.traces[1 - side]
    frame, stack = tables.of_event(side, tables.places(side, ranks.numbers[side], other), found)
    return {**event(ranks, side, found), "frame": frame, "stack": stack}


def _pair(pair: SlotPair, named: list[dict[str, SlotRow]]) -> dict[str, Any]:
    rows = [None if name is None else named[side].get(name) for side, name in enumerate(pair.names)]
    first = next((entry for entry in reversed(rows) if entry is not None), None)
    return {
        "how": pair.how,
        "direction": "" if first is None else one_line(first.direction, NAME_CHARS),
        **{name: None if entry is None else slot(entry) for name, entry in zip(SIDES, rows, strict=True)},
    }
