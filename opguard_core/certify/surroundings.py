"""What lies around a boundary that an answer names: looked up again in the traces, its window alone.

For a reader who wants more of the spread than the answer keeps, and what ran just before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from opguard_core.align import slots
from opguard_core.align.columns import PHASES
from opguard_core.align.timeline import REFERENCE, SUSPECT, Timeline
from opguard_core.certify.describe import Describer
from opguard_core.certify.index import WindowIndex
from opguard_core.certify.roots import Node
from opguard_core.certify.spread_words import NAMES_SHOWN, spread_from
from opguard_core.certify.spreading import Results
from opguard_core.ids import SIDES
from opguard_core.trace.reader import RankTrace

Seqs = Mapping[str, int | None]


def around(reference: RankTrace, suspect: RankTrace, pivot: Mapping[str, Any], shown: int) -> dict[str, Any] | None:
    """Boundaries before a pivot, and its spread.

    Args:
        reference: Trace of the reference's rank.
        suspect: Trace of the suspect's rank.
        pivot: As an answer has it, with its event numbers.
        shown: Boundaries to name before it, and consumers.

    Returns:
        ``before`` (oldest first, each with ``results``) and ``spread`` as an answer has it; None if no window that both sides have
        holds it.

    Raises:
        TraceFormatError: A trace cannot be read.
    """
    timeline = Timeline(reference, suspect)
    start = node_of(timeline, pivot["seq"], pivot["slot"])
    if start is None:
        return None
    first = next((item["seq"] for item in pivot["near"] if item["what"] == "first-consumer"), None)
    consumer = None if first is None else node_of(timeline, first, "")
    words = Describer(timeline, pivot["rank"])
    index = WindowIndex(timeline.aligned(start.window))
    return {
        "before": [{"results": results.value, **words.bare(node)} for node, results in _before(index, start, shown)],
        "spread": spread_from(words, start, consumer, shown, max(shown, NAMES_SHOWN)),
    }


def lane_firsts(reference: RankTrace, suspect: RankTrace, first: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The first pair of each lane that differs, in the step of a rank's first difference.

    Args:
        reference: Trace of the reference's rank.
        suspect: Trace of the suspect's rank.
        first: The rank's first difference, as an answer has it.

    Returns:
        By lane, its own included: a boundary as answers have it, with ``thread``, ``phase``, ``step`` and ``slot``. Empty if no
        window that both sides have holds it.

    Raises:
        TraceFormatError: A trace cannot be read.

    Cost: aligns one window.
    """
    timeline = Timeline(reference, suspect)
    start = node_of(timeline, first["seq"], first["slot"])
    if start is None:
        return []
    index = WindowIndex(timeline.aligned(start.window))
    aligned, window = index.aligned, index.window(SUSPECT)
    words = Describer(timeline, first["rank"])
    pairs = sorted((int(aligned.left[left]), int(left), at) for at, left in enumerate(aligned.pairs) if aligned.differs[at])
    found: dict[int, dict[str, Any]] = {}
    for right, left, pair in pairs:
        lane = int(window.lane[right])
        if lane in found or not window.comparable[right] or not index.sure(left):
            continue
        found[lane] = {
            **words.boundary(Node(start.window, left, right), first["step"], index.shown_slots(pair)[0]),
            "phase": PHASES[window.phase[right]],
            "thread": window.text(lane),
        }
    return sorted(found.values(), key=lambda boundary: str(boundary["thread"]))


def partner(reference: RankTrace, suspect: RankTrace, side: str, seq: int) -> int | None:
    """The event of the other side that an event was paired with.

    Args:
        reference: Trace of the reference's rank.
        suspect: Trace of the suspect's rank.
        side: The side whose event it is.
        seq: Its number.

    Returns:
        The other's number; None if it has no partner, or no window that both sides have holds it.

    Raises:
        TraceFormatError: A trace cannot be read.

    Cost: aligns the window of the event.
    """
    timeline = Timeline(reference, suspect)
    node = node_of(timeline, {side: seq}, "")
    if node is None:
        return None
    own, event = node.one
    index = WindowIndex(timeline.aligned(node.window))
    other = index.sides(own, event)[1 - own]
    return int(index.window(1 - own).seq[other]) if other >= 0 else None


def node_of(timeline: Timeline, seqs: Seqs, slot: str) -> Node | None:
    """The node of some event numbers; of a list operator, which is several events under one number, the one with that slot."""
    numbers = set()
    for side, name in enumerate(SIDES):
        seq = seqs.get(name)
        found = None if seq is None else timeline.columns[side].trace.event_at(seq)
        if found is not None:
            numbers.add(found[0].window)
    if len(numbers) != 1:
        return None
    number = numbers.pop()
    if not timeline.is_common(number) and not timeline.look(number):
        return None
    index = WindowIndex(timeline.aligned(number))
    lefts, rights = (_events(index, side, seqs.get(name), slot) for side, name in enumerate(SIDES))
    pair = next(((left, right) for left in lefts for right in rights if index.aligned.left[left] == right), None)
    if pair is not None:
        return Node(number, *pair)
    left, right = next(iter(lefts), None), next(iter(rights), None)
    return None if left is None and right is None else Node(number, left, right)


def _events(index: WindowIndex, side: int, seq: int | None, slot: str) -> list[int]:
    """Events of one number, those with the slot first."""
    window = index.window(side)
    events: list[int] = [] if seq is None else np.flatnonzero(window.seq == seq).tolist()

    def lacks(event: int) -> bool:
        return slot not in {window.text(int(name)) for name in window.slot[window.first[event] : window.first[event + 1]]}

    return sorted(events, key=lacks)


def _before(index: WindowIndex, start: Node, shown: int) -> list[tuple[Node, Results]]:
    """Boundaries of the same lane that ran just before, with their partners."""
    side, event = start.one
    window = index.window(side)
    lane = np.flatnonzero(window.comparable[:event] & (window.lane[:event] == window.lane[event]))
    found = []
    for other in lane[max(0, len(lane) - shown) :].tolist():
        left, right = index.sides(side, other)
        if min(left, right) < 0:
            found.append((Node(start.window, other, None) if side == REFERENCE else Node(start.window, None, other), Results.ALONE))
            continue
        pair = int(index.pair_of[left])
        reads = any(index.aligned.inputs.code[at] > slots.LAST_SAME for at in index.inputs_of(pair))
        differs = index.aligned.differs[pair] or (reads and not len(window.outputs(other)))
        results = Results.DIFFER if differs else Results.UNKNOWN if index.is_blind(left, right) else Results.SAME
        found.append((Node(start.window, left, right), results))
    return found
