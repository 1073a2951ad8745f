"""Device work in results: the kernels of a boundary, and which share of all work has a boundary."""

from __future__ import annotations

from typing import Any

from opguard_core.evidence.refs import EventRef
from opguard_core.ids import SIDES
from opguard_harness.access.untrusted import one_line
from opguard_harness.interface.declaration import Evidence
from opguard_harness.report import device_words
from opguard_harness.tools.answers import Found
from opguard_harness.tools.budget import within
from opguard_harness.tools.shown import shown
from opguard_harness.workspace.evidence import evidence

_PART = "kernels"
_SAME = ("equal", "none")
_QUOTE_CHARS = 100
_LEADS_CHARS = 1_200


def kernels_of(found: Found, pivot: dict[str, Any], detail: int) -> dict[str, Any]:
    """Kernels of the pivot: how they differ, and each side's, or ``both`` where they are equal; nothing where none were recorded.

    Args:
        found: The answer.
        pivot: Of an answer.
        detail: How much room there is: kernels to name are twice that, none below 0.
    """
    told = pivot.get("kernels")
    if told is None or told["how"] == "none":
        return {}
    if detail < 0:
        return {"kernels": {"how": told["how"]}}
    most, chars = min(max(2 * detail, 1), 8), 130 if detail > 1 else 60
    rows = {side: shown(device_words.listed(told[side], most), chars) for side in SIDES if told[side] is not None}
    if told["how"] == "equal":
        return {"kernels": {"how": "equal", "both": rows[SIDES[0]][: max(detail, 1)]}}
    return {"kernels": {"how": told["how"], **rows, **({"id": id_} if (id_ := _id(found, pivot)) else {})}}


def kernels_cited(found: Found, pivot: dict[str, Any]) -> list[Evidence]:
    """Evidence of the kernels of a pivot where they differ, of the suspect's side or the reference's where that has nothing."""
    told, text = pivot.get("kernels"), _id(found, pivot)
    if told is None or told["how"] in _SAME or not text:
        return []
    side = SIDES[1] if found.event_id(SIDES[1], pivot) else SIDES[0]
    quote = one_line(f"{side}: {', '.join(device_words.listed(told[side], 2))}", _QUOTE_CHARS)
    return [evidence(EventRef(found.digests[side], found.ranks(pivot)[side], pivot["seq"][side], _PART), quote)]


def _id(found: Found, pivot: dict[str, Any]) -> str:
    return found.event_id(SIDES[1], pivot, _PART) or found.event_id(SIDES[0], pivot, _PART)


def shares(answer: dict[str, Any]) -> dict[str, str]:
    """Which share of each side's device work has a boundary; nothing where there was no device."""
    work = answer.get("device_work") or {}
    return {side: shown(text, 300) for side in SIDES if side in work and (text := device_words.of_side(work[side]))}


def short_notes(answer: dict[str, Any]) -> list[str]:
    """That not all device work has a boundary, or was recorded; nothing where it has."""
    work = answer.get("device_work")
    if work is None or all(device_words.is_whole(work[side]) for side in SIDES):
        return []
    return [f"Device work with a boundary: {shown(device_words.in_short(work), 300)}; the answer's `device_work` names the rest."]


def leads_of(answer: dict[str, Any], most: int) -> dict[str, Any]:
    """Shares, and kernels that ran on one side only: something to look at, no verdict."""
    work = answer.get("device_work")
    if work is None:
        return {}
    rows = within([shown(device_words.lead(row), 240) for row in work["one_sided"][:most]], _LEADS_CHARS)
    return {**shares(answer), **({"one_sided": rows, "one_sided_total": work["one_sided_total"]} if work["one_sided_total"] else {})}
