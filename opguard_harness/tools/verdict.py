"""What a comparison found, in a few words: what `compare` and `align` answer, and what later tools begin their summary with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from opguard_harness.access.untrusted import is_identifier
from opguard_harness.interface.declaration import Result

_LIST_SHOWN = 16
_KEYS_SHOWN = 12
_FACTS = ("ranks", "steps", "paired_share", "parameter_updates", "boundaries", "state_kinds", "state_not_compared", "filtered")

_PLAIN = {"paired_share": "share_with_partner"}
"""Facts that have a plainer name here than in the answer."""


@dataclass(frozen=True, kw_only=True)
class VerdictResult(Result):
    """``comparison``: what `first_difference` takes. ``contract``: number of settings that differ, and the keys that change arithmetic."""

    sparse = True

    comparison: str
    verdict: str
    mode: str
    pairs: int
    compared: dict[str, Any] = field(default_factory=dict)
    contract: dict[str, Any] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    isolated: int = 0


def facts_of(answer: Mapping[str, Any], comparison: str) -> dict[str, Any]:
    """The fields of a ``VerdictResult``, less evidence and what to do next."""
    return {
        "summary": sentence(answer) + hidden(answer),
        "comparison": comparison,
        "verdict": answer["verdict"],
        "mode": answer["mode"],
        "pairs": answer["prefix"]["pairs"],
        "compared": counted(answer["compared"]),
        "contract": contract_counts(answer["contract"]),
        "reasons": [reason["slug"] for reason in answer["reasons"]],
        "isolated": len(answer["isolated"]),
    }


def sentence(answer: Mapping[str, Any]) -> str:
    """The sentence an engineer would quote; only strict words of ours, no text that a run controls."""
    pivot, pairs = answer["pivot"], answer["prefix"]["pairs"]
    if answer["verdict"] == "diverged":
        place = f"step {pivot['step']}, {pivot['phase']}, rank {pivot['rank']}"
        return f"diverged at {place}, after {pairs} equal pairs of boundaries; origin: {pivot['origin']}."
    if answer["verdict"] == "identical":
        isolated = len(answer["isolated"])
        ended = f" {isolated} difference{'s' if isolated > 1 else ''} ended without effect." if isolated else ""
        return f"identical: {pairs} pairs of boundaries are equal.{ended}"
    return f"inconclusive: {', '.join(reason['slug'] for reason in answer['reasons'])}; {pairs} pairs of boundaries before that are equal."


def hidden(answer: Mapping[str, Any]) -> str:
    """The end of a summary: a verdict that filters had a part in is never told without them."""
    pairs = answer["compared"].get("filtered", {}).get("pairs", 0)
    return f" Benign filters hid what differs at {pairs} {'pair' if pairs == 1 else 'pairs'} of boundaries." if pairs else ""


def counted(compared: Mapping[str, Any]) -> dict[str, Any]:
    """What was compared, with long lists as first, last and count; answer.json has all of it."""
    found = {_PLAIN.get(name, name): _brief(compared[name]) for name in _FACTS if compared.get(name)}
    alone = {side: _brief(steps) for side, steps in compared.get("steps_only_in", {}).items() if steps}
    return {**found, "steps_only_in": alone} if alone else found


def _brief(value: Any) -> Any:
    if isinstance(value, list) and len(value) > _LIST_SHOWN:
        return {"first": value[0], "last": value[-1], "count": len(value)}
    return {key: _brief(item) for key, item in value.items()} if isinstance(value, dict) else value


def contract_counts(contract: list[dict[str, Any]]) -> dict[str, Any]:
    """How many settings differ, and which of them change arithmetic; a key that a run could have made up is only counted."""
    arithmetic = [item["key"] for item in contract if item["severity"] == "arithmetic"]
    named = [key for key in arithmetic if is_identifier(key)][:_KEYS_SHOWN]
    found: dict[str, Any] = {"differences": len(contract)}
    if arithmetic:
        found["arithmetic"] = named
    return {**found, "arithmetic_total": len(arithmetic)} if len(named) < len(arithmetic) else found
