"""The top of the page: the verdict in a sentence, and what, where, how much and how sure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opguard_harness.report.markup import Child, Markup, join, tag
from opguard_harness.report.page.damage import extent, replayed, telling_first
from opguard_harness.report.page.parts import (
    DIFFERENT,
    HOW,
    KINDS,
    SIDES,
    code,
    kind_of,
    number,
    operators,
    place,
    plural,
    side_name,
    tensor,
    term,
    unpaired_read,
)

REACHED = {
    "loss": "the loss",
    "update": "work of the optimizer phase",
    "collective": "a collective",
    "read": "a value that leaves for Python",
}
_PHASES = {
    "data": "while data is loaded",
    "forward": "in the forward pass",
    "recompute": "in the recomputed forward pass",
    "backward": "in the backward pass",
    "collective": "in a collective",
    "optimizer": "in the optimizer",
    "state": "in the state",
    "eval": "in evaluation",
}
_LEVELS = {"good": "\u2713", "note": "\u2013", "warn": "!"}


def headline(model: Mapping[str, Any]) -> Markup:
    """Verdict and symptom."""
    case = model["case"]
    return join(
        (
            tag("p", "OpGuard report ", tag("span", case["id"], class_="id"), class_="kicker"),
            tag("h1", tag("span", model["verdict"], class_=f"verdict {model['verdict']}"), " ", tag("span", _sentence(model))),
            tag("p", tag("span", "Symptom, as it was told: ", class_="muted"), case["symptom"] or "none was told"),
        )
    )


def contents(names: Sequence[tuple[str, str]]) -> Markup:
    """Links to the sections."""
    return tag("nav", [tag("a", name, href=f"#{target}") for name, target in names], aria_label="Sections")


def summary(model: Mapping[str, Any]) -> Markup:
    """The four answers."""
    cards = [_card("What differs", _what(model)), _card("Where", _where(model)), _card("By how much", _how_much(model))]
    sure = tag("ul", [_point(item) for item in model["confidence"]], class_="points")
    return tag("section", tag("h2", "In short", class_="hidden"), *cards, _card("How sure", sure, wide=True), class_="short", id="short")


def _card(title: str, *children: Child, wide: bool = False) -> Markup:
    return tag("div", tag("h3", title), children, class_="answer wide" if wide else "answer")


def _point(item: Mapping[str, str]) -> Markup:
    words = {"good": "for it", "note": "note", "warn": "keep in mind"}[item["level"]]
    return tag(
        "li",
        tag("span", _LEVELS[item["level"]], class_="level", aria_hidden="true"),
        tag("span", f"{words}: ", class_="hidden"),
        item["text"],
        class_=item["level"],
    )


def _sentence(model: Mapping[str, Any]) -> Child:
    found, prefix = model["pivot"], model["prefix"]
    if model["verdict"] == "diverged" and found is not None:
        where = f"at step {found['step']}, {_PHASES[found['phase']]}, rank {found['rank']}: "
        names = operators(found["boundary"])
        if len(names) > 1:
            both: list[Child] = [code(names[0]), " of the reference and ", code(names[1]), " of the suspect"]
            return [where, *both, ", which stand in the same place, are the first operators whose bytes are not the same."]
        return [where, code(found["name"]), " is the first operator at which the two runs are not bit-for-bit the same."]
    if model["verdict"] == "identical":
        return f"in everything that was compared: {plural(prefix['pairs'], 'pair')} of boundaries, {prefix['bytes']:,} bytes."
    reasons = ", ".join(reason["slug"] for reason in model["reasons"]) or "no reason is stored"
    return f"no verdict can be given: {reasons}. {plural(prefix['pairs'], 'pair')} of boundaries before that are equal."


def _what(model: Mapping[str, Any]) -> Child:
    found = model["pivot"]
    if found is None:
        if model["verdict"] == "identical":
            return tag("p", "No difference that matters.")
        total = model["trace"]["named"]["candidate"]
        return tag("p", f"{plural(total, 'candidate')}, none certain." if total else "No place is named.")
    boundary = found["boundary"]
    differing = [slot for slot in boundary["slots"] if slot["how"] in DIFFERENT]
    slots = [slot for slot in differing if _name(slot) == found["tells"] or not unpaired_read(boundary, slot)]
    own = next((slot for slot in slots if _name(slot) == found["tells"]), slots[0] if slots else None)
    described: list[Child] = [] if own is None else [code(_name(own)), " ", HOW[own["how"]], ": ", _types(own)]
    alone = None in (found["boundary"][side] for side in SIDES)
    if alone:
        there = next(side for side in SIDES if found["boundary"][side] is not None)
        described = ["only the ", side_name(there), " has this operator: ", code(found["operator"])]
    more = 0 if alone else len(slots) - 1
    cut = len(slots) == len(found["boundary"]["slots"]) < found["boundary"]["slots_total"]
    at_least = "At least " if cut else ""
    return [
        tag("p", described or code(found["slot"])),
        tag("p", f"{at_least}{plural(more, 'more tensor')} of this operator differ{'s' if more == 1 else ''}.", class_="muted")
        if more > 0
        else None,
        tag("p", term("origin", "Origin"), ": ", code(found["origin"]), f", that is: {found['means']}."),
        _fed(found["fed"]),
    ]


def _fed(items: Sequence[Mapping[str, Any]]) -> Markup | None:
    """What fed the pivot and has no counterpart before it on the other side."""
    if not items:
        return None
    first = items[0]
    side = "suspect" if first["suspect"] else "reference"
    where: list[Child] = [code(first["operator"]), " (", first[side], ")"]
    more = f", and {len(items) - 1} more, named below." if len(items) > 1 else "."
    alone = first["what"] == "one side only"
    told: list[Child] = ["What fed it on one side only: " if alone else "What fed it on one side and comes after it on the other: "]
    return tag("p", told, side_name(side) if alone else None, " " if alone else None, where, more)


def _name(slot: Mapping[str, Any]) -> str:
    name: str = (slot["suspect"] or slot["reference"])["slot"]
    return name


def _types(slot: Mapping[str, Any]) -> str:
    first, second = tensor(slot["reference"]), tensor(slot["suspect"])
    return first if first == second or not second else f"{first} against {second}" if first else second


def _where(model: Mapping[str, Any]) -> Child:
    found = model["pivot"]
    if found is None:
        return tag("p", "Nowhere in what was compared." if model["verdict"] == "identical" else "See the candidates in the trace below.")
    lines = []
    for side in SIDES:
        event = found["boundary"][side]
        frame = None if event is None or event["frame"] is None else model["frames"][event["frame"]]
        nowhere = "no such operator" if event is None else "no place is recorded"
        lines.append(tag("p", side_name(side), " ", place(frame) or nowhere, frame and [tag("br"), code(frame["text"])]))
    return lines


def _how_much(model: Mapping[str, Any]) -> Child:
    if model["pivot"] is None:
        return tag("p", "Nothing to measure.")
    return [*_measured(model), _spread(model)]


def _measured(model: Mapping[str, Any]) -> list[Child]:
    confirmed = model["confirmation"]
    if confirmed is None:
        return [tag("p", "The bytes were not kept, so only their digests are known to differ.")]
    if replayed(confirmed) in ("no answer", "inconclusive") and not confirmed["counts"]:
        return [tag("p", "A replay that was to keep the bytes came to no verdict, so only their digests are known to differ.")]
    found = [item for item in confirmed["slots"] if item["damage"] is not None]
    effect = confirmed["effect"]
    if not found:
        if effect is None:
            return [tag("p", "A replay kept no bytes that differ.")]
        return [tag("p", "Only one side runs it; of its own input it makes: ", tag("strong", kind_of(effect["damage"]["likely"])), ".")]
    worst = telling_first(found, model["pivot"]["tells"])[0]
    damage = worst["damage"]
    kind = tag("strong", kind_of(damage["likely"]))
    counted = damage.get("differing") is not None
    name: list[Child] = [] if counted else [code(worst["slot"]), ": "]
    return [
        tag("p", code(worst["slot"]), ": ", tag("strong", extent(damage)), ".") if counted else None,
        tag("p", name, "Looks like ", kind, f": {damage['rule']}."),
        _furthest(damage),
    ]


def _furthest(damage: Mapping[str, Any]) -> Markup | None:
    distance = damage.get("distance") or {}
    if "max" not in distance:
        return None
    unit = {"ulp": "ULP"}.get(distance["unit"], distance["unit"])
    return tag("p", f"Largest distance: {number(distance['max'])} {unit}." if isinstance(distance["max"], (int, float)) else None)


def _spread(model: Mapping[str, Any]) -> Markup | None:
    spread = model["spread"]
    if spread is None:
        return None
    reached = [REACHED.get(item["what"], item["what"]) for item in spread["reached"]]
    reached += [f"{plural(item['count'], 'tensor')} of {KINDS.get(item['kind'], item['kind'])}" for item in spread["state"]]
    text = f"In that step, differing bytes that follow from it are read {plural(spread['total'], 'time')}"
    return tag("p", f"{text}; it reaches {', '.join(reached)}." if reached else f"{text}.")
