"""The section about device work: which share of it has a boundary, by operator and kernel; the rest; kernels of one side only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opguard_harness.report import device_words
from opguard_harness.report.markup import Child, Markup, tag
from opguard_harness.report.page.parts import SIDES, code, facts, section, side_name, table

_RANKS = 8
_ROWS = 12


def device(model: Mapping[str, Any]) -> Markup | None:
    """Device work; nothing where neither run had a device."""
    work = model.get("device_work")
    if work is None:
        return None
    ranks = [(side, rank, told) for side in SIDES for rank, told in work[side].items()]
    more = len(ranks) - 2 * _RANKS
    return section(
        "device",
        "Device work",
        facts([(f"{side} rank {rank}", device_words.of_side({rank: told})) for side, rank, told in ranks[: 2 * _RANKS]]),
        tag("p", f"{more} more ranks are in report.json.", class_="extra") if more > 0 else None,
        _one_sided(work),
        [_rank(side, rank, told) for side, rank, told in ranks[: 2 * _RANKS] if told["watched"] and told["launches"]],
        lead="Kernels, copies and fills that each run gave to its device, and the boundary in flight. Kernels of a replayed graph count "
        "with the boundaries that captured them; a graph that was captured unseen counts once, whatever it holds.",
    )


def kernels(found: Mapping[str, Any]) -> Markup | None:
    """What the pivot launched on both sides; nothing where that was not recorded."""
    told = found.get("kernels")
    if told is None or told["how"] == "none":
        return None
    rows: list[list[Child]] = []
    for side in SIDES:
        launched = told[side]
        named: list[Child] = [tag("div", code(row["name"]), f" x{row['count']}") for row in launched or ()]
        named += [tag("div", f"and {told[f'{side}_more']} more")] if f"{side}_more" in told else []
        rows.append([side_name(side), named or ("nothing" if launched is not None else "not recorded, or no such operator")])
    return tag(
        "div",
        tag("h3", "Its kernels"),
        tag("p", f"What it gave to the device: {device_words.HOW[told['how']]}.", class_="lead"),
        table(("", "kernels"), rows, label="kernels of the first difference"),
    )


def _one_sided(work: Mapping[str, Any]) -> Markup | None:
    if not work["one_sided_total"]:
        return tag("p", "Every kernel ran on both sides.") if all(_seen(work[side]) for side in SIDES) else None
    rows: list[list[Child]] = [
        [side_name(row["only"]), code(row["name"]), f"{row['launches']:,}", ", ".join(row["operators"]) or "outside all boundaries"]
        for row in work["one_sided"]
    ]
    more = work["one_sided_total"] - len(rows)
    return tag(
        "div",
        tag("h3", "Kernels of one side only"),
        tag("p", "Leads, no verdict: what ran on one side and not on the other.", class_="lead"),
        table(("only", "kernel", "launches", "launched by"), rows, label="kernels of one side only"),
        tag("p", f"{more} more.", class_="extra") if more > 0 else None,
    )


def _seen(ranks: Mapping[str, Any]) -> bool:
    return bool(ranks) and all(told["watched"] for told in ranks.values())


def _rank(side: str, rank: str, told: Mapping[str, Any]) -> Markup:
    """One rank: by operator, by kernel, and what has no boundary."""
    operators: list[list[Child]] = [[code(row["operator"]), f"{row['launches']:,}", _time(row)] for row in told["operators"][:_ROWS]]
    kernels_: list[list[Child]] = [
        [code(row["name"]), f"{row['launches']:,}", f"{row['attributed']:,}", _time(row)] for row in told["kernels"][:_ROWS]
    ]
    loose = [tag("li", device_words.loose(row)) for row in told["unattributed"]]
    more = told["unattributed_total"] - len(loose)
    return tag(
        "details",
        tag("summary", side_name(side), f" rank {rank}: {told['operators_total']:,} operators, {told['kernels_total']:,} kernels"),
        table(("operator", "launches", "device time"), operators, label=f"device work by operator, {side} rank {rank}"),
        table(("kernel", "launches", "with a boundary", "device time"), kernels_, label=f"device work by kernel, {side} rank {rank}"),
        tag("h4", "Without a boundary"),
        tag("ul", loose, [tag("li", f"and {more} more kernels")] if more > 0 else None) if loose else tag("p", "None."),
    )


def _time(row: Mapping[str, Any]) -> str:
    return f"{row['device_ns'] / 1e6:,.1f} ms" if "device_ns" in row else ""
