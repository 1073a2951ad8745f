"""What fed a pivot whose sides read the results of other work: work of one side alone, and work that the sides do in another order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from opguard_core.errors import TraceFormatError
from opguard_core.ids import SIDES
from opguard_harness.report.short import advice, means
from opguard_harness.workspace.reporting.rows import Ranks

ALONE, MOVED = "one side only", "in another order"
STRUCTURE = "structure"


def feeders(ranks: Ranks, pivot: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Boundaries that made what a pivot reads and that the other side has nowhere, or only after it; each with which of the two.

    Args:
        ranks: Its traces.
        pivot: As in an answer.
    """
    from opguard_core.certify.feeding import feeding, reordered

    reference, suspect = ranks.traces
    if reference is None or suspect is None or not pivot.get("seq"):
        return []
    try:
        return [
            *((ALONE, item) for item in feeding(reference, suspect, pivot)),
            *((MOVED, item) for item in reordered(reference, suspect, pivot)),
        ]
    except TraceFormatError:
        return []


def meaning(pivot: Mapping[str, Any], fed: Iterable[tuple[str, Mapping[str, Any]]], lone: int | None) -> tuple[str, str]:
    """What an origin means here, and what to look at.

    Args:
        pivot: As in an answer.
        fed: As of `feeders`.
        lone: Boundaries of its step that one side alone has, as far as they are shown; None where nothing could be paired.
    """
    origin = pivot["origin"]
    items = list(fed)
    kinds = {what for what, _ in items}
    own = {side for what, item in items for side in SIDES if what == ALONE and item["seq"].get(side) is not None}
    if origin == STRUCTURE and len(own) == len(SIDES):
        return (
            "each side comes to it by work that the other one lacks",
            "decide which of the two ways is meant, or whether both should give the same",
        )
    if origin != STRUCTURE or ALONE in kinds or None in (pivot["seq"].get(side) for side in SIDES):
        return means(pivot), advice(pivot)
    if MOVED in kinds:
        return (
            "both sides do the same work, in another order, so the same operator is fed different bytes",
            "decide which order is meant; what moved past this operator is named under it",
        )
    if lone == 0:
        return (
            "both sides run the same operators, and this one is fed the results of different ones",
            "compare what each side passes to it: another variable, view or slice",
        )
    return means(pivot), advice(pivot)


def told_slot(pivot: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The slot that tells how a pivot differs.

    The one that the answer names; where two different operators stand for each other, whose reads need not correspond, the first
    result that differs.

    Args:
        pivot: As in an answer.
        found: Its row, as a report has it.
    """
    operators = {found[side]["operator"] for side in SIDES if found[side] is not None}
    named = str(pivot["slot"])
    if len(operators) > 1 and named.startswith(("in.", "kw.")):
        results = [pair for pair in found["slots"] if pair["direction"] != "in" and pair["how"] not in ("equal", "unknown")]
        for pair in results:
            return str((pair["suspect"] or pair["reference"])["slot"])
    return named
