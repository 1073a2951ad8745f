"""What one side alone did to the inputs of a boundary: the work that an operator list of pairs leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opguard_core.align.columns import STATE
from opguard_core.align.timeline import REFERENCE, Row, Timeline
from opguard_core.certify.describe import Describer
from opguard_core.certify.index import WindowIndex
from opguard_core.certify.roots import Node
from opguard_core.certify.surroundings import node_of
from opguard_core.trace.reader import RankTrace

MAX_SHOWN = 4


def feeding(reference: RankTrace, suspect: RankTrace, pivot: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Work of one side alone whose results a pivot reads, the nearest first: followed up to what both sides did.

    Args:
        reference: Trace of the reference's rank.
        suspect: Trace of the suspect's rank.
        pivot: As an answer has it, with its event numbers.

    Returns:
        Boundaries as an answer has them; empty where no window that both sides have holds the pivot.

    Raises:
        TraceFormatError: A trace cannot be read.
    """
    timeline = Timeline(reference, suspect)
    start = node_of(timeline, pivot["seq"], pivot["slot"])
    if start is None:
        return []
    index = WindowIndex(timeline.aligned(start.window))
    words = Describer(timeline, pivot["rank"])
    found = [(side, event) for side, event in enumerate((start.left, start.right)) if event is not None]
    lone: list[Node] = []
    seen = set(found)
    while found and len(lone) < MAX_SHOWN:
        side, event = found.pop(0)
        for writer in _writers(timeline, index, side, event, start.window):
            if (side, writer) in seen or index.partner(side, writer) >= 0 or index.window(side).kind[writer] == STATE:
                continue
            seen.add((side, writer))
            found.append((side, writer))
            lone.append(Node(start.window, writer, None) if side == REFERENCE else Node(start.window, None, writer))
    return [words.bare(node) for node in lone[:MAX_SHOWN]]


def reordered(reference: RankTrace, suspect: RankTrace, pivot: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Work of both sides that made what a pivot reads on one side, and that the other side does only after it.

    Args:
        reference: Trace of the reference's rank.
        suspect: Trace of the suspect's rank.
        pivot: As an answer has it, with its event numbers.

    Returns:
        Boundaries as an answer has them; empty where a side lacks the pivot, or no window that both sides have holds it.

    Raises:
        TraceFormatError: A trace cannot be read.
    """
    timeline = Timeline(reference, suspect)
    start = node_of(timeline, pivot["seq"], pivot["slot"])
    if start is None or not start.is_pair:
        return []
    index = WindowIndex(timeline.aligned(start.window))
    moved: dict[Node, None] = {}
    for side, event in enumerate(start.both):
        at = int(index.window(1 - side).seq[start.both[1 - side]])
        for writer in _writers(timeline, index, side, event, start.window):
            left, right = index.sides(side, writer)
            if min(left, right) >= 0 and int(index.window(1 - side).seq[(left, right)[1 - side]]) > at:
                moved[Node(start.window, left, right)] = None
    words = Describer(timeline, pivot["rank"])
    return [words.bare(node) for node in list(moved)[:MAX_SHOWN]]


def _writers(timeline: Timeline, index: WindowIndex, side: int, event: int, number: int) -> list[int]:
    """Events of the same window that wrote what an event reads, each once, those of its first input first."""
    window = index.window(side)
    rows = [row for row in range(int(window.first[event]), int(window.first[event + 1])) if not window.written[row]]
    made = [at.row for row in rows for at in timeline.producers(Row(side, number, row))[0][:1] if at.window == number]
    return list(dict.fromkeys(int(window.event[row]) for row in made))
