"""The other side of a place in a comparison: from an event or a line of one run to what the other run executed instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from opguard_core.errors import OpGuardError, TraceFormatError
from opguard_core.evidence.refs import EventRef
from opguard_core.evidence.source import Place
from opguard_core.ids import SIDES
from opguard_harness.answer.ranks import reference_ranks
from opguard_harness.workspace.evidence import Recorded, digest_of, recorded_in
from opguard_harness.workspace.facts import frame_of, lines_of
from opguard_harness.workspace.source_changes import Held, held_named
from opguard_harness.workspace.stored import ANSWER_FILE, answer_of, folder_of


def comparison_named(name: str) -> dict[str, Any] | None:
    """The answer of a comparison; None if that name is a run."""
    return answer_of(name) if name and (folder_of(name) / ANSWER_FILE).exists() else None


def held_by(found: Recorded, comparison: str) -> Held | None:
    """The source that an event ran."""
    frame = frame_of(found, comparison)
    held = None if frame is None else lines_of(found.run, frame)
    if frame is None or held is None:
        return None
    lines, text = held
    place = Place(text, frame.file, lines.first, lines.last, frame.column, frame.end_column, frame.function)
    return Held(place, lines.digest)


def both_by_event(answer: Mapping[str, Any], comparison: str, found: Recorded) -> dict[str, Held]:
    """The source of an event and of its partner, by side; without a partner, of the function of that name.

    Raises:
        TraceFormatError: A trace cannot be read.
    """
    own = _side_of(answer, found.trace)
    mine = held_by(found, comparison)
    if own is None or mine is None:
        return {}
    other = SIDES[1 - SIDES.index(own)]
    trace = Path(answer["trace"][other])
    rank = _other_rank(answer, own, found.number)
    seq = _partner(answer, own, found, rank)
    theirs = None
    if seq is not None:
        try:
            theirs = held_by(recorded_in(trace, EventRef(digest_of(trace), rank, seq)), comparison)
        except OpGuardError:
            theirs = None  # the trace has gone since: what is there of the other run is looked up by name
    theirs = theirs or held_named(trace, mine.place)
    return {own: mine, **({other: theirs} if theirs is not None else {})}


def both_by_name(answer: Mapping[str, Any], own: str, mine: Held) -> dict[str, Held]:
    """The source of a place of one side, and the function of that name of the other."""
    other = SIDES[1 - SIDES.index(own)]
    theirs = held_named(Path(answer["trace"][other]), mine.place)
    return {own: mine, **({other: theirs} if theirs is not None else {})}


def side_holding(answer: Mapping[str, Any], digest: str) -> str | None:
    """The side that executed a text; the suspect where both did."""
    from opguard_core.trace.reader import Run

    for side in reversed(SIDES):
        try:
            ranks = Run.open(Path(answer["trace"][side])).ranks
        except TraceFormatError:
            continue
        if any((rank.frames.columns["source"] == digest).any() for rank in ranks.values()):
            return side
    return None


def _side_of(answer: Mapping[str, Any], trace: Path) -> str | None:
    """The side whose trace that is, or a copy of it."""
    for side in reversed(SIDES):
        there = Path(answer["trace"][side])
        if there == trace:
            return side
    try:
        digest = digest_of(trace)
        return next((side for side in reversed(SIDES) if digest_of(Path(answer["trace"][side])) == digest), None)
    except OpGuardError:
        return None


def _other_rank(answer: Mapping[str, Any], own: str, rank: int) -> int:
    mapped = reference_ranks(answer)
    if own == SIDES[0]:
        mapped = {reference: suspect for suspect, reference in mapped.items()}
    return mapped.get(rank, rank)


def _partner(answer: Mapping[str, Any], own: str, found: Recorded, rank: int) -> int | None:
    """The other side's event; as the answer names it, else as it is paired now."""
    from opguard_core.certify.surroundings import partner
    from opguard_core.trace.reader import Run

    other = SIDES[1 - SIDES.index(own)]
    number = found.number if own == SIDES[1] else rank
    for named in _boundaries(answer):
        seqs = named.get("seq") or {}
        if named.get("rank") == number and seqs.get(own) == found.event.seq:
            seq: int | None = seqs.get(other)
            return seq
    try:
        theirs = Run.open(Path(answer["trace"][other])).ranks.get(rank)
        traces = (found.rank, theirs) if own == SIDES[0] else (theirs, found.rank)
        return None if traces[0] is None or traces[1] is None else partner(traces[0], traces[1], own, found.event.seq)
    except TraceFormatError:
        return None


def _boundaries(answer: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Boundaries that an answer names, each with its rank."""
    pivot = answer["pivot"]
    if pivot:
        yield pivot
        yield from ({"rank": pivot["rank"], **item} for item in (*pivot["near"], *((answer.get("spread") or {}).get("consumers", []))))
    yield from (*answer["rank_firsts"], *answer.get("candidates", []), *answer["isolated"])
