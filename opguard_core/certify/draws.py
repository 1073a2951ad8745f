"""Random draws that one side only makes at another time: a loader that fetches ahead draws in an earlier step.

Contents never pair across windows, but a generator's states do not repeat by chance: the same operator, from the same
state, with the same result, is the same draw. Reads whole traces, so it is asked only about a difference that would
otherwise be called one.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from opguard_core.align.columns import Ints, Window, Words, combined
from opguard_core.align.timeline import REFERENCE, SUSPECT, Timeline
from opguard_core.certify.roots import Node


class Draws:
    """All random draws of one rank pair, counted.

    Args:
        timeline: Its windows.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._counted: tuple[Counter[int], Counter[int]] | None = None

    def are_shifted(self, node: Node) -> bool:
        """Both draws of a pair are made equally often on both sides, so only their time differs.

        Cost: the first question reads both traces once more.
        """
        if self._counted is None:
            self._counted = _count(self.timeline, REFERENCE), _count(self.timeline, SUSPECT)
        reference, suspect = self._counted
        keys = []
        for side, event in zip((REFERENCE, SUSPECT), node.both, strict=True):
            window = self.timeline.flow(side, node.window).window
            if not window.rng[event]:
                return False
            keys.append(int(_keys(window, np.array([event]))[0]))
        return all(reference[key] == suspect[key] for key in keys)


def _count(timeline: Timeline, side: int) -> Counter[int]:
    counted: Counter[int] = Counter()
    for _, window in timeline.columns[side].iter_windows():
        counted.update(_keys(window, np.flatnonzero(window.rng != 0)).tolist())
    return counted


def _keys(window: Window, events: Ints) -> Words:
    """Operator, state before and first result of each draw."""
    first, after = window.output_first[events], window.output_first[events + 1]
    results = np.zeros(len(events), np.uint64)
    made = after > first
    results[made] = window.value[window.output_rows[first[made]]]
    return combined(window.op[events], window.rng_before[events], results)
