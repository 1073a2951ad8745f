"""The growing set of pairs of one window, and its skeleton."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from opguard_core.align.columns import Ints
from opguard_core.align.features import Features
from opguard_core.align.gaps import Gap, split
from opguard_core.align.skeleton import longest_rising

CONTENT, EXACT, ANCHOR, EVIDENCE, LEFTOVER, FLOW, STRUCTURE, RESCUE = range(1, 9)
HOW = ("", "content", "exact", "anchor", "evidence", "leftover", "flow", "structure", "rescue")
"""By which pass a pair was made."""


@dataclass(eq=False)
class Pairing:
    """Pairs of events of one window while they are being found.

    Attributes:
        reference: Features of the reference's window.
        suspect: Features of the suspect's window.
        left: int64[a], partner of each reference event, -1 when free.
        right: int64[b], partner of each suspect event, -1 when free.
        how: uint8[a], the pass that paired each reference event, 0 when free.
        banded: Gaps of which only a band was searched.
    """

    reference: Features
    suspect: Features
    left: Ints = field(init=False)
    right: Ints = field(init=False)
    how: NDArray[np.uint8] = field(init=False)
    banded: int = 0
    _anchors: dict[int, tuple[Ints, Ints]] = field(default_factory=dict)
    _lanes: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """Start with every event free."""
        self.left = np.full(len(self.reference.window), -1, np.int64)
        self.right = np.full(len(self.suspect.window), -1, np.int64)
        self.how = np.zeros(len(self.left), np.uint8)
        self._lanes = np.intersect1d(self.reference.window.lane, self.suspect.window.lane).tolist()

    def add(self, left: Ints | int, right: Ints | int, how: int) -> None:
        """Pair free events."""
        self.left[left] = right
        self.right[right] = left
        self.how[left] = how

    def undo(self, left: Ints | int) -> None:
        """Free reference events and their partners."""
        self.right[self.left[left]] = -1
        self.left[left] = -1
        self.how[left] = 0

    def free_left(self) -> Ints:
        """Free, comparable reference events, rising."""
        return np.flatnonzero((self.left < 0) & self.reference.window.comparable)

    def free_right(self) -> Ints:
        """Free, comparable suspect events, rising."""
        return np.flatnonzero((self.right < 0) & self.suspect.window.comparable)

    def lanes(self) -> list[int]:
        """Lanes both sides have, rising."""
        return self._lanes

    def lay_skeleton(self) -> Ints:
        """Take the longest rising pairs of each lane as anchors.

        Returns:
            Reference events whose pairs are not on it.
        """
        paired = np.flatnonzero(self.left >= 0)
        lane_left = self.reference.window.lane[paired]
        same_lane = lane_left == self.suspect.window.lane[self.left[paired]]
        off = ~same_lane
        for lane in self.lanes():
            members = np.flatnonzero(same_lane & (lane_left == lane))
            kept = longest_rising(self.left[paired[members]])
            off[members[~kept]] = True
            anchors = paired[members[kept]]
            self._anchors[lane] = (anchors, self.left[anchors])
        strays: Ints = paired[off]
        return strays

    def extend_skeleton(self, left: Ints) -> None:
        """Add pairs found inside gaps; they keep the order, so the skeleton stays monotone."""
        lanes = self.reference.window.lane[left]
        for lane in np.unique(lanes).tolist():
            anchors = np.sort(np.concatenate([self._anchors[lane][0], left[lanes == lane]]))
            self._anchors[lane] = (anchors, self.left[anchors])

    def gaps(self) -> list[Gap]:
        """Free events of both sides between the same anchors of the same lane."""
        found: list[Gap] = []
        left, right = self.free_left(), self.free_right()
        for lane in self.lanes():
            anchors = self._anchors[lane]
            found += split(left[self.reference.window.lane[left] == lane], right[self.suspect.window.lane[right] == lane], *anchors)
        return found

    def whole_lanes(self) -> list[Gap]:
        """All free events of each lane as one gap."""
        left, right = self.free_left(), self.free_right()
        gaps = [
            Gap(left[self.reference.window.lane[left] == lane], right[self.suspect.window.lane[right] == lane]) for lane in self.lanes()
        ]
        return [gap for gap in gaps if gap.cells]
