"""The section about named boundaries: how far both runs are equal at them, and the first that differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opguard_harness.report import semantic_words
from opguard_harness.report.markup import Child, Markup, tag
from opguard_harness.report.page.parts import SIDES, code, facts, section, side_name, table

_NAMES = 48


def semantic(model: Mapping[str, Any]) -> Markup | None:
    """Named boundaries; nothing where neither run has any."""
    told = model.get("semantic")
    if told is None:
        return None
    records = ", ".join(f"{count:,} {how}" for how, count in told["records"].items())
    more = told["names_total"] - len(told["names"][:_NAMES])
    names = ", ".join(told["names"][:_NAMES]) + (f" and {more} more" if more > 0 else "")
    return section(
        "semantic",
        "Named boundaries",
        tag("p", f"{semantic_words.sentence(told)}."),
        _first(told["first"]),
        tag("ul", [tag("li", fact) for fact in semantic_words.facts(told)]),
        facts([("calls compared", f"{told['boundaries']:,}"), ("entries, exits, values, gradients", records), ("names", names)]),
        lead="Calls and values that the programs, or an order, give a name. They stand beside the verdict, which is that of the operators, "
        "and change nothing of it; two code bases whose operators do not pair can be compared at them.",
    )


def _first(first: Mapping[str, Any] | None) -> Markup | None:
    if first is None:
        return None
    rows: list[list[Child]] = []
    for side in SIDES:
        place = first[side]
        where: Child = "no place is recorded"
        if place is not None:
            where = tag("div", f"{place['file']}:{place['line']} in {place['function']}", tag("div", code(place["text"])))
        slots = [
            tag("div", code(pair[side]["slot"]), f" {pair[side]['dtype']}[{pair[side]['shape']}], {pair['how']}") for pair in first["slots"]
        ]
        rows.append([side_name(side), where, slots or "no tensor", code(first["ids"][side])])
    return table(("", "called at", "what differs", "evidence"), rows, label="first named boundary that differs")
