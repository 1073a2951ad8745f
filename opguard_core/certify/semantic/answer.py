"""The answer's ``semantic``: at how many named boundaries two runs are equal, and at which they first are not.

It stands beside the operators' verdict and changes nothing of it. Where the insides of two code bases cannot be paired the verdict stays
`inconclusive`, and this is what is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from opguard_core.certify.places import Places, place_of
from opguard_core.certify.semantic import context
from opguard_core.certify.semantic.pairing import Group
from opguard_core.certify.semantic.slots import How, Pair, compare
from opguard_core.certify.semantic.walk import ENTRY_GRADIENT, EXIT, EXIT_GRADIENT, Asked, Found, Moment, before, walk
from opguard_core.certify.verdict import Pivot, Place
from opguard_core.ids import SIDES
from opguard_core.trace.reader import RankTrace, Run
from opguard_core.trace.schema import EventRow, SlotRow

EQUAL, DIFFERS, AMBIGUOUS, NOTHING = "equal", "differs", "ambiguous", "nothing-compared"
OUTCOMES = (EQUAL, DIFFERS, AMBIGUOUS, NOTHING)
INSIDE, BEFORE, INSIDE_BACKWARD, BEFORE_BACKWARD, UNCOMPARED, RAISED, UNSURE = (
    "inside",  # what it got is equal, what it gives is not
    "before",  # what it got, or a value, differs, and all named before is equal: it arises in between
    "inside-backward",  # the gradient of what it gave is equal, that of what it got is not
    "before-backward",  # the gradient of what it gave differs, and all named before is equal
    "entry-not-compared",  # what it gives differs, and of what it got nothing could be compared
    "raised",  # it raised on one side
    "unsure",  # tensors differ of which only their size says that they stand for each other
)
SHOWN = 16
SLOTS_SHOWN = 4
NAMES_SHOWN = 48


def semantic(reference: Run, suspect: Run, pairs: Iterable[tuple[int, int]], pivot: Pivot | None = None) -> dict[str, Any] | None:
    """Compare the named calls and values of two runs.

    Args:
        reference: The run that is taken to be right.
        suspect: The run under suspicion.
        pairs: Ranks of both that belong together.
        pivot: The operators' first difference, to tell in which named calls it lies.

    Returns:
        The answer's object; None if neither run has any, and no order asked for one.

    Raises:
        TraceFormatError: A trace holds what no trace may hold.
    """
    ranks = []
    for a, b in pairs:
        traces = reference.ranks[a], suspect.ranks[b]
        found = walk(*traces, b, a, _asked(pivot, b))
        if found is not None:
            ranks.append((found, traces))
    unused = _unused(reference, suspect)
    if not ranks and not unused:
        return None
    all_found = [found for found, _ in ranks]
    firsts = [(found, traces) for found, traces in ranks if found.first is not None and not found.doubt]
    firsts.sort(key=lambda item: (_window(item[0].first), item[0].rank))
    told = firsts[0] if firsts else None
    names = sorted({name for found in all_found for name in found.names})
    hows: Counter[How] = sum((found.moments for found in all_found), Counter())
    return {
        "outcome": _outcome(all_found),
        "boundaries": sum(found.calls for found in all_found),
        "names": names[:NAMES_SHOWN],
        "names_total": len(names),
        "records": {str(how): hows[how] for how in How if hows[how]},
        "tensors": sum(found.tensors for found in all_found),
        "steps": sorted({window for found in all_found for window in found.windows})[:NAMES_SHOWN],
        "prefix": _prefix(told[0] if told else None, all_found),
        "first": None if told is None else _first(*told),
        "later": [] if told is None else [_moment(told[0], moment) for moment in told[0].later],
        "only": {side: _alone(found.alone[at] for found in all_found) for at, side in enumerate(SIDES)},
        "uneven": [_group(found, *item) for found in all_found for item in found.uneven][:SHOWN],
        "ambiguous": [_group(found, *item) for found in all_found for item in found.ambiguous][:SHOWN],
        "reordered": sorted({name for found in all_found for name in found.reordered})[:SHOWN],
        "unused": unused,
        "around": _lies_in(all_found, pivot),
    }


def _asked(pivot: Pivot | None, rank: int) -> Asked:
    return (None, None) if pivot is None or pivot.rank != rank else (pivot.seq.reference, pivot.seq.suspect)


def _lies_in(found: list[Found], pivot: Pivot | None) -> dict[str, list[str]]:
    """By side, the named calls that the operators' first difference lies in, outermost first."""
    one = next((each for each in found if pivot is not None and each.rank == pivot.rank), None)
    return {side: [] if one is None else one.around[at][-SHOWN:] for at, side in enumerate(SIDES)}


def _outcome(found: list[Found]) -> str:
    if any(one.first is not None and not one.doubt and one.first.how.differs for one in found):
        return DIFFERS
    if any(one.doubt or one.first is not None for one in found):
        return AMBIGUOUS
    return EQUAL if any(one.prefix for one in found) else NOTHING


def _window(moment: Moment | None) -> int:
    return -1 if moment is None else moment.calls[0].first.event.window


