"""Named boundaries in words: at how many two runs are equal, and at which they first are not.

Names come from the observed programs: whoever shows these texts escapes them, or asks for `strict` ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opguard_core.ids import SIDES

KINDS = {
    "inside": "what it gets is equal, what it gives is not",
    "before": "what it gets differs already, and every named value before it is equal: it arises in between",
    "inside-backward": "the gradient of what it gives is equal, that of what it gets is not",
    "before-backward": "this gradient differs, and every named one before it is equal: it arises in between",
    "entry-not-compared": "what it gives differs; of what it gets nothing could be compared",
    "raised": "it raised on one side only",
    "unsure": "tensors differ of which only their size says that they stand for each other",
}
PARAMETERS = {
    "equal": "the parameters that it reads are equal",
    "unequal": "the parameters that it reads are not the same tensors",
    "none": "it reads no parameters",
    "unknown": "whether its parameters are equal is not known",
}
ELSEWHERE = "what it gets is read outside of it too, so this gradient has further parts"
_LISTED = 4

Name = Callable[[str], str]


def plain(name: str) -> str:
    """A name as it is."""
    return name


def sentence(told: Mapping[str, Any], name: Name = plain) -> str:
    """How far both are equal at named boundaries, and where they first differ.

    Args:
        told: ``semantic`` of an answer.
        name: Makes a name of the programs fit to stand in the text.
    """
    first, prefix = told["first"], told["prefix"]
    if told["outcome"] == "nothing-compared":
        return "no named boundary of one side has a counterpart on the other"
    equal = f"{prefix['records']} entries, exits, values and gradients ({prefix['tensors']} tensors)"
    if told["outcome"] == "equal":
        return f"equal at all {told['boundaries']} named calls of {told['names_total']} names: {equal}{_unlike(told)}"
    if first is None:
        where = f" ({name(told['ambiguous'][0]['name'])}, for one)" if told["ambiguous"] else ""
        return f"ambiguous: which call of one side is which of the other cannot be told{where}; before that {equal} are equal"
    word = "unsure" if told["outcome"] == "ambiguous" else "different"
    return f"first {word} at {where_of(first, name)}: {KINDS[first['kind']]}; before it {equal} are equal"


def where_of(first: Mapping[str, Any], name: Name = plain) -> str:
    """The name, which call of it, what of it, and when."""
    call = f" (call {first['call'] + 1})" if first["call"] else ""
    return f"{name(first['name'])}{call}, {first['at']}, step {first['step']}, microbatch {first['microbatch']}, rank {first['rank']}"


def facts(told: Mapping[str, Any], name: Name = plain) -> list[str]:
    """What else is to be known: of the first difference, and of what has no counterpart."""
    first = told["first"]
    found: list[str] = []
    around = {side: names[-1] for side in SIDES if (names := told["around"][side])}
    if around:
        calls = " and ".join(f"{name(one)} of the {side}" for side, one in around.items())
        where = calls if len(set(around.values())) > 1 else name(next(iter(around.values())))
        found.append(f"the operators' first difference lies in {where}")
    if first is not None:
        if first["kind"] in ("inside", "inside-backward"):
            found.append(PARAMETERS[first["parameters"]])
        if first.get("read_elsewhere"):
            found.append(ELSEWHERE)
        left_out = [f"{', '.join(map(name, slots))} of the {side}" for side, slots in first["not_compared"].items() if slots]
        if left_out:
            found.append(f"of its entry has no counterpart: {'; '.join(left_out)}")
        last = told["prefix"]["last"]
        if last is not None:
            found.append(f"the last equal one: {name(last['name'])}, {last['at']}")
    if told["later"]:
        found.append(f"getting the same, these give something else as well: {_names([item['name'] for item in told['later']], name)}")
    found += [f"only in the {side}: {_names([item['name'] for item in told['only'][side]], name)}" for side in SIDES if told["only"][side]]
    for item in told["uneven"][:2]:
        counts = " and ".join(f"{item[side]} times by the {side}" for side in SIDES)
        found.append(f"{name(item['name'])} is called {counts} in step {item['step']}")
    if told["reordered"]:
        found.append(f"called in another order: {_names(told['reordered'], name)}")
    if unknown := told["records"].get("unknown"):
        found.append(f"of {unknown} entries, exits or gradients nothing in common was read, or they came steps after their call")
    found += [
        f"the pattern {name(item['pattern'])} names nothing{': ' + name(item['why']) if item['why'] else ''}" for item in told["unused"][:2]
    ]
    return found


def _unlike(told: Mapping[str, Any]) -> str:
    """That some of them are the same values in another type or layout."""
    parts = [
        f"{told['records'][how]} in another {what}"
        for how, what in (("cast", "precision"), ("layout", "layout"))
        if told["records"].get(how)
    ]
    return f", {' and '.join(parts)}" if parts else ""


def _names(names: list[str], name: Name) -> str:
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - _LISTED} more" if len(distinct) > _LISTED else ""
    return f"{', '.join(map(name, distinct[:_LISTED]))}{more}"
