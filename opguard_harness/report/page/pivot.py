"""The section about the pivot: both sources with the expression marked, both stacks, the tensors and the origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opguard_harness.report.markup import Child, Markup, tag
from opguard_harness.report.page.device import kernels
from opguard_harness.report.page.parts import (
    DIFFERENT,
    HOW,
    SIDES,
    code,
    evidence,
    place,
    section,
    side_name,
    table,
    tensor,
    term,
    unpaired_read,
)

_SLOTS_SHOWN = 8
_READS = "two different operators read it: not to be compared"
_STACK_SHOWN = 24


def pivot(model: Mapping[str, Any]) -> Markup:
    """The first difference; a sentence where there is none."""
    found = model["pivot"]
    if found is None:
        word = "No first difference is named" if model["verdict"] == "inconclusive" else "The sides do not differ"
        return section("pivot", "First difference", tag("p", f"{word}; what was compared, and its limits, are told below."))
    boundary = found["boundary"]
    return section(
        "pivot",
        "First difference",
        tag("div", [_side(model, boundary, side) for side in SIDES], class_="pair"),
        _tensors(boundary),
        kernels(found),
        _origin(found),
        tag("h3", "How each side got there"),
        tag("div", [_stack(model, boundary, side) for side in SIDES], class_="pair"),
        lead="The code that each run really executed, from its trace. The marked expression is where the first differing bytes appear.",
    )


def _side(model: Mapping[str, Any], boundary: Mapping[str, Any], side: str) -> Markup:
    event = boundary[side]
    if event is None:
        return tag("article", tag("h3", side_name(side)), tag("p", "This side has no such operator.", class_="none"), class_=f"card {side}")
    frame = None if event["frame"] is None else model["frames"][event["frame"]]
    extra = [("arguments", event["args"]), ("module", event["module"]), ("autograd", event["node"])]
    return tag(
        "article",
        tag("h3", side_name(side), " ", code(event["operator"])),
        tag("p", place(frame)),
        source(model, frame),
        tag("p", [[f"{name} ", code(text), " "] for name, text in extra if text], class_="extra"),
        tag("p", evidence(event["id"]), class_="extra"),
        class_=f"card {side}",
    )


def source(model: Mapping[str, Any], frame: Mapping[str, Any] | None) -> Markup | None:
    """Lines around a frame's expression; the expression alone where the trace does not hold them."""
    if frame is None:
        return tag("p", "No place in the source is recorded.", class_="none")
    if frame["source"] is None:
        return tag("pre", tag("span", tag("mark", frame["text"]), class_="line"), class_="source")
    lines = model["sources"][frame["source"]]["lines"]
    width = len(str(lines[-1]["number"]))
    return tag("pre", [_line(line, width) for line in lines], class_="source", tabindex="0", aria_label=f"source of {frame['file']}")


def _line(line: Mapping[str, Any], width: int) -> Markup:
    text, mark = line["text"], line["mark"]
    parts: list[Child] = [text] if mark is None else [text[: mark[0]], tag("mark", text[mark[0] : mark[1]]), text[mark[1] :]]
    return tag("span", tag("span", str(line["number"]).rjust(width), class_="number"), parts, "\n", class_="line hit" if mark else "line")


def _tensors(boundary: Mapping[str, Any]) -> Markup:
    slots = boundary["slots"][:_SLOTS_SHOWN]
    rows = []
    for slot in slots:
        name = (slot["suspect"] or slot["reference"] or {}).get("slot", "")
        loose = unpaired_read(boundary, slot)
        direction = {"in": "read", "out": "result", "mut": "written in place"}.get(slot["direction"], slot["direction"])
        rows.append(
            tag(
                "tr",
                tag("th", code(name), tag("span", direction, class_="sub"), scope="row"),
                [tag("td", tensor(slot[side]), tag("br"), code(slot[side]["digest"] or slot[side]["status"], "digest")) if slot[side] else
                 tag("td", "not there", class_="none") for side in SIDES],
                tag("td", _READS, class_="how unknown") if loose else tag("td", HOW[slot["how"]], class_="how " + slot["how"]),
                class_="different" if slot["how"] in DIFFERENT and not loose else None,
            )
        )  # fmt: skip
    head = tag("tr", [tag("th", cell, scope="col") for cell in ("tensor", side_name("reference"), side_name("suspect"), "bytes")])
    more = boundary["slots_total"] - len(slots)
    return tag(
        "div",
        tag("h3", "Its tensors"),
        tag("p", "Type, shape and 64-bit digest of the bytes, as each trace holds them.", class_="lead"),
        tag("div", tag("table", tag("thead", head), tag("tbody", rows), class_="tensors"), class_="scroll", role="region", tabindex="0",
            aria_label="tensors of the first difference"),
        tag("p", f"{more} more tensors of this operator are in report.json.", class_="extra") if more > 0 else None,
    )  # fmt: skip


def _origin(found: Mapping[str, Any]) -> Markup:
    others = found["alternatives"]
    return tag(
        "div",
        tag("h3", term("origin", "Origin"), ": ", code(found["origin"])),
        tag("p", f"It means: {found['means']}. What to look at: {found['look']}."),
        [
            tag("p", "Not ruled out:"),
            tag("ul", [tag("li", code(item["origin"]), f": {item['means']}") for item in others]),
        ]
        if others
        else None,
        _fed(found["fed"]),
    )


def _fed(items: Sequence[Mapping[str, Any]]) -> Markup | None:
    """Work that made what the pivot reads, and that the other side has nowhere, or only after it."""
    if not items:
        return None
    rows: list[list[Child]] = []
    for item in items:
        places = [tag("div", side_name(side), " ", tag("span", item[side], class_="place")) for side in SIDES if item[side]]
        ids = [tag("div", evidence(item["ids"][side])) for side in SIDES if item["ids"][side]]
        rows.append([item["what"], code(item["operator"]), places, ids])
    lead = "Work whose results it reads, and that the other side has nowhere, or does only after it."
    head = ("", "operator", "where", "evidence")
    return tag("div", tag("h3", "What fed it"), tag("p", lead, class_="lead"), table(head, rows, label="what fed the first difference"))


def _stack(model: Mapping[str, Any], boundary: Mapping[str, Any], side: str) -> Markup:
    event = boundary[side]
    if event is None or event["stack"] is None:
        return tag("div", tag("h4", side_name(side)), tag("p", "No stack is recorded.", class_="none"))
    whole = [model["frames"][number] for number in model["stacks"][event["stack"]]]
    frames = [frame for frame in whole if not _is_plumbing(frame)]
    shown = frames[-_STACK_SHOWN:]
    rows = [tag("li", place(frame), code(frame["text"]), class_="user" if frame["user"] else "library") for frame in shown]
    cut = len(frames) - len(shown)
    return tag(
        "div",
        tag("h4", side_name(side), ", innermost last"),
        tag("p", f"{cut} outer frames are not shown.", class_="extra") if cut else None,
        tag("ol", rows, class_="stack"),
        tag("p", f"{len(whole) - len(frames)} frames of PyTorch's module call are left out.", class_="extra") if whole != frames else None,
    )


def _is_plumbing(frame: Mapping[str, Any]) -> bool:
    """PyTorch's own frames between a module and its forward, which say nothing."""
    return not frame["user"] and frame["file"].endswith("torch/nn/modules/module.py") and frame["function"].endswith("call_impl")
