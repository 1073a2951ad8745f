"""The section about damage: what a replay with the tensors kept showed of the bytes themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from opguard_harness.report.markup import Child, Markup, tag
from opguard_harness.report.page.parts import SIDES, code, evidence, facts, kind_of, number, plural, section, share, side_name, table
from opguard_harness.report.transplant_words import sentence

_FIRST = 8
_WHOLE = 2
_LONG = 12
_OUTCOMES = {
    "no answer": "A replay was started, and it came to no answer: it neither confirms nor denies the difference.",
    "inconclusive": "A replay of both sides could not be judged: it neither confirms nor denies the difference.",
    "same place": "In a replay of both sides in private copies the difference came again, at the same place.",
    "another place": "In a replay of both sides in private copies there was a difference, at another place.",
    "not reproduced": "In a replay of both sides in private copies the difference did not come again.",
}
_TITLES = {"special": "NaN, infinities, signs", "size": "size", "order": "order", "relations": "holds for all", "notes": "not looked at"}


_KEPT = "Both sides were run once more; tensors were kept, fingerprinted by a second implementation and compared byte by byte."


def replayed(found: Mapping[str, Any]) -> str:
    """What a replay showed: its outcome, or that it showed nothing."""
    if found["outcome"] != "not reproduced" or found["verdict"] in ("identical", "diverged"):
        return str(found["outcome"])
    return found["verdict"] or "no answer"


def damage(model: Mapping[str, Any]) -> Markup | None:
    """What differs in the bytes, slot by slot; how to have it measured where it was not."""
    if model["pivot"] is None:
        return None
    found = model["confirmation"]
    if found is None:
        text = "Not measured. The traces hold digests of the bytes and not the bytes: a replay by "
        return section("damage", "Damage", tag("p", text, code("confirm_difference"), " keeps and compares them."))
    slots = telling_first(found["slots"], model["pivot"]["tells"])
    counts = ", ".join(f"{count} {state}" for state, count in found["counts"].items())
    more = found["slots_total"] - found["counts"].get("equal", 0) - len(found["slots"])
    return section(
        "damage",
        "Damage",
        tag("p", f"{_OUTCOMES[replayed(found)]} ", evidence(found["id"])),
        _cause(found["transplant"]),
        tag("p", f"Tensors of that operator that were kept in full: {counts}.") if counts else tag("p", "It kept no tensors."),
        [_slot(item) for item in slots[:_WHOLE]],
        _others(slots[_WHOLE:]),
        tag("p", f"{plural(more, 'more tensor')} in report.json.") if more > 0 else None,
        _effect(found["effect"]) if found["effect"] else None,
        lead=_KEPT if found["counts"] else "",
    )  # fmt: skip


def _cause(found: Mapping[str, Any] | None) -> Markup | None:
    """What transplants showed, where they were tried: the places, and why it is not more."""
    if found is None:
        return None
    listed = [tag("li", code(place["operator"]), " ", place["at"]) for place in found["places"]]
    return tag(
        "div",
        tag("p", f"{sentence(found)} ", evidence(found["id"])),
        tag("p", found["why"]) if found["why"] else None,
        tag("ol", listed) if listed else None,
    )


def telling_first(slots: Sequence[Mapping[str, Any]], named: str) -> list[Mapping[str, Any]]:
    """Slots of a replay as they tell most: of a known kind first, the one that the verdict names before others, results before reads."""

    def order(item: Mapping[str, Any]) -> tuple[bool, bool, bool, bool]:
        told = item["damage"]
        return (
            told is None,
            told is not None and told["likely"] == "unknown",
            item["slot"] != named,
            item["slot"].startswith(("in.", "kw.")),
        )

    return sorted(slots, key=order)


def _others(slots: Sequence[Mapping[str, Any]]) -> Markup | None:
    """Further slots, a line each."""
    if not slots:
        return None
    rows: list[list[Child]] = []
    for item in slots:
        told = item["damage"]
        if told is None:
            rows.append([code(item["slot"]), item["state"], item["why"], ""])
        else:
            rows.append([code(item["slot"]), tag("strong", kind_of(told["likely"])), told["rule"], extent(told)])
    return table(("tensor", "looks like", "because", "elements"), rows, label="further tensors")


def _slot(item: Mapping[str, Any]) -> Markup:
    title = tag("h3", code(item["slot"]))
    if item["damage"] is None:
        return tag("article", title, tag("p", f"{item['state']}: {item['why']}" if item["why"] else item["state"]), class_="card damage")
    by = sorted({name for told in item["fingerprints"].values() for name in told["by"]})
    sides = [side for side, told in item["fingerprints"].items() if told["equal"]]
    whose = "both traces" if len(sides) == len(SIDES) else f"the {sides[0]}'s trace" if sides else ""
    second = f"agrees with the digest of {whose} ({', '.join(by)})" if sides else "could not be compared with the traces"
    note = tag("p", f"A second fingerprint of these bytes {second}{'; ' if item['why'] else ''}{item['why']}.", class_="extra")
    return tag("article", title, described(item["damage"]), note, class_="card damage")


def _effect(effect: Mapping[str, Any]) -> Markup:
    told = tag("p", "Only the ", side_name(effect["side"]), " runs this operator. What it does to its own first input:")
    return tag("article", tag("h3", "Effect"), told, described(effect["damage"]), class_="card damage")


def described(found: Mapping[str, Any]) -> list[Child]:
    """A description of damage, from the sentence to the bits."""
    pairs: list[tuple[str, Child]] = [("looks like", tag("strong", kind_of(found["likely"]))), ("because", found["rule"])]
    if found.get("alternatives"):
        pairs.append(("would also fit", ", ".join(kind_of(name) for name in found["alternatives"])))
    pairs.append(("elements", extent(found)))
    pairs += [(f"axis {axis['axis']}", _axis(axis)) for axis in found.get("axes", [])]
    pairs += [(title, _words(found[key])) for key, title in _TITLES.items() if found.get(key)]
    return [facts(pairs), _distances(found.get("distance") or {}), _bits(found.get("bits") or {}), _positions(found.get("first") or [])]


def extent(found: Mapping[str, Any]) -> str:
    """How many elements differ."""
    differing, elements = found.get("differing"), found["elements"]
    if differing is None:
        first, second = (f"{kind}[{', '.join(map(str, shape))}]" for kind, shape in zip(found["dtypes"], found["shapes"], strict=True))
        return f"{first} against {second}: not counted one by one"
    return f"{number(differing)} of {number(elements)} differ ({share(differing, elements)})" if elements else "there are none"


def _axis(axis: Mapping[str, Any]) -> str:
    at_most = "" if axis["exact"] else "at most "
    where = f"{at_most}{number(axis['touched'])} of {number(axis['length'])} indices touched"
    ranges = axis.get("ranges") or []
    named = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in ranges)
    more = " and more" if sum(last - first + 1 for first, last in ranges) < axis["touched"] else ""
    return f"{where}: {named}{more}" if named else where


def _distances(distance: Mapping[str, Any]) -> Markup | None:
    """The histogram of distances as bars."""
    rows = distance.get("histogram") or []
    if not rows:
        return None
    unit = {"ulp": "ULP"}.get(distance["unit"], str(distance["unit"]))
    names = [f"{number(row['from'])}" if row["from"] == row["to"] else f"{number(row['from'])} to {number(row['to'])}" for row in rows]
    title = f"How far apart, in {unit} (largest {_words(distance['max'])})"
    return _bars(title, list(zip(names, [row["count"] for row in rows], strict=True)))


def _bits(bits: Mapping[str, Any]) -> Markup | None:
    """How often each bit differs, highest first, as a strip."""
    flipped = bits.get("flipped") or []
    width = bits.get("width", 0)
    if not flipped or not width:
        return None
    counts = {row["bit"]: row for row in flipped}
    most = max(row["count"] for row in flipped)
    cells: list[Child] = []
    for at in range(width):
        row = counts.get(width - 1 - at)
        height = 0.0 if row is None else 4 + 36 * row["count"] / most
        kind = row["is"].split()[0] if row is not None else "unused"
        cells.append(tag("rect", x=str(at * 10), y="0", width="9", height="40", class_="slot"))
        if row is not None:
            cells.append(tag("rect", x=str(at * 10), y=f"{40 - height:.1f}", width="9", height=f"{height:.1f}", class_=f"bit {kind}"))
    told = ", ".join(f"bit {row['bit']} ({row['is']}): {number(row['count'])}" for row in flipped[-_LONG:])
    more = f", and {len(flipped) - _LONG} lower ones" if len(flipped) > _LONG else ""
    label = f"bits that differ, highest first: {told}{more}"
    single = bits.get("single_bit_elements")
    note = f" Elements that differ in a single bit: {number(single)}." if isinstance(single, int) and single else ""
    return tag(
        "figure",
        tag("figcaption", f"Which of the {width} bits differ, highest on the left; a full bar is {plural(most, 'element')}.{note}"),
        tag("svg", cells, viewBox=f"0 0 {width * 10} 40", role="img", aria_label=label, class_=f"bits w{width}"),
    )


def _bars(title: str, rows: Sequence[tuple[str, int]]) -> Markup:
    most = max(count for _, count in rows)
    body = [
        tag(
            "tr",
            tag("th", name, scope="row"),
            tag("td", tag("svg", tag("rect", x="0", y="0", width=f"{100 * count / most:.1f}", height="10", class_="bar"),
                          viewBox="0 0 100 10", preserveAspectRatio="none", aria_hidden="true", class_="bars")),
            tag("td", number(count), class_="count"),
        )
        for name, count in rows
    ]  # fmt: skip
    return tag("figure", tag("figcaption", title), tag("table", tag("tbody", body), class_="histogram"))


def _positions(first: list[dict[str, Any]]) -> Markup | None:
    """The first elements that differ."""
    if not first:
        return None
    keys = list(dict.fromkeys(key for row in first for key in row))
    rows = [[code(_words(row.get(key, ""))) for key in keys] for row in first[:_FIRST]]
    shown = table([key.replace("_", " ") for key in keys], rows, label="first elements that differ", class_="numbers")
    return tag("figure", tag("figcaption", "The first elements that differ"), shown)


def _words(value: Any) -> str:
    """A plain value in words of bounded length."""
    if isinstance(value, dict):
        return "; ".join(f"{key.replace('_', ' ')} {_words(item)}" for key, item in list(value.items())[:_LONG])
    if isinstance(value, (list, tuple)):
        nested = any(isinstance(item, (dict, list, tuple)) for item in value)
        text = (" | " if nested else ", ").join(_words(item) for item in value[:_LONG])
        return f"{text} and {len(value) - _LONG} more" if len(value) > _LONG else text
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return number(value) if isinstance(value, (int, float)) else str(value)
