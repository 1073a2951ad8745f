"""What lies around the first differences of a stored answer, rank by rank, read again from the traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from opguard_core.errors import TraceFormatError
from opguard_core.ids import SIDES
from opguard_harness.answer.ranks import rank_on

if TYPE_CHECKING:
    from opguard_core.trace.reader import RankTrace, Run

RANKS_READ = 16
"""Ranks whose own first differences are looked at; the answer names the others."""

_OLD = "The answer was made by an older release and does not number its events; compare again."
_NOT_HELD = "No step that both sides have holds the first difference, so nothing around it can be paired."

T = TypeVar("T")


def surroundings(answer: dict[str, Any], shown: int) -> dict[str, Any]:
    """Boundaries before the pivot, its spread in full, and how the first difference of each other rank goes on there.

    Args:
        answer: A checked answer with a pivot.
        shown: Boundaries to name on each list.

    Returns:
        ``before``, ``spread`` and ``ranks``; or ``problem`` alone: why the traces do not show them. An entry of ``ranks`` has
        ``first`` (the boundary) and ``spread``, or ``first`` and ``problem``.
    """
    from opguard_core.certify.surroundings import around

    pivot = answer["pivot"]
    if not pivot.get("seq"):
        return {"problem": _OLD}
    try:
        runs = _runs(answer)
        found = _of_rank(answer, runs, pivot["rank"], lambda reference, suspect: around(reference, suspect, pivot, shown))
    except TraceFormatError as error:
        return {"problem": f"The traces cannot be read any more: {error.message}"}
    if found is None:
        return {"problem": _NOT_HELD}
    others = [first for first in answer["rank_firsts"] if first["rank"] != pivot["rank"]]
    return {**found, "ranks": [_other_rank(answer, runs, first, shown) for first in others[:RANKS_READ]]}


def first_of_lanes(answer: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """The first difference of each thread of each rank, in the step of that rank's first difference.

    Args:
        answer: A checked answer.

    Returns:
        Boundaries by rank and thread, those that the answer names itself left out; and what could not be looked at.
    """
    from opguard_core.certify.surroundings import lane_firsts

    firsts = [first for first in _firsts(answer) if first.get("seq")]
    known = {(first["rank"], *_seqs(first)) for first in firsts}
    found: list[dict[str, Any]] = []
    notes = [f"Threads of {len(firsts) - RANKS_READ} further ranks were not looked at."] if len(firsts) > RANKS_READ else []
    try:
        runs = _runs(answer) if firsts else []
        for first in firsts[:RANKS_READ]:
            lanes = _of_rank(answer, runs, first["rank"], partial(lane_firsts, first=first))
            found += [lane for lane in lanes or [] if (lane["rank"], *_seqs(lane)) not in known]
    except TraceFormatError as error:
        notes.append(f"The threads cannot be looked at, for the traces cannot be read any more: {error.message}")
    return found, notes


def _firsts(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The first difference of each rank, the pivot's rank first."""
    pivot = answer["pivot"]
    return [*([pivot] if pivot else []), *(item for item in answer["rank_firsts"] if pivot is None or item["rank"] != pivot["rank"])]


def _seqs(boundary: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(boundary["seq"].get(side) for side in SIDES)


def _runs(answer: Mapping[str, Any]) -> list[Run]:
    from opguard_core.trace.reader import Run

    return [Run.open(Path(answer["trace"][side])) for side in SIDES]


def _of_rank(answer: Mapping[str, Any], runs: list[Run], rank: int, look: Callable[[RankTrace, RankTrace], T]) -> T | None:
    """What both traces of a rank show; None where a side has no such rank."""
    reference, suspect = (run.ranks.get(rank_on(answer, side, rank)) for side, run in zip(SIDES, runs, strict=True))
    return None if reference is None or suspect is None else look(reference, suspect)


def _other_rank(answer: Mapping[str, Any], runs: list[Run], first: dict[str, Any], shown: int) -> dict[str, Any]:
    """How the first difference of another rank goes on."""
    from opguard_core.certify.surroundings import around

    if not first.get("seq"):
        return {"first": first, "problem": _OLD}
    try:
        found = _of_rank(answer, runs, first["rank"], lambda reference, suspect: around(reference, suspect, first, shown))
    except TraceFormatError as error:
        return {"first": first, "problem": f"The traces of that rank cannot be read any more: {error.message}"}
    return {"first": first, "spread": found["spread"]} if found is not None else {"first": first, "problem": _NOT_HELD}
