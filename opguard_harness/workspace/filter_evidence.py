"""From the evidence of an answer to the filter it speaks for: the boundary itself says place and operator.

Evidence is an id as tools give it (``ev:<trace12>/<rank>/<seq>``), one of the shell (``suspect:0:57``: side, rank, event), or a URI
(``TRACE#rank=0&seq=57``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from opguard_core.align.vocabulary import fold_operator
from opguard_core.certify.filters import Filter, parse_filter
from opguard_core.certify.places import ChangedFiles, Places
from opguard_core.certify.verdict import Place
from opguard_core.errors import EvidenceNotFound, FilterInvalid
from opguard_core.evidence.refs import FIELDS, EventRef, is_reference, parse
from opguard_core.ids import SIDES
from opguard_core.trace.reader import Run
from opguard_harness.workspace.evidence import digest_of

_ID = re.compile(r"(reference|suspect):(\d{1,9}):(\d{1,18})")
_URI = re.compile(r"(.+)#rank=(\d{1,9})&seq=(\d{1,18})", re.DOTALL)
_NAMED = 8


@dataclass(frozen=True)
class Cited:
    """One boundary of one side that an answer's evidence names.

    Attributes:
        side: "reference" or "suspect".
        uri: Where it is recorded.
        operator: Its operator.
        slots: Names of its slots, in order.
        place: Its source place, None where none was recorded.
    """

    side: str
    uri: str
    operator: str
    slots: tuple[str, ...]
    place: Place | None


def cite(answer: dict[str, Any], evidence: str) -> Cited:
    """Look up a piece of evidence of a comparison.

    Args:
        answer: The stored answer of the comparison.
        evidence: An id or URI.

    Raises:
        EvidenceNotFound: It is neither, belongs to another comparison, or names no recorded boundary.
        TraceFormatError: The trace cannot be read.
    """
    side, rank, seq = _parsed(answer["trace"], evidence)
    runs = {name: Run.open(answer["trace"][name]) for name in SIDES}
    traces = [run.ranks.get(rank) for run in runs.values()]
    trace = runs[side].ranks.get(rank)
    found = None if trace is None else trace.event_at(seq)
    if trace is None or found is None:
        raise EvidenceNotFound(
            f"Evidence {evidence!r}: the {side}'s trace records no event {seq} of rank {rank}.", hint="Take ids from the answer."
        )
    event, slots = found
    changed = ChangedFiles.of(*(other or trace for other in traces)).changed
    numbers = (-1 if number is None else number for number in (event.stack, event.user_frame, event.library_frame))
    uri = f"{answer['trace'][side]}#rank={rank}&seq={seq}"
    return Cited(side, uri, event.operator, tuple(slot.slot for slot in slots), Places(trace, changed).place(*numbers))


def filter_of(answer: dict[str, Any], evidence: list[str], slot: str, reason: str, author: str = "") -> Filter:
    """The filter for one slot of the boundary that evidence shows.

    Args:
        answer: The stored answer of the comparison.
        evidence: One id or URI of either side, or one of each; with both, both places have to fit.
        slot: The slot that differs.
        reason: Why it is harmless.
        author: Who says so.

    Raises:
        EvidenceNotFound: Evidence does not resolve in that comparison.
        FilterInvalid: It does not make a filter of one place, operator and slot.
    """
    cited = [cite(answer, item) for item in dict.fromkeys(evidence)]
    by_side = {item.side: item for item in cited}
    if not cited or len(by_side) != len(cited):
        raise FilterInvalid("A filter needs one piece of evidence, or one of each side.", hint="Give ids such as ev:0123456789ab/0/57.")
    if len({fold_operator(item.operator) for item in cited}) > 1:
        raise FilterInvalid(f"The evidence shows two operators: {' and '.join(item.operator for item in cited)}.", hint="Name one side.")
    for item in cited:
        if slot not in item.slots:
            raise FilterInvalid(
                f"{item.operator} at {item.uri} has no slot {slot[:80]!r}; it has {', '.join(item.slots[:_NAMED]) or 'none'}."
            )
        if item.place is None:
            raise FilterInvalid(f"No source place was recorded for {item.uri}, so no filter can name it.")
    return parse_filter(
        {
            "operator": cited[-1].operator,
            "slot": slot,
            **{side: {key: getattr(item.place, key) for key in ("file", "function", "text")} for side, item in by_side.items()},
            "reason": reason,
            "evidence": [item.uri for item in cited],
            "created": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "author": author,
        }
    )


def references_of(answer: dict[str, Any], evidence: list[str], slot: str) -> list[EventRef]:
    """Evidence of an answer, in whichever form it was given, under the ids that `get_evidence` takes."""
    found = []
    for side, rank, seq in (_parsed(answer["trace"], item) for item in dict.fromkeys(evidence)):
        found.append(EventRef(digest_of(Path(answer["trace"][side])), rank, seq, slot))
    return found


def slot_named(evidence: list[str]) -> str:
    """The one slot that evidence ids name, such as ``out.0`` of ``ev:.../57/out.0``; empty if they name none, or several."""
    parts = {reference.part for reference in map(_event, evidence) if reference is not None and reference.part not in ("", *FIELDS)}
    return parts.pop() if len(parts) == 1 else ""


def _event(evidence: str) -> EventRef | None:
    """The boundary that an evidence id names; None for other forms of evidence."""
    if not is_reference(evidence):
        return None
    reference = parse(evidence)
    if not isinstance(reference, EventRef):
        raise EvidenceNotFound(f"{evidence[:80]!r} is no boundary of a trace.", hint="Give an ev: id of the answer.")
    return reference


def _parsed(traces: dict[str, str], evidence: str) -> tuple[str, int, int]:
    """Side, rank and event of a piece of evidence."""
    reference = _event(evidence)
    if reference is not None:
        return _side_of(traces, reference), reference.rank, reference.seq
    named = _ID.fullmatch(evidence)
    if named:
        return named[1], int(named[2]), int(named[3])
    cited = _URI.fullmatch(evidence)
    if not cited:
        raise EvidenceNotFound(f"{evidence[:80]!r} is no evidence of an answer.", hint="Give an id such as ev:0123456789ab/0/57.")
    for side in SIDES:
        if Path(traces[side]) == Path(cited[1]):
            return side, int(cited[2]), int(cited[3])
    raise EvidenceNotFound(f"{evidence!r} is not in a trace of this comparison.", hint="Name the comparison that gave it.")


def _side_of(traces: dict[str, str], reference: EventRef) -> str:
    """The side whose trace an evidence id names."""
    sides = [side for side in SIDES if digest_of(Path(traces[side])).startswith(reference.trace)]
    if len(sides) == 1:
        return sides[0]
    if sides:
        raise EvidenceNotFound(f"{reference}: both sides are copies of one trace.", hint=f"Say suspect:{reference.rank}:{reference.seq}.")
    raise EvidenceNotFound(f"{reference} is in neither trace of this comparison.", hint="Name the comparison that gave it.")
