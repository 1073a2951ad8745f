"""The boundaries that an inconclusive answer's reasons speak about, so that they can be looked up and cited."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from opguard_core.certify.describe import Describer
from opguard_core.certify.findings import RankFindings
from opguard_core.certify.root import RootWalk
from opguard_core.certify.roots import Node
from opguard_core.ids import SIDES

MAX_CANDIDATES = 8
UNRESOLVED = "unresolved-difference"
WEAK = ("low-confidence", "auxiliary-output", "search-exhausted", "filtered-difference")

Judged = list[tuple[RankFindings, Describer]]


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
    places = [words.place(at, node) for at in range(len(SIDES))]
    return {
        "reason": slug,
        "rank": words.rank,
        "step": step,
        "operator": words.operator(1, node) or words.operator(0, node),
        "slot": slot or RootWalk(words.timeline).output_slot(node),
        "origin": origin,
        "seq": {side: words.seq(at, node) for at, side in enumerate(SIDES)},
        **{side: None if place is None else asdict(place) for side, place in zip(SIDES, places, strict=True)},
    }
