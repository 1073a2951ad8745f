"""Named boundaries in results: how far two runs are equal at them, the first that differs, and the ids of its events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opguard_core.evidence.refs import EventRef
from opguard_core.ids import SIDES
from opguard_harness.access.untrusted import identifier, one_line
from opguard_harness.interface.declaration import Evidence
from opguard_harness.report import semantic_words
from opguard_harness.tools.answers import Found
from opguard_harness.tools.budget import within
from opguard_harness.tools.shown import line, shown
from opguard_harness.workspace.evidence import evidence

_QUOTE_CHARS = 100
_FACTS_CHARS = 900


def semantic_sentence(answer: Mapping[str, Any]) -> str:
    """The end of a summary: what named boundaries say, in strict words; nothing where there are none."""
    told = answer.get("semantic")
    return "" if told is None else f" Named boundaries: {semantic_words.sentence(told, _strict)}."


def semantic_of(found: Found, detail: int) -> dict[str, Any]:
    """Named boundaries of an answer; nothing where there are none.

    Args:
        found: The answer.
        detail: How much room there is.
    """
    told = found.answer.get("semantic")
    if told is None:
        return {}
    first = told["first"]
    keys = ("rank", "step", "microbatch", "phase", "name", "call", "at", "how", "kind", "entry")
    return {
        "outcome": told["outcome"],
        "calls": told["boundaries"],
        "equal_before": told["prefix"]["records"],
        **({"names": shown(told["names"][: 3 * detail], 60)} if detail > 1 else {}),
        **(
            {}
            if first is None
            else {
                "first": {
                    **shown({key: first[key] for key in keys}, 120),
                    "means": semantic_words.KINDS[first["kind"]],
                    **({side: line(first[side]) for side in SIDES} if detail >= 0 else {}),
                    "ids": {side: id_ for side in SIDES if (id_ := _id(found, side))},
                }
            }
        ),
        **({"facts": facts} if (facts := within(shown(semantic_words.facts(told), 300), min(150 * detail, _FACTS_CHARS))) else {}),
    }


def semantic_cited(found: Found) -> list[Evidence]:
    """Evidence of the first named boundary that differs, of both sides."""
    told = found.answer.get("semantic") or {}
    first = told.get("first")
    if first is None:
        return []
    ids = [(side, _ref(found, side)) for side in SIDES]
    return [evidence(ref, one_line(f"{side}: {first['name']}, {first['at']}", _QUOTE_CHARS)) for side, ref in ids if ref is not None]


def _id(found: Found, side: str) -> str:
    ref = _ref(found, side)
    return "" if ref is None else str(ref)


def _ref(found: Found, side: str) -> EventRef | None:
    """The event of the first difference on one side, and the slot that shows it."""
    first = found.answer["semantic"]["first"]
    if side not in found.digests:
        return None
    part = first["slots"][0][side]["slot"] if first["slots"] else ""
    return EventRef(found.digests[side], found.ranks(first)[side], first["seq"][side]["record"], part)


def _strict(name: str) -> str:
    return identifier(name, "a named boundary")
