"""Whether another event fits the pivot's partner equally well: then naming one expression would be a guess."""

from __future__ import annotations

import numpy as np

from opguard_core.align import evidence, slots
from opguard_core.align.columns import Ints
from opguard_core.align.pairing import ANCHOR, CONTENT, EXACT, FLOW, RESCUE, STRUCTURE
from opguard_core.align.timeline import REFERENCE, SUSPECT
from opguard_core.certify.index import WindowIndex

USES = 3
"""Steps of dataflow that are looked at behind a result."""

MAX_USERS = 16

BY_POSITION = (ANCHOR, FLOW, STRUCTURE, RESCUE)
"""Passes that choose among equals by position; the others are tied to a content."""


def rivals(index: WindowIndex, left: int, right: int) -> list[tuple[int, int]]:
    """Pairs that would be as good as this one and would name another expression.

    Args:
        index: The window.
        left: Reference event of the pivot.
        right: Suspect event of the pivot.

    Returns:
        (reference event, suspect event) with one of the two kept; empty when the pair stands alone, or was made by content.
    """
    aligned = index.aligned
    if aligned.left[left] != right or aligned.how[left] not in BY_POSITION:
        return []
    found = [(left, other) for other in _candidates(index, SUSPECT, left, right).tolist()]
    found += [(other, right) for other in _candidates(index, REFERENCE, right, left).tolist()]
    if not found:
        return []
    lefts, rights = np.array([[left, right], *found]).T
    features = aligned.features
    scores = evidence.score(*features, lefts, rights).score
    distances = _out_of_place(index, lefts, rights)
    good = (scores[1:] >= scores[0]) & (distances[1:] <= distances[0])
    kept = [pair for pair, is_good in zip(found, good.tolist(), strict=True) if is_good]
    if not kept:
        return []
    shared, used = _same_reads(index, left, right), _used_alike(index, left, right)
    return [pair for pair in kept if _same_reads(index, *pair) >= shared and _used_alike(index, *pair) >= used]


def _out_of_place(index: WindowIndex, lefts: Ints, rights: Ints) -> Ints:
    """How far apart two events stand, counted in pairs made by content; 0 between the same two of them."""
    aligned = index.aligned
    anchors = aligned.pairs[np.isin(aligned.how[aligned.pairs], (CONTENT, EXACT))]
    distances: Ints = np.abs(np.searchsorted(anchors, lefts) - np.searchsorted(np.sort(aligned.left[anchors]), rights))
    return distances


def _same_reads(index: WindowIndex, left: int, right: int) -> int:
    """Inputs of the two events that are the same, trivial ones included."""
    sides = index.window(REFERENCE), index.window(SUSPECT)
    return int(slots.match(*sides, np.array([left]), np.array([right]), outputs=False).same.sum())


def _used_alike(index: WindowIndex, left: int, right: int) -> int:
    """Over how many steps of dataflow the same operators make use of two results: a query is scaled, a value is projected."""
    mine, other = (_uses(index, side, event) for side, event in ((REFERENCE, left), (SUSPECT, right)))
    return next((level for level in range(USES) if mine[level] != other[level]), USES)


def _uses(index: WindowIndex, side: int, event: int) -> list[list[int]]:
    """Operators that read an event's results, those that read theirs, and so on, in the event's own phase."""
    flow = index.flow(side)
    window = flow.window
    levels, at = [], [event]
    for _ in range(USES):
        rows = [row for one in at for row in window.outputs(one).tolist()]
        readers = {int(window.event[reader]) for row in rows for reader in flow.consumers(row)}
        at = sorted(reader for reader in readers if window.phase[reader] == window.phase[event])[:MAX_USERS]
        levels.append(sorted(window.op[at].tolist()))
    return levels


def _candidates(index: WindowIndex, side: int, fixed: int, taken: int) -> Ints:
    """Events of one side that could stand in for ``taken``: same work elsewhere in the code, and not certain of another partner."""
    window = index.window(side)
    alike = (window.op == window.op[taken]) & (window.phase == window.phase[taken]) & window.comparable
    elsewhere = (window.site != window.site[taken]) | (window.library_site != window.library_site[taken])
    return np.array([event for event in np.flatnonzero(alike & elsewhere).tolist() if _is_open(index, side, event, fixed)], np.int64)


def _is_open(index: WindowIndex, side: int, event: int, fixed: int) -> bool:
    """The event has no partner, or one it differs from and that was chosen by position as well."""
    partner = index.partner(side, event)
    if partner < 0 or partner == fixed:
        return True
    left, _ = index.sides(side, event)
    return bool(index.aligned.differs[index.pair_of[left]] and index.aligned.how[left] in BY_POSITION)
