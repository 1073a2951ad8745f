"""Compares the named calls of one rank pair, window by window: how far they are equal, and where they first are not.

Moments (an entry, an exit, a value, a gradient) of paired calls are looked at in the order in which the reference had them. The longest run
from the first on without a difference is the equal prefix; a moment of which nothing was read on both sides, and a call that one side
lacks, neither lengthens nor ends it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from opguard_core.certify.semantic.pairing import Group, pair
from opguard_core.certify.semantic.records import GRADIENT, Call, Calls, Record, may_have
from opguard_core.certify.semantic.slots import Compared, How, Pair, compare, compare_slot
from opguard_core.trace.reader import RankTrace
from opguard_core.trace.window import WindowTable

ENTRY, EXIT, VALUE, ENTRY_GRADIENT, EXIT_GRADIENT = "entry", "exit", "value", "gradient of entry", "gradient of exit"
MAX_LATER = 8
"""Further calls that get the same and give something else, after the first difference."""


Asked = tuple[int | None, int | None]


class Moment(NamedTuple):
    """One thing that two paired calls have in common.

    Attributes:
        at: `ENTRY`, `EXIT`, `VALUE`, `ENTRY_GRADIENT` or `EXIT_GRADIENT`.
        calls: Both calls.
        events: Both events.
        pairs: Tensors that stand for each other.
        how: How they compare.
        number: Which call of its name, microbatch and phase it is in the reference, from 0.
    """

    at: str
    calls: tuple[Call, Call]
    events: tuple[Record, Record]
    pairs: tuple[Pair, ...]
    how: How
    number: int

    @property
    def name(self) -> str:
        """Name of the call."""
        return self.calls[0].name


@dataclass
class Found:
    """What the named calls of one rank pair tell.

    Attributes:
        rank: Rank the answer names (the suspect's).
        reference_rank: The reference's.
        calls: Calls compared.
        names: Distinct names of these.
        moments: How many compare how.
        tensors: Tensors compared.
        prefix: Moments of the equal prefix.
        prefix_tensors: Tensors of it.
        last: Last moment of it.
        first: First moment that differs.
        ambiguous: Groups of calls of which nothing says which is which, in order; those before `first` make it doubtful.
        doubt: Whether there is one before `first`.
        later: Further moments where a call of another name got the same and gave something else, and holds no earlier one.
        alone: By side, calls without a counterpart, by name.
        uneven: Groups that one side has more of.
        reordered: Names whose calls come in another order.
        windows: Windows that hold named calls of both sides.
        around: By side, names of the calls that an event asked for lies in, or its forward event, outermost first.
        told: By side, all names.
    """

    rank: int
    reference_rank: int
    calls: int = 0
    names: set[str] = field(default_factory=set)
    moments: Counter[How] = field(default_factory=Counter)
    tensors: int = 0
    prefix: int = 0
    prefix_tensors: int = 0
    last: Moment | None = None
    first: Moment | None = None
    ambiguous: list[tuple[int, Group]] = field(default_factory=list)
    doubt: bool = False
    later: list[Moment] = field(default_factory=list)
    alone: tuple[Counter[str], Counter[str]] = field(default_factory=lambda: (Counter(), Counter()))
    uneven: list[tuple[int, Group]] = field(default_factory=list)
    reordered: set[str] = field(default_factory=set)
    windows: list[int] = field(default_factory=list)
    around: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    told: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))


def walk(reference: RankTrace, suspect: RankTrace, rank: int, reference_rank: int, asked: Asked = (None, None)) -> Found | None:
    """Compare the named calls of one rank pair.

    Args:
        reference: Trace of the reference's rank.
        suspect: Trace of the suspect's rank.
        rank: The suspect's.
        reference_rank: The reference's.
        asked: By side, number of an event of which the calls around are asked.

    Returns:
        None if neither side has any.

    Raises:
        TraceFormatError: A trace holds what no trace may hold.

    Cost: nothing if both traces say that there are none; else one pass over each, and Python per named call.
    """
    found = Found(rank, reference_rank)
    if not (may_have(reference) or may_have(suspect)):
        return None
    sides = (Calls(), Calls())
    waiting: list[tuple[int, list[Group]]] = []
    for number, tables in _in_step(reference, suspect):
        left, right = (calls.take(table) if table is not None else [] for calls, table in zip(sides, tables, strict=True))
        for side, calls in enumerate((left, right)):
            found.told[side].update(call.name for call in calls)
            found.around[side].extend(_around(tables[side], calls, asked[side]))
        for window, groups in waiting:  # what began there has had a window more to end in
            _look(found, window, groups)
        waiting = [(number, pair(left, right))] if left or right else []
        if left and right:
            found.windows.append(number)
    for window, groups in waiting:
        _look(found, window, groups)
    if late := max(calls.num_late for calls in sides):
        found.moments[How.UNKNOWN] += late
    return found if any(found.told) else None


def _around(table: WindowTable | None, calls: list[Call], seq: int | None) -> list[str]:
    """Names of the calls that an event of a window lies in; of a backward event those of its forward event."""
    index = None if table is None or seq is None else table.index_of(seq)
    if table is None or index is None:
        return []
    event = table.event(index)
    at = event.seq if event.forward_seq is None else event.forward_seq
    return [call.name for call in calls if call.seq < at and _holds(call, at)]


def _in_step(reference: RankTrace, suspect: RankTrace) -> Iterator[tuple[int, tuple[WindowTable | None, WindowTable | None]]]:
    """Windows of both sides in order of their number; None where a side lacks one."""
    streams = (reference.iter_windows(), suspect.iter_windows())
    tables = [next(stream, None) for stream in streams]
    while any(table is not None for table in tables):
        number = min(table.window for table in tables if table is not None)
        current = [table if table is not None and table.window == number else None for table in tables]
        yield number, (current[0], current[1])
        for side, table in enumerate(current):
            if table is not None:
                tables[side] = next(streams[side], None)


def _look(found: Found, window: int, groups: list[Group]) -> None:
    """Compare the calls of one window."""
    moments: list[Moment] = []
    doubts: list[int] = []
    for group in groups:
        for side, calls in enumerate((group.reference_only, group.suspect_only)):
            if calls:
                found.alone[side][group.key.name] += len(calls)
        if group.reordered:
            found.reordered.add(group.key.name)
        if (group.reference_only or group.suspect_only) and group.pairs:
            found.uneven.append((window, group))
        if group.ambiguous[0]:
            found.ambiguous.append((window, group))
            doubts.append(group.ambiguous[0][0].seq)
        found.calls += len(group.pairs)
        if group.pairs:
            found.names.add(group.key.name)
        for number, (left, right) in enumerate(group.pairs):
            moments += _moments(left, right, number)
    moments.sort(key=lambda moment: moment.events[0].seq)
    moments = _at_once(moments)
    changed = {at: [moment.calls[0].seq for moment in moments if moment.at == at and moment.how.differs] for at in (EXIT, ENTRY_GRADIENT)}
    for moment in moments:
        found.moments[moment.how] += 1
        found.tensors += len(moment.pairs)
        _judge(found, moment, doubts, changed)
    if doubts and found.first is None:
        found.doubt = True


def _judge(found: Found, moment: Moment, doubts: list[int], changed: dict[str, list[int]]) -> None:
    if found.first is not None:
        same_step = moment.events[0].event.window == found.first.events[0].event.window  # after an update parameters differ
        if same_step and len(found.later) < MAX_LATER and moment.how.differs and moment.at in changed and _got_the_same(moment):
            inner = any(_holds(moment.calls[0], seq) for seq in changed[moment.at])
            if not inner and moment.name not in {one.name for one in (found.first, *found.later)}:
                found.later.append(moment)
        return
    if doubts and moment.events[0].seq > min(doubts):
        found.doubt = True
    if moment.how.differs or moment.how is How.UNSURE:
        found.first = moment
    elif moment.how.same and not found.doubt:
        found.prefix += 1
        found.prefix_tensors += len(moment.pairs)
        found.last = moment


def _holds(call: Call, seq: int) -> bool:
    """Another call begins inside a call: what that one changes changes this one too."""
    return call.seq < seq and bool(call.exit) and seq <= call.exit[-1].seq


def _got_the_same(moment: Moment) -> bool:
    """What a differing exit, or gradient of an entry, was made from is equal; a backward also uses what its forward had."""
    left, right = moment.calls
    forward = moment.at == EXIT or (compare(left.entry_slots(), right.entry_slots()).how.same and _exits(left, right).how.same)
    return forward and before(moment).same


def before(moment: Moment) -> How:
    """How what a differing exit, or gradient of an entry, was made from compares: the entry, or the gradient of the exit."""
    left, right = moment.calls
    if moment.at == EXIT:
        return compare(left.entry_slots(), right.entry_slots()).how
    if moment.at == ENTRY_GRADIENT:
        hows = [one.how for one in _gradients(left, right, _exits(left, right), EXIT_GRADIENT, moment.number)]
        return next((how for how in (How.DIFFERENT, How.PERMUTED, How.UNSURE, How.LAYOUT, How.CAST, How.EQUAL) if how in hows), How.UNKNOWN)
    return How.UNKNOWN


def _moments(left: Call, right: Call, number: int) -> Iterator[Moment]:
    entry = compare(left.entry_slots(), right.entry_slots())
    exits = _exits(left, right)
    if left.entry and right.entry:
        yield Moment(ENTRY, (left, right), (left.entry[0], right.entry[0]), tuple(entry.pairs), entry.how, number)
    if left.exit and right.exit:
        how = How.DIFFERENT if left.raised != right.raised else exits.how
        at = EXIT if left.entry or right.entry else VALUE
        yield Moment(at, (left, right), (left.exit[0], right.exit[0]), tuple(exits.pairs), how, number)
    yield from _gradients(left, right, entry, ENTRY_GRADIENT, number)
    yield from _gradients(left, right, exits, EXIT_GRADIENT, number)


def _exits(left: Call, right: Call) -> Compared:
    return compare(left.exit_slots(), right.exit_slots())


def _gradients(left: Call, right: Call, stage: Compared, at: str, number: int) -> Iterator[Moment]:
    """Gradients of tensors that stand for each other; of one that several backward passes reach, in order."""
    partner = {f"{GRADIENT}{one}": f"{GRADIENT}{other}" for one, other in stage.partner.items()}
    by_slot: dict[str, list[Record]] = {}
    for record in right.gradients:
        for slot in record.slots:
            by_slot.setdefault(slot.slot, []).append(record)
    for record in left.gradients:
        for slot in record.slots:
            others = by_slot.get(partner.get(slot.slot, ""))
            if others:
                other = others.pop(0)
                counterpart = next(one for one in other.slots if one.slot == partner[slot.slot])
                how = compare_slot(slot, counterpart)
                yield Moment(at, (left, right), (record, other), (Pair(slot, counterpart, how),), how, number)


def _at_once(moments: list[Moment]) -> list[Moment]:
    """Gradients of one tensor that several calls name come at once: those of what got it come before that of what gave it.

    In a backward the call that was entered with a tensor ends where the call that made it begins.
    """
    ordered: list[Moment] = []
    for moment in moments:
        at = len(ordered)
        if moment.at == ENTRY_GRADIENT:
            while at and ordered[at - 1].at == EXIT_GRADIENT and _is_same_tensor(ordered[at - 1], moment, len(ordered) - at + 1):
                at -= 1
        ordered.insert(at, moment)
    return ordered


def _is_same_tensor(one: Moment, other: Moment, apart: int) -> bool:
    """The very same memory, told of by events that follow each other."""
    (a, b), tensors = (one.events[0], other.events[0]), [moment.pairs[0].reference for moment in (one, other)]
    place = {(slot.storage, slot.extent_lo, slot.extent_hi, slot.version) for slot in tensors}
    return b.seq - a.seq <= apart and len(place) == 1 and tensors[0].storage is not None
