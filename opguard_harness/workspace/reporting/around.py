"""The trace of a report: boundaries around the pivot, and every other difference that an answer names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opguard_core.errors import OpGuardError
from opguard_core.evidence.neighbourhood import Neighbourhood, Row, neighbourhood
from opguard_core.ids import SIDES
from opguard_harness.workspace.reporting.rows import Ranks, by_name, row
from opguard_harness.workspace.reporting.tables import Tables

AROUND = 200
BEYOND = 200
NAMED = 60
PIVOT = "pivot"
FIRST, CANDIDATE, HARMLESS = NAMES = ("first of its rank", "candidate", "ended without effect")
"""What a difference is that an answer names beside its pivot."""


def pivot_row(ranks: Ranks, tables: Tables, pivot: Mapping[str, Any], near: Neighbourhood | None) -> dict[str, Any]:
    """The pivot with the slots of both sides; as it was aligned where it is a pair there."""
    wanted = tuple(pivot["seq"].get(side) for side in SIDES)
    aligned = next((found for found in (near.rows if near is not None else ()) if found.seqs == wanted), None)
    return row(ranks, tables, aligned or by_name(ranks, pivot["seq"]))


def near(ranks: Ranks, boundary: Mapping[str, Any], around: int = AROUND) -> tuple[Neighbourhood | None, str]:
    """The neighbourhood of a boundary of an answer, or why there is none."""
    reference, suspect = ranks.traces
    if reference is None or suspect is None:
        return None, "Only one side has that rank, so nothing around it can be paired."
    try:
        found = neighbourhood(reference, suspect, boundary["seq"], around, BEYOND)
    except OpGuardError as error:
        return None, f"The traces around it cannot be paired: {error.message}"
    return found, "" if found is not None else "No step that both sides have holds it, so nothing around it can be paired."


def trace(
    tables: Tables, centre: tuple[Ranks, Mapping[str, Any], Neighbourhood | None] | None, problem: str, named: list[tuple[str, Ranks, Any]]
) -> dict[str, Any]:
    """All rows of a report.

    Args:
        tables: Where frames, stacks and sources are told.
        centre: Traces of the pivot, it, and what is around it; None without a pivot.
        problem: Why there is nothing around it.
        named: Other differences of the answer: what each is, its traces, and it.
    """
    is_pivot = centre is not None and not any(boundary is centre[1] for _, _, boundary in named)
    rows: list[dict[str, Any]] = []
    told: dict[str, Any] = {"window": None, "before": 0, "after": 0, "beyond": 0, "beyond_total": 0, "problem": problem}
    marks = _marks(named)
    seen: set[tuple[int, int | None, int | None]] = set()
    if centre is not None and centre[2] is not None:
        ranks, pivot, found = centre
        assert found is not None
        at = [number for number, entry in enumerate(found.rows) if number == found.at or _is_at(entry, pivot["seq"])]
        for number, entry in enumerate(found.rows):
            what = ([PIVOT] if number in at and is_pivot else []) + marks.get((ranks.numbers[1], *entry.seqs), [])
            rows.append({**row(ranks, tables, entry), "what": what, "section": "around"})
            seen.add((ranks.numbers[1], *entry.seqs))
        for entry in found.beyond:
            rows.append({**row(ranks, tables, entry), "what": marks.get((ranks.numbers[1], *entry.seqs), []), "section": "beyond"})
            seen.add((ranks.numbers[1], *entry.seqs))
        told.update(window=found.window, before=found.before, after=found.after, beyond=len(found.beyond), beyond_total=found.beyond_total)
    for name, ranks, boundary in named[:NAMED]:
        entry = by_name(ranks, boundary.get("seq") or {})
        key = (ranks.numbers[1], *entry.seqs)
        if key not in seen and entry.seqs != (None, None):
            seen.add(key)
            rows.append({**row(ranks, tables, entry), "what": [name], "section": "named"})
    counts = {name: sum(what == name for what, _, _ in named) for name in NAMES}
    return {**told, "rows": rows, "named": counts, "named_total": len(named)}


def _marks(named: list[tuple[str, Ranks, Any]]) -> dict[tuple[int, int | None, int | None], list[str]]:
    found: dict[tuple[int, int | None, int | None], list[str]] = {}
    for what, ranks, boundary in named:
        seqs = boundary.get("seq") or {}
        found.setdefault((ranks.numbers[1], seqs.get(SIDES[0]), seqs.get(SIDES[1])), []).append(what)
    return found


def _is_at(entry: Row, seqs: Mapping[str, int | None]) -> bool:
    """Whether a row is the pivot; a pivot whose sides are no pair is two rows."""
    wanted = (seqs.get(SIDES[0]), seqs.get(SIDES[1]))
    if entry.seqs == wanted:
        return True
    alone = None in entry.seqs or None in wanted
    return alone and any(number is not None and number == other for number, other in zip(entry.seqs, wanted, strict=True))
