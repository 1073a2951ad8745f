"""The trace: rows of both sides beside each other. The rows are in the markup; the script opens them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from opguard_harness.report.markup import Child, Markup, tag
from opguard_harness.report.page.parts import GLYPHS, SIDES, moved, plural, section, side_name

_WORDS = {"same": "equal", "differ": "differs", "unknown": "not looked at", "alone": "one side only", "told": "told"}
_MAP_WIDTH = 1000
_NEAR = 12  # rows before and after the pivot that are printed on paper, too


def trace(model: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Markup:
    """Boundaries around the pivot and every difference that the answer names."""
    told = model["trace"]
    if not rows:
        return section("trace", "Trace", tag("p", told["problem"] or "There is no row to show."))
    differing = sum(row["results"] in ("differ", "alone") for row in rows)
    cut = len(told["rows"]) - len(rows)
    notes = [
        f"{plural(len(rows), 'row')}, {differing} of them not equal. A row is one operator of each side that stand for each other.",
        _rest(told),
        _order(rows, model["pivot"]),
    ]
    notes += [f"{plural(cut, 'row')} were left out to keep this page small; report.json has them."] if cut else []
    notes += [told["problem"]] if told["problem"] else []
    head = tag("tr", [tag("th", cell, scope="col") for cell in ("", side_name("reference"), side_name("suspect"), "phase, module")])
    centre = next((at for at, row in enumerate(rows) if "pivot" in row["what"]), 0)
    body: list[Child] = []
    for name, group in groupby(enumerate(rows), key=lambda entry: entry[1]["section"]):
        title = {"around": "", "beyond": "Further differences of that step", "named": "Other differences that the answer names"}[name]
        body.append(tag("tr", tag("th", title, colspan=4, scope="colgroup"), class_="divider") if title else None)
        body += [_row(model, at, row, near=abs(at - centre) <= _NEAR or bool(row["what"])) for at, row in group]
    caption = tag("caption", "Boundaries in order, both sides paired", class_="hidden")
    table = tag("table", caption, tag("thead", head), tag("tbody", body), class_="rows")
    return section(
        "trace",
        "Trace",
        [tag("p", note) for note in notes],
        tag("p", "On paper: the rows next to the first difference, and those that the answer names.", class_="paper"),
        _map(rows),
        tag("div", id="tools", class_="tools", hidden=True),
        tag(
            "div",
            table,
            class_="window", id="window", role="region", aria_label="trace", tabindex="0",
        ),
        lead="What ran around the first difference.",
    )  # fmt: skip


def _order(rows: Sequence[Mapping[str, Any]], pivot: Mapping[str, Any] | None) -> str:
    """In which order rows stand, and those that the two sides do on different sides of the pivot."""
    order = "Rows stand in the order in which the suspect ran; work of the reference alone follows what it follows there."
    across = [side for row in rows if (side := moved(row, pivot))]
    if not across:
        return order
    sides = " and ".join(f"{across.count(side):,} on the {side}" for side in SIDES if side in across)
    return (
        f"{order} Work that comes before the first difference on one side and after it on the other is marked: {sides}. It may have fed it."
    )


def _rest(told: Mapping[str, Any]) -> str:
    """What of the pivot's step is not among the rows."""
    if told["window"] is None:
        return "They are the differences that the answer names."
    if not told["before"] and not told["after"]:
        return "These are all boundaries of that step."
    rest = f"That step has {plural(told['before'], 'more row')} before them and {told['after']:,} after them"
    if not told["beyond_total"]:
        return f"{rest}; none of them is known to differ."
    return f"{rest}; of the {told['beyond_total']:,} of those that are not equal, {told['beyond']:,} follow at the end."


def _row(model: Mapping[str, Any], at: int, row: Mapping[str, Any], *, near: bool) -> Markup:
    results = row["results"]
    what = row["what"]
    event = row["suspect"] or row["reference"]
    mark = tag(
        "td",
        tag("span", GLYPHS[results], aria_hidden="true"),
        tag("span", _WORDS[results], class_="hidden"),
        [tag("span", name, class_="tagged") for name in what],
        tag("span", f"before pivot on {early}", class_="tagged early") if (early := moved(row, model["pivot"])) else None,
        class_="mark",
    )
    where = tag("td", event["phase"], tag("span", event["module"], class_="sub") if event["module"] else None, class_="phase")
    kinds = f"r {results}{' pivot' if 'pivot' in what else ''}{' near' if near else ''}"
    return tag("tr", mark, [_cell(model, row[side]) for side in SIDES], where, class_=kinds, id=f"r{at}")


def _cell(model: Mapping[str, Any], event: Mapping[str, Any] | None) -> Markup:
    if event is None:
        return tag("td", class_="none", aria_label="nothing on this side")
    frame = None if event["frame"] is None else model["frames"][event["frame"]]
    return tag(
        "td",
        tag("span", str(event["seq"]), class_="seq"),
        tag("span", event["operator"], class_="op"),
        tag("span", f"{frame['file']}:{frame['line']}  {frame['text']}", class_="sub") if frame else None,
    )


def _map(rows: Sequence[Mapping[str, Any]]) -> Markup:
    """All rows in one strip: where the sides are equal and where not."""
    runs: list[Child] = []
    for kind, group in groupby(range(len(rows)), key=lambda at: "pivot" if "pivot" in rows[at]["what"] else rows[at]["results"]):
        members = list(group)
        first, width = (value * _MAP_WIDTH / len(rows) for value in (members[0], len(members)))
        runs.append(tag("rect", x=f"{first:.2f}", y="0", width=f"{max(width, 0.8):.2f}", height="24", class_=f"m {kind}"))
    bar = tag("svg", runs, viewBox=f"0 0 {_MAP_WIDTH} 24", preserveAspectRatio="none", role="img",
              aria_label="all rows in order: equal, differing, one side only, and the pivot", id="map")  # fmt: skip
    names = [
        ("same", "equal"),
        ("differ", "differs"),
        ("alone", "one side only"),
        ("unknown", "not looked at"),
        ("pivot", "first difference"),
    ]
    legend = tag("ul", [tag("li", tag("span", class_=f"key {kind}"), text) for kind, text in names], class_="legend")
    return tag("div", bar, legend, class_="mapped")
