"""Both sides' device work beside each other: kernels that ran on one side only are leads, not verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from opguard_core.certify.devicework.coverage import SHOWN, Kernel, RankWork
from opguard_core.certify.devicework.names import told_apart
from opguard_core.ids import SIDES, Work

LEADS_SHOWN = 16
_RANKS_IN_FULL = 4
_SHOWN_OF_MANY = 3
_OPERATORS_SHOWN = 3
_RANKS_SHOWN = 16
_NAMELESS = (str(Work.COPY), str(Work.FILL))  # every run has some; what they move is compared where it is read

Works = Mapping[int, RankWork | None]
"""Device work by rank."""


def device_work(sides: tuple[Works, Works], pairs: Iterable[tuple[int, int]]) -> dict[str, Any] | None:
    """Device work of both sides as an answer has it.

    Args:
        sides: Of the reference, of the suspect.
        pairs: Ranks that stand for each other.

    Returns:
        ``reference`` and ``suspect`` by rank, ``one_sided`` and how many there are in all; None where no rank had a device.
    """
    if not any(work is not None for side in sides for work in side.values()):
        return None
    leads = _leads(sides, list(pairs))
    shown = SHOWN if max(map(len, sides)) <= _RANKS_IN_FULL else _SHOWN_OF_MANY
    told: dict[str, Any] = {
        name: {str(rank): work.to_dict(shown) for rank, work in side.items() if work is not None}
        for name, side in zip(SIDES, sides, strict=True)
    }
    return {**told, "one_sided": leads[:LEADS_SHOWN], "one_sided_total": len(leads)}


def _leads(sides: tuple[Works, Works], pairs: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Kernels of one side only, those with the most launches first; ranks without a record of both sides say nothing."""
    found: dict[tuple[str, Kernel], dict[str, Any]] = {}
    for left, right in pairs:
        works = sides[0].get(left), sides[1].get(right)
        if works[0] is None or works[1] is None or not (works[0].watched and works[1].watched):
            continue
        for side, own, other in ((SIDES[0], works[0], works[1]), (SIDES[1], works[1], works[0])):
            there = other.kernels
            for kernel, count in own.kernels.items():
                if kernel in there or kernel[0] in _NAMELESS:
                    continue
                lead = found.setdefault((side, kernel), {"only": side, "count": 0, "operators": {}, "ranks": []})
                lead["count"] += count
                lead["ranks"].append(right)
                lead["operators"].update(dict.fromkeys(name for name, works in own.by_operator.items() if kernel in works))
    names = told_apart(kernel for _, kernel in found)
    ordered = sorted(found.items(), key=lambda item: (-item[1]["count"], item[0]))
    return [
        {
            "name": names[kernel],
            "kernel": kernel[1],
            "kind": kernel[0],
            "only": lead["only"],
            "launches": lead["count"],
            "operators": list(lead["operators"])[:_OPERATORS_SHOWN],
            "ranks": lead["ranks"][:_RANKS_SHOWN],
        }
        for (_, kernel), lead in ordered
    ]
