"""Draws the verdict from the findings of all ranks."""

from __future__ import annotations

from typing import Any

from opguard_core.certify import caveats, filtered
from opguard_core.certify.candidates import UNRESOLVED, WEAK, candidates
from opguard_core.certify.completeness import Completeness
from opguard_core.certify.describe import Describer, Judged
from opguard_core.certify.filters import Filter
from opguard_core.certify.findings import Harmless, RankFindings
from opguard_core.certify.reasons import reason
from opguard_core.certify.roots import Root
from opguard_core.certify.spread_words import spread_of
from opguard_core.certify.verdict import Pivot, Place, Reason, Verdict, VerdictWord
from opguard_core.ids import Origin

MAX_ISOLATED = 16
DIGEST_BITS = 64


def summarise(judged: Judged, completeness: Completeness, rules: list[Filter]) -> Verdict:
    """Build the verdict.

    Args:
        judged: Findings and places of each rank pair, by suspect rank.
        completeness: What the traces lack.
        rules: Filters with their hits.
    """
    diverged = [(found, words) for found, words in judged if found.pivot]
    firsts = sorted(((_pivot_key(found), found, words) for found, words in diverged), key=lambda entry: entry[0])
    pivots = [_pivot(found, words) for _, found, words in firsts]
    reasons = [*completeness.before_difference(), *filtered.too_wide(judged), *_ambiguous(firsts), *_on_trust(firsts), *_split(firsts)]
    reasons += completeness.unexplained({pivot.origin for pivot in pivots[:1]})
    word: VerdictWord
    if pivots and not reasons:
        word = "diverged"
    elif pivots:
        word = "inconclusive"
    else:
        reasons += [*_weak(judged), *_unresolved(judged), *completeness.whole()]
        word = "inconclusive" if reasons else "identical"
    findings = [found for found, _ in judged]
    open_ends = candidates(judged) if word == "inconclusive" else []
    about = pivots[0].origin if pivots else next((entry["origin"] for entry in open_ends if entry["reason"] == UNRESOLVED), "")
    if about:
        reasons += caveats.reproducibility(completeness, about)
    if firsts:
        reasons += caveats.precision(firsts[0][1])
    if word == "identical":
        reasons += caveats.futures(findings)
    reasons += [*filtered.refusals(judged, rules), *completeness.starts(), *_limits(findings)]
    return Verdict(
        verdict=word,
        mode=_mode(completeness),
        scope=_scope(completeness, findings, word),
        pivot=pivots[0] if word == "diverged" else None,
        isolated=_isolated(judged),
        rank_firsts=pivots,
        prefix={
            "pairs": sum(found.prefix.pairs for found in findings),
            "tensors": sum(found.prefix.tensors for found in findings),
            "bytes": sum(found.prefix.bytes for found in findings),
        },
        compared={**_compared(completeness, findings), **({"filtered": filtered.totals(judged)} if rules else {})},
        coverage=completeness.facts(),
        device_work=completeness.device_work(),
        filters=filtered.listed(judged, rules),
        reasons=_distinct(reasons),
        candidates=open_ends,
        spread=spread_of(*firsts[0][1:]) if word == "diverged" else None,
    )


def _pivot_key(found: RankFindings) -> tuple[int, int, int]:
    return found.pivot[0].node.window, found.clock, found.rank


def _pivot(found: RankFindings, words: Describer) -> Pivot:
    root = found.pivot[0]
    return words.pivot(root, words.steps([root.node])[root.node], found.first_consumers)


def _ambiguous(firsts: list[tuple[tuple[int, int, int], RankFindings, Describer]]) -> list[Reason]:
    """The earliest rank's pivot has rivals at other places."""
    if not firsts:
        return []
    _, found, words = firsts[0]
    nodes = [found.pivot[0].node, *found.rivals]
    places = {(words.place(0, node), words.place(1, node)): node for node in reversed(nodes)}
    if len(places) < 2:
        return []
    shown = dict.fromkeys(f"{words.shown(node)} against {words.shown(node, side=0)}" for node in places.values())
    return [reason("ambiguous-pivot", place="; ".join(list(shown)[:4]))]


def _on_trust(firsts: list[tuple[tuple[int, int, int], RankFindings, Describer]]) -> list[Reason]:
    """The earliest rank's pivot claims something about work that mode ``trusted`` did not look into."""
    if not firsts or not firsts[0][1].on_trust:
        return []
    _, found, words = firsts[0]
    return [reason("trusted-work", place=words.shown(found.pivot[0].node))]


def _split(firsts: list[tuple[tuple[int, int, int], RankFindings, Describer]]) -> list[Reason]:
    """The earliest rank's pivot is work that may only stand in another step on the other side."""
    if not firsts:
        return []
    _, found, words = firsts[0]
    if found.cut_apart:
        return [reason("steps-differ", place=words.shown(found.pivot[0].node))]
    if not found.split_update:
        return []
    reference, suspect = found.optimizers
    return [reason("optimizers-differ", reference=reference, suspect=suspect, place=words.shown(found.pivot[0].node))]


