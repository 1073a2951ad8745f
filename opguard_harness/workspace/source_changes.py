"""Both sides of a boundary as code: the functions that each run executed there, and what changed between them.

Texts are those that the runs stored, found by the digest that the boundary's own frame names; what lies on disk now plays no part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opguard_core.errors import EvidenceNotFound, TraceFormatError
from opguard_core.evidence.source import Comparison, Function, Place, compare_sources
from opguard_core.ids import SIDES
from opguard_harness.access.untrusted import one_line
from opguard_harness.answer.ranks import rank_on
from opguard_harness.workspace.executed import executed_source

if TYPE_CHECKING:
    from opguard_core.trace.reader import RankTrace, Run

CHANGES = 40
TEXT_CHARS = 200


@dataclass(frozen=True)
class Held:
    """A place with the text it is in, and the digest that text is stored under."""

    place: Place
    digest: str


def source_changes(answer: Mapping[str, Any], boundary: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Compare the functions around a boundary of an answer.

    Args:
        answer: The answer of a comparison.
        boundary: One of its boundaries; None for the pivot. A side that has nothing there is looked up by file and function.

    Returns:
        ``method``, ``same``, ``notes``, ``functions`` and ``digests`` by side, ``changes`` and how many ``more`` there are: plain
        values whose texts are redacted, and are what the runs wrote.

    Cost: reads both traces' frames and two files, and parses them.
    """
    told = answer["pivot"] if boundary is None else boundary
    held = sides_of(answer, told) if told is not None else {}
    return as_dict(held, compared(held))


def sides_of(answer: Mapping[str, Any], boundary: Mapping[str, Any]) -> dict[str, Held]:
    """The source of each side of a boundary, where it is stored."""
    ranks = {side: rank_on(answer, side, boundary["rank"]) for side in SIDES}
    found = {}
    for side in SIDES:
        place = boundary.get(side)
        held = None if place is None else held_at(Path(answer["trace"][side]), ranks[side], place)
        if held is not None:
            found[side] = held
    for side, other in (SIDES, SIDES[::-1]):
        if side not in found and other in found:
            held = held_named(Path(answer["trace"][side]), found[other].place)
            if held is not None:
                found[side] = held
    return found


def compared(held: Mapping[str, Held]) -> Comparison:
    """Compare what is there of both sides."""
    first, second = (held[side].place if side in held else None for side in SIDES)
    return compare_sources(first, second)


def held_at(trace: Path, rank: int, place: Mapping[str, Any]) -> Held | None:
    """The text that a place of an answer is in; None where the trace has gone or does not hold it."""
    from opguard_core.trace.reader import Run

    try:
        run = Run.open(trace)
        digest = _digest_at(run.ranks.get(rank), place)
        text, digest = _text(run, trace, digest, place["file"])
    except (TraceFormatError, EvidenceNotFound):
        return None
    known = ("file", "line", "end_line", "column", "end_column", "function")
    return Held(Place(text, **{key: place[key] for key in known}), digest)


def held_named(trace: Path, other: Place) -> Held | None:
    """The function of the same name in the file of the same name of another run; None where there is none."""
    from opguard_core.evidence.source.enclosing import enclosing

    found = enclosing(other)
    if found is None:
        return None
    try:
        stored = executed_source(trace, other.file)
    except (TraceFormatError, EvidenceNotFound):
        return None
    name = found.function.name
    place = Place(stored.text, other.file, 0, 0, 0, 0, name)
    if enclosing(place) is None and not name.startswith("<"):
        return None
    return Held(place, stored.digest)


def as_dict(held: Mapping[str, Held], found: Comparison, limit: int = CHANGES) -> dict[str, Any]:
    """A comparison of two functions in plain form."""
    functions = {
        side: None if function is None or side not in held else _function(held[side], function)
        for side, function in zip(SIDES, found.functions, strict=True)
    }
    changes = [
        {
            "kind": change.kind.value,
            "before": one_line(change.before, TEXT_CHARS),
            "after": one_line(change.after, TEXT_CHARS),
            "reference": list(change.reference) if change.reference else None,
            "suspect": list(change.suspect) if change.suspect else None,
            "within": one_line(change.within, TEXT_CHARS),
        }
        for change in found.changes[:limit]
    ]
    return {
        "method": found.method,
        "same": found.same,
        "notes": list(found.notes),
        "functions": functions,
        "changes": changes,
        "more": len(found.changes) - len(changes),
    }


def _function(held: Held, function: Function) -> dict[str, Any]:
    return {
        "file": one_line(held.place.file, TEXT_CHARS),
        "digest": held.digest,
        "name": one_line(function.name, TEXT_CHARS),
        "first": function.first,
        "last": function.last,
        "mark": list(function.mark) if function.mark else None,
    }


def _digest_at(rank: RankTrace | None, place: Mapping[str, Any]) -> str:
    """Digest of the text that the frame of a place names; empty where no frame of that rank is there."""
    if rank is None:
        return ""
    columns = rank.frames.columns
    fits = (columns["file"] == place["file"]) & (columns["line"] == place["line"])
    digests = [str(digest) for digest in columns["source"][fits].tolist() if digest]
    return digests[0] if digests else ""


def _text(run: Run, trace: Path, digest: str, file: str) -> tuple[str, str]:
    if digest:
        return run.source(digest), digest
    found = executed_source(trace, file)
    return found.text, found.digest