def _prefix(first: Found | None, found: list[Found]) -> dict[str, Any]:
    """Equal moments of all ranks, each up to its own first difference; the last one of the rank that the answer tells of."""
    one = first or (found[0] if found else None)
    return {
        "records": sum(each.prefix for each in found),
        "tensors": sum(each.prefix_tensors for each in found),
        "last": None if one is None or one.last is None else _moment(one, one.last),
    }


def _moment(found: Found, moment: Moment) -> dict[str, Any]:
    event = moment.events[0].event
    return {
        "rank": found.rank,
        "step": event.window,
        "microbatch": event.microbatch,
        "phase": event.phase,
        "name": moment.name,
        "call": moment.number,
        "at": moment.at,
        "how": str(moment.how),
    }


def _first(found: Found, traces: tuple[RankTrace, RankTrace]) -> dict[str, Any]:
    moment = found.first
    assert moment is not None
    left, right = moment.calls
    entry = compare(left.entry_slots(), right.entry_slots())
    places = [_place(trace, call.first.event) for trace, call in zip(traces, moment.calls, strict=True)]
    gradient = moment.at == ENTRY_GRADIENT
    slots = _got(moment) if gradient else None
    differing = [pair for pair in moment.pairs if not pair.how.same]
    return {
        **_moment(found, moment),
        "kind": _kind(moment),
        "entry": str(entry.how),
        **({"gradient": str(before(moment))} if gradient else {}),
        "raised": {side: call.raised for side, call in zip(SIDES, moment.calls, strict=True) if call.raised},
        "slots": [_pair(pair) for pair in differing[:SLOTS_SHOWN]],
        "not_compared": {
            side: [slot.slot for slot in rest[:SHOWN]] for side, rest in zip(SIDES, (entry.reference_only, entry.suspect_only), strict=True)
        },
        "parameters": context.parameters(traces, moment.calls) if moment.at in (EXIT, ENTRY_GRADIENT) else context.UNKNOWN,
        **({"read_elsewhere": context.is_read_elsewhere(traces, moment.calls, slots)} if slots is not None else {}),
        "seq": {
            side: {"entry": call.seq, "record": record.seq} for side, call, record in zip(SIDES, moment.calls, moment.events, strict=True)
        },
        **{side: None if place is None else asdict(place) for side, place in zip(SIDES, places, strict=True)},
    }


def _place(trace: RankTrace, event: EventRow) -> Place | None:
    """Where a call is made: the innermost expression outside torch, of the program or of a library that is its code base."""
    frames = Places(trace, frozenset()).frames(-1 if event.stack is None else event.stack)
    return next((place_of(frame) for frame in reversed(frames) if frame.category in ("user", "library")), None)


def _kind(moment: Moment) -> str:
    if moment.how is How.UNSURE:
        return UNSURE
    if moment.calls[0].raised != moment.calls[1].raised and moment.at == EXIT:
        return RAISED
    if moment.at == EXIT_GRADIENT:
        return BEFORE_BACKWARD
    if moment.at == ENTRY_GRADIENT:
        return INSIDE_BACKWARD if before(moment).same else BEFORE_BACKWARD
    if moment.at == EXIT:
        return INSIDE if before(moment).same else UNCOMPARED
    return BEFORE


def _got(moment: Moment) -> tuple[SlotRow, SlotRow] | None:
    """The tensors that a gradient is of, as the calls got them."""
    pair = moment.pairs[0]
    sides = []
    for call, slot in zip(moment.calls, (pair.reference, pair.suspect), strict=True):
        sides.append(next((one for one in call.entry_slots() if f"grad_{one.slot}" == slot.slot), None))
    left, right = sides
    return None if left is None or right is None else (left, right)


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "how": str(pair.how),
        **{
            side: {"slot": slot.slot, "dtype": slot.dtype, "shape": slot.shape}
            for side, slot in zip(SIDES, (pair.reference, pair.suspect), strict=True)
        },
    }


def _alone(counts: Iterable[Counter[str]]) -> list[dict[str, Any]]:
    total: Counter[str] = sum(counts, Counter())
    return [{"name": name, "calls": calls} for name, calls in sorted(total.items())][:SHOWN]


def _group(found: Found, window: int, group: Group) -> dict[str, Any]:
    """How often each side makes a call."""
    paired = len(group.pairs)
    return {
        "rank": found.rank,
        "step": window,
        "microbatch": group.key.microbatch,
        "phase": group.key.phase,
        "name": group.key.name,
        "paired": paired,
        "reference": paired + len(group.reference_only) + len(group.ambiguous[0]),
        "suspect": paired + len(group.suspect_only) + len(group.ambiguous[1]),
    }


def _unused(reference: Run, suspect: Run) -> list[dict[str, str]]:
    """Orders that named nothing on either side, with the reason if one is known."""
    used: Counter[str] = Counter()
    why: dict[str, str] = {}
    for run in (reference, suspect):
        for trace in run.ranks.values():
            told = trace.manifest.engines.get("semantic")
            patterns = told.get("patterns") if isinstance(told, dict) else None
            for text, facts in patterns.items() if isinstance(patterns, dict) else ():
                if isinstance(facts, dict):
                    used[text] += facts["calls"] if type(facts.get("calls")) is int else 0
                    why.setdefault(text, str(facts.get("why") or ""))
    return [{"pattern": text, "why": why[text]} for text, calls in sorted(used.items()) if not calls][:SHOWN]
