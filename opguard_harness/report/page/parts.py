"""Pieces that several sections of the page share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from opguard_harness.report.markup import Child, Markup, tag

SIDES = ("reference", "suspect")
GLYPHS = {"same": "=", "differ": "\u2260", "unknown": "?", "alone": "\u2022", "told": "\u2192", "": ""}
HOW = {
    "equal": "equal",
    "different": "differs",
    "permuted": "same elements, other order",
    "cast": "same values, other type",
    "layout": "same elements, other layout",
    "unknown": "not looked at",
    "alone": "one side only",
}
KINDS = {
    "param": "parameters",
    "grad": "gradients",
    "optim": "optimizer state",
    "buffer": "buffers",
    "rng": "random generators",
}
DIFFERENT = ("different", "permuted", "alone")
WORDS = {
    "boundary": "One call of a PyTorch operator, with the tensors that it read and gave; two that stand for each other are a pair.",
    "pivot": "The first pair of boundaries at which the two runs stop being bit-for-bit the same.",
    "origin": "Why the bytes begin to differ there, as far as the traces show: by what is still equal around it.",
    "step": "The part of a run between two updates of the optimizer; OpGuard pairs one such window at a time.",
    "digest": "64 bits computed from all bytes of a tensor: unequal digests mean unequal bytes.",
    "bag64": "A digest that does not depend on the order of the elements: equal, it shows the same elements in some order.",
    "ULP": "The distance between two neighbouring numbers of a floating-point type.",
}
KINDS_OF_DAMAGE = {"layout": "permutation, in another shape", "unknown": "no known kind of damage"}


def term(word: str, shown: str = "") -> Markup:
    """A word with what it means."""
    return tag("abbr", shown or word, title=WORDS[word])


def kind_of(likely: str) -> str:
    """A kind of damage in the words that the origin has for it."""
    return KINDS_OF_DAMAGE.get(likely, likely)


def operators(boundary: Mapping[str, Any]) -> list[str]:
    """Operators of a boundary, the reference's first; one where both sides run the same."""
    return list(dict.fromkeys(boundary[side]["operator"] for side in SIDES if boundary[side] is not None))


def unpaired_read(boundary: Mapping[str, Any], pair: Mapping[str, Any]) -> bool:
    """Whether two slots are reads of two different operators, which need not stand for each other."""
    return pair["direction"] == "in" and pair["how"] in DIFFERENT and len(operators(boundary)) > 1


def moved(row: Mapping[str, Any], pivot: Mapping[str, Any] | None) -> str:
    """The side on which a row of both sides comes before the pivot, while it follows it on the other; empty for all others."""
    if pivot is None or row["rank"] != pivot["rank"]:
        return ""
    boundary = pivot["boundary"]
    if any(row[side] is None or boundary[side] is None for side in SIDES):
        return ""
    earlier = [side for side in SIDES if row[side]["seq"] < boundary[side]["seq"]]
    return earlier[0] if len(earlier) == 1 else ""


def section(name: str, title: str, *children: Child, lead: str = "") -> Markup:
    """A section with its heading."""
    return tag(
        "section", tag("h2", title, id=f"{name}-title"), tag("p", lead, class_="lead") if lead else None, children, id=name,
        aria_labelledby=f"{name}-title",
    )  # fmt: skip


def table(head: Iterable[Child], rows: Iterable[Iterable[Child]], *, label: str, class_: str = "") -> Markup:
    """A table that scrolls by itself when the page is narrow."""
    body = [tag("tr", [tag("td", cell) for cell in row]) for row in rows]
    inner = tag(
        "table",
        tag("thead", tag("tr", [tag("th", cell, scope="col") for cell in head])),
        tag("tbody", body),
        class_=class_ or None,
    )
    return tag("div", inner, class_="scroll", role="region", tabindex="0", aria_label=label)


def facts(pairs: Iterable[tuple[str, Child]]) -> Markup:
    """Terms with what each is."""
    return tag(
        "dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs if value not in (None, "", [])], class_="facts"
    )


def code(text: str, class_: str = "") -> Markup:
    """A short piece of code."""
    return tag("code", text, class_=class_ or None)


def evidence(name: str) -> Markup | None:
    """An evidence id."""
    return tag("code", name, class_="ev") if name else None


def tensor(slot: Mapping[str, Any] | None) -> str:
    """Type and shape of a slot."""
    if slot is None:
        return ""
    return f"{slot['dtype']}[{slot['shape'].replace(',', ', ')}]"


def place(frame: Mapping[str, Any] | None) -> Markup | None:
    """A place in one line."""
    if frame is None:
        return None
    return tag("span", tag("span", f"{frame['file']}:{frame['line']}", class_="file"), f" in {frame['function']}", class_="place")


def number(value: int | float) -> str:
    """A number for people."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def share(part: int, whole: int) -> str:
    """A part as a percentage; neither nothing nor all where it is not."""
    percent = 100 * part / whole
    if 0 < part and percent < 0.01:
        return "under 0.01%"
    return "over 99.99%" if part < whole and percent > 99.99 else f"{percent:.2f}%"


def plural(count: int, one: str, many: str = "") -> str:
    """A count and its noun."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def side_name(side: str) -> Markup:
    """A side in its colour."""
    return tag("span", side, class_=f"side {side}")