def _isolated(judged: Judged) -> list[Pivot]:
    """Harmless differences, once per place, first of each chain, sure ones only."""
    pivots: list[Pivot] = []
    for found, words in judged:
        chosen: dict[tuple[Place | None, Place | None], Harmless] = {}
        for harmless in found.harmless:
            if harmless.first and harmless.confidence >= 3:
                chosen.setdefault((words.place(0, harmless.node), words.place(1, harmless.node)), harmless)
        picked = list(chosen.values())[: MAX_ISOLATED - len(pivots)]
        steps = words.steps([harmless.node for harmless in picked])
        pivots += [
            words.pivot(Root(harmless.node, harmless.origin or Origin.UNOBSERVED_PRODUCER, harmless.slot), steps[harmless.node])
            for harmless in picked
        ]
    return pivots


def _weak(judged: Judged) -> list[Reason]:
    reasons = []
    for found, words in judged:
        for slug in WEAK:
            node = next((node for weak, node in found.weak if weak == slug), None)
            if node is not None:
                reasons.append(reason(slug, place=words.shown(node)))
    return reasons


def _unresolved(judged: Judged) -> list[Reason]:
    reasons = []
    for found, words in judged:
        for item in found.unresolved[:1]:
            origin = f" (origin: {item.origin})" if item.origin else ""
            reasons.append(reason(UNRESOLVED, place=f"{words.shown(item.node)}{origin}"))
    return reasons


def _limits(findings: list[RankFindings]) -> list[Reason]:
    """What makes an answer less sure without making it void."""
    banded = sum(found.banded for found in findings)
    return [reason("narrowed-search", count=banded)] if banded else []


def _mode(completeness: Completeness) -> str:
    modes = [run.ranks[rank].manifest.mode for run in (completeness.reference, completeness.suspect) for rank in sorted(run.ranks)]
    order = ("sentinel", "trusted", "full", "verify")
    known = [mode for mode in modes if mode in order]
    return min(known, key=order.index) if known else "full"


def _scope(completeness: Completeness, findings: list[RankFindings], word: VerdictWord) -> dict[str, Any]:
    windows = sorted({window for found in findings for window in found.windows})
    speaks_for = caveats.determinism(completeness)
    return {
        "ranks": len(completeness.ranks.pairs),
        "steps": [windows[0], windows[-1] + 1] if windows else None,
        "devices": sorted({str(contract.get("device.name") or "cpu") for contract in _contracts(completeness)}),
        "determinism": speaks_for,
        **({"limit": caveats.LIMITS[speaks_for]} if word == "identical" else {}),
    }


def _contracts(completeness: Completeness) -> list[dict[str, Any]]:
    return [trace.manifest.contract for run in (completeness.reference, completeness.suspect) for trace in run.ranks.values()]


def _compared(completeness: Completeness, findings: list[RankFindings]) -> dict[str, Any]:
    windows = sorted({window for found in findings for window in found.windows})
    telling = [sum(share.telling[side] for found in findings for share in found.shares) for side in (0, 1)]
    paired = [sum(share.paired[side] for found in findings for share in found.shares) for side in (0, 1)]
    accounted = [sum(share.accounted[side] for found in findings for share in found.shares) for side in (0, 1)]

    def part(counts: list[int]) -> dict[str, float]:
        return {
            name: round(counts[side] / telling[side], 4) if telling[side] else 1.0 for side, name in enumerate(("reference", "suspect"))
        }

    return {
        "ranks": [left for left, _ in completeness.ranks.pairs],
        **_mapped(completeness.ranks.pairs),
        "steps": windows,
        "paired_share": part(paired),
        "accounted_share": part(accounted),
        "events": sum(found.pairs for found in findings),
        "parameter_updates": sum(found.updates for found in findings),
        "state_slots": sum(found.state_slots for found in findings),
        "reads": sum(found.reads for found in findings),
        "digest_bits": DIGEST_BITS,
        "comparisons": sum(found.prefix.tensors for found in findings),
        "steps_only_in": {
            "reference": sorted({window for found in findings for window in found.one_sided[0]}),
            "suspect": sorted({window for found in findings for window in found.one_sided[1]}),
        },
        "isolated_not_listed": sum(found.harmless_more for found in findings),
    }


def _mapped(pairs: tuple[tuple[int, int], ...]) -> dict[str, Any]:
    return {} if all(left == right for left, right in pairs) else {"rank_map": [list(pair) for pair in pairs]}


def _distinct(reasons: list[Reason]) -> list[Reason]:
    return list(dict.fromkeys(reasons))
