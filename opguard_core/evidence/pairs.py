"""The pairs of one window of a rank pair as event numbers: what a drawing needs of an alignment.

A list operator, which is aligned element by element, is one event again, with the worst that became of its elements.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opguard_core.align.aligned import Aligned
from opguard_core.align.columns import Flags, Ints
from opguard_core.align.timeline import Timeline
from opguard_core.certify.spreading import Results

_ORDER = (Results.SAME, Results.UNKNOWN, Results.DIFFER)


@dataclass(frozen=True)
class Pair:
    """Two events that stand for each other.

    Attributes:
        reference: Event number.
        suspect: Event number.
        results: Same, unknown or differ.
    """

    reference: int
    suspect: int
    results: Results


def pairs_of(timeline: Timeline, window: int) -> list[Pair]:
    """Align one window of both sides.

    Args:
        timeline: The rank pair.
        window: Its number.

    Returns:
        In the reference's order; empty where only one side has that window.

    Raises:
        TraceFormatError: A trace holds what it must not.

    Cost: the segments that the window lies in, and its alignment.
    """
    if not timeline.look(window):
        return []
    aligned = timeline.aligned(window)
    left = aligned.pairs
    right = aligned.left[left]
    reference, suspect = aligned.reference.window, aligned.suspect.window
    differs = _differs(aligned)
    blind = reference.blind[left] & suspect.blind[right]
    worst: dict[tuple[int, int], int] = {}
    for a, b, code in zip(
        reference.seq[left].tolist(), suspect.seq[right].tolist(), np.where(differs, 2, blind.astype(np.int64)).tolist(), strict=True
    ):
        worst[(a, b)] = max(code, worst.get((a, b), 0))
    return [Pair(a, b, _ORDER[code]) for (a, b), code in worst.items()]


def _differs(aligned: Aligned) -> Flags:
    """bool[pairs]: an output differs; of a pair that has none, a read."""
    with_outputs: Ints = np.bincount(aligned.outputs.pair, minlength=len(aligned.pairs))
    flags: Flags = aligned.differs | (aligned.reads_differ & (with_outputs == 0))
    return flags


__all__ = ["Pair", "pairs_of"]
