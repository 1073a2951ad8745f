"""The boundaries that an inconclusive answer's reasons speak about, so that they can be looked up and cited."""

from __future__ import annotations

from typing import Any

from opguard_core.certify.describe import Describer, Judged
from opguard_core.certify.root import RootWalk
from opguard_core.certify.roots import Node

MAX_CANDIDATES = 8
UNRESOLVED = "unresolved-difference"
WEAK = ("low-confidence", "auxiliary-output", "search-exhausted", "state-exchanged", "filtered-difference")


def candidates(judged: Judged) -> list[dict[str, Any]]:
    """First boundaries of each reason that is about one, by rank.

    Returns:
        Objects with ``reason``, ``origin`` (empty where it is not known) and the boundary's place in both traces.
    """
    found: list[dict[str, Any]] = []
    for own, words in judged:
        entries = [(slug, node, "", "") for slug, node in own.weak if slug in WEAK]
        entries += [(UNRESOLVED, item.node, item.slot, str(item.origin)) for item in own.unresolved]
        chosen = list({(slug, node): (slot, origin) for slug, node, slot, origin in reversed(entries)}.items())[::-1]
        chosen = chosen[: MAX_CANDIDATES - len(found)]
        steps = words.steps([node for (_, node), _ in chosen])
        found += [_entry(words, slug, node, steps[node], slot, origin) for (slug, node), (slot, origin) in chosen]
    return found


def _entry(words: Describer, slug: str, node: Node, step: int, slot: str, origin: str) -> dict[str, Any]:
    shown = slot or RootWalk(words.timeline).output_slot(node)
    return {"reason": slug, "origin": origin, **words.boundary(node, step, shown)}
