"""Every time one expression ran: the executions that a transplant must reach to take a fault out that comes again in each step.

A site is an operator at an expression of the user's, in one module. Its executions are the boundaries there, from one step on, and the
backward operators that belong to them: a wrong factor is wrong in the gradient, too. Pure: traces in, keys out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from opguard_core.ids import Direction, Kind, Status
from opguard_core.trace.boundary import BoundaryKey, keys_of, words_of
from opguard_core.trace.reader import RankTrace
from opguard_core.trace.schema import SlotRow
from opguard_core.trace.window import WindowTable

_RESULTS = (str(Direction.OUT), str(Direction.MUT))


@dataclass(frozen=True)
class Site:
    """Where an operator is called.

    Attributes:
        operator: Full name.
        module: Path of the module.
        user: Function and expression of the user's innermost frame.
        library: The same of the innermost frame, where that is not the user's.
    """

    operator: str
    module: str
    user: tuple[str, str]
    library: tuple[str, str]


@dataclass(frozen=True)
class Execution:
    """One boundary of a site.

    Attributes:
        key: Its key.
        results: Dtype and shape of each result and argument written in place whose bytes are known, by slot.
        reads: The same of what it read.
    """

    key: BoundaryKey
    results: Mapping[str, tuple[str, str]]
    reads: Mapping[str, tuple[str, str]]


def site_of(trace: RankTrace, seq: int) -> tuple[Site, int] | None:
    """The site of an event and the window it lies in; None if the trace does not hold it or it is no operator.

    Raises:
        TraceFormatError: The trace cannot be read.
    """
    found = trace.event_at(seq)
    if found is None or found[0].kind not in (Kind.OPERATOR, Kind.COLLECTIVE):
        return None
    event = found[0]
    user, library = words_of(trace, event.user_frame), words_of(trace, event.library_frame)
    return Site(event.operator, event.module, user, library), event.window


def forward_of(trace: RankTrace, seq: int) -> int | None:
    """The forward event that a backward event belongs to; None if it is none or nothing is known."""
    found = trace.event_at(seq)
    return None if found is None else found[0].forward_seq


def executions(trace: RankTrace, rank: int, site: Site, first_window: int) -> list[Execution]:
    """Boundaries of a site and their backward operators, in order.

    Args:
        trace: The rank's trace.
        rank: Its number, for the keys.
        site: The site.
        first_window: Windows before it are left out.

    Raises:
        TraceFormatError: The trace cannot be read.

    Cost: one pass over the trace.
    """
    found, forward = [], set()
    for table in trace.iter_windows():
        if table.window < first_window:
            continue
        events = table.events
        mask = events["operator"] == table.strings["operator"].code(site.operator)
        mask &= events["module"] == table.strings["module"].code(site.module)
        here = [index for index in mask.nonzero()[0].tolist() if _words(trace, table, index) == (site.user, site.library)]
        forward |= {int(events["seq"][index]) for index in here}
        behind = [index for index in (events["forward_seq"] >= 0).nonzero()[0].tolist() if int(events["forward_seq"][index]) in forward]
        indexes = sorted({*here, *behind})
        keys = keys_of(trace, rank, table, [int(events["seq"][index]) for index in indexes])
        found += [_execution(table, index, keys[seq]) for index in indexes if (seq := int(events["seq"][index])) in keys]
    return found


def execution_at(trace: RankTrace, rank: int, seq: int) -> Execution | None:
    """One boundary; None if the trace does not hold it. Raises as `executions`."""
    found = trace.event_at(seq)
    table = None if found is None else trace.window(found[0].window)
    index = None if table is None else table.index_of(seq)
    if table is None or index is None:
        return None
    key = keys_of(trace, rank, table, [seq]).get(seq)
    return None if key is None else _execution(table, index, key)


def paired(reference: Sequence[Execution], suspect: Sequence[Execution]) -> Iterator[tuple[Execution, Execution]]:
    """Executions of both sides that stand for each other: the same operator, phase and step, equally many there, of equal results."""
    groups: dict[tuple[int, int, str, str], tuple[list[Execution], list[Execution]]] = defaultdict(lambda: ([], []))
    for side, listed in enumerate((reference, suspect)):
        for one in listed:
            groups[one.key.rank, one.key.step, one.key.phase, one.key.operator][side].append(one)
    for left, right in groups.values():
        if len(left) == len(right):
            yield from ((one, other) for one, other in zip(left, right, strict=True) if one.results == other.results)


def _words(trace: RankTrace, table: WindowTable, index: int) -> tuple[tuple[str, str], tuple[str, str]]:
    events = table.events
    return words_of(trace, int(events["user_frame"][index])), words_of(trace, int(events["library_frame"][index]))


def _execution(table: WindowTable, index: int, key: BoundaryKey) -> Execution:
    slots = [slot for slot in table.slots_of(index) if slot.status in (Status.PROBED, Status.CARRIED)]
    results = {slot.slot: _form(slot) for slot in slots if slot.direction in _RESULTS}
    return Execution(key, results, {slot.slot: _form(slot) for slot in slots if slot.direction == Direction.IN})


def _form(slot: SlotRow) -> tuple[str, str]:
    return slot.dtype, slot.shape
