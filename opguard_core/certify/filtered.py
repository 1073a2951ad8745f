"""What filters did, in the words of the answer: each filter with its reason, evidence, hits and refusals."""

from __future__ import annotations

from typing import Any

from opguard_core.certify.describe import Describer, Judged
from opguard_core.certify.filters import MAX_SHARE, Filter
from opguard_core.certify.reasons import reason
from opguard_core.certify.tally import Hidden
from opguard_core.certify.verdict import Reason

MAX_PLACES = 8
"""Hidden boundaries shown per filter; all are counted."""


def listed(judged: Judged, rules: list[Filter]) -> list[dict[str, Any]]:
    """The answer's ``filters``: every filter that was named, those without a hit as well."""
    return [
        {
            **rule.as_dict(),
            "hits": sum(found.filtered.hits[rule.id] for found, _ in judged),
            "partly": sum(found.filtered.partly[rule.id] for found, _ in judged),
            "refused": sum(found.filtered.refused[rule.id] for found, _ in judged),
            "hidden": [place for found, words in judged for place in _places(words, found.filtered.shown.get(rule.id, []))][:MAX_PLACES],
        }
        for rule in rules
    ]


def totals(judged: Judged) -> dict[str, int]:
    """Boundaries hidden, and the differences in them: the sum of all hits."""
    return {
        "pairs": sum(found.filtered.pairs for found, _ in judged),
        "differences": sum(found.filtered.hits.total() for found, _ in judged),
    }


def too_wide(judged: Judged) -> list[Reason]:
    """Filters hid so much that what is left does not carry a verdict."""
    pairs, hidden = sum(found.pairs for found, _ in judged), totals(judged)["pairs"]
    return [reason("filters-too-wide", share=hidden / pairs)] if pairs and hidden / pairs > MAX_SHARE else []


def refusals(judged: Judged, rules: list[Filter]) -> list[Reason]:
    """Filters that named what no filter may hide; the verdict is the one without them."""
    reasons = []
    for rule in rules:
        first = next(((found.filtered.refusals[rule.id], words) for found, words in judged if rule.id in found.filtered.refusals), None)
        if first is not None:
            refusal, words = first
            reasons.append(reason("filter-refused", id=rule.id, what=refusal.what, place=words.shown(refusal.node)))
    return reasons


def _places(words: Describer, hidden: list[Hidden]) -> list[dict[str, Any]]:
    """Boundaries hidden, in order; the steps of a few cost one pass over the traces."""
    chosen = hidden[:MAX_PLACES]
    steps = words.steps([entry.node for entry in chosen])
    return [words.boundary(node, steps[node], slot) for node, slot in chosen]
