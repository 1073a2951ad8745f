"""Two short traces in, what both sides run out: the boundaries in common and what each side has alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from opguard_core.align.ranks import pair_ranks
from opguard_core.align.timeline import Step, Timeline
from opguard_core.plan.document import PlanSite, SiteKey
from opguard_core.preflight.sites import SiteReader, SiteTable, Spot, Tally, ends_step, from_the_start
from opguard_core.trace.reader import RankTrace, Run

_Pair = tuple[int, int]


@dataclass(frozen=True)
class Alone:
    """A site that only one side has.

    Attributes:
        key: Its name.
        spot: Where it was met.
        every: Executions in every step without a counterpart.
        first: The same in the first step, on top.
    """

    key: SiteKey
    spot: Spot
    every: int
    first: int


@dataclass(frozen=True)
class Discovery:
    """What a look at the first steps of both sides found.

    Attributes:
        sites: Sites both sides have, in the order in which the reference first runs them.
        reference_only: Sites of the reference without a counterpart, most frequent first.
        suspect_only: The same of the suspect.
        steps: Steps looked at.
    """

    sites: tuple[PlanSite, ...]
    reference_only: tuple[Alone, ...]
    suspect_only: tuple[Alone, ...]
    steps: int

    @property
    def shared(self) -> int:
        """Boundaries of one step that both sides have; of the only one there is, set-up included, if that is all."""
        return sum(site.every for site in self.sites) or sum(site.first for site in self.sites)


def discover(reference: Run, suspect: Run) -> Discovery:
    """Align the steps that both traces hold and name what they share.

    Args:
        reference: A trace of the first steps of the reference.
        suspect: The same of the suspect.

    Raises:
        TraceFormatError: A trace holds what no trace may hold.

    Cost: as aligning the two traces once.
    """
    table = SiteTable()
    pairs: Tally[_Pair] = Tally()
    alone: tuple[Tally[int], Tally[int]] = (Tally(), Tally())
    confidence: dict[_Pair, int] = {}
    steps = 0
    starts = all(from_the_start(run) for run in (reference, suspect))
    for left, right in pair_ranks(reference.ranks, suspect.ranks, None).pairs:
        rank = _Rank(reference.ranks[left], suspect.ranks[right], table)
        rank.read(confidence)
        steps = max(steps, len(rank.pairs))
        pairs.add_rank(rank.pairs, starts=starts)
        for tally, windows in zip(alone, rank.alone, strict=True):
            tally.add_rank(windows, starts=starts)
    return Discovery(_sites(pairs, confidence, table), _lonely(alone[0], table), _lonely(alone[1], table), steps)


class _Rank:
    """Counts of one pair of ranks, window by window."""

    def __init__(self, reference: RankTrace, suspect: RankTrace, table: SiteTable) -> None:
        self._timeline = Timeline(reference, suspect)
        self._readers = tuple(SiteReader(columns, table) for columns in self._timeline.columns)
        self.pairs: list[Counter[_Pair]] = []
        self.alone: tuple[list[Counter[int]], list[Counter[int]]] = ([], [])

    def read(self, confidence: dict[_Pair, int]) -> None:
        """Go through the steps; those that an update ended on both sides count, or all if there are none."""
        tail: list[Step] = []
        for step in self._timeline.steps():
            if step.aligned is None:
                continue
            if ends_step(step.aligned.reference.window) and ends_step(step.aligned.suspect.window):
                self._take(step, confidence)
            else:
                tail.append(step)
        if not self.pairs:
            for step in tail:
                self._take(step, confidence)

    def _take(self, step: Step, confidence: dict[_Pair, int]) -> None:
        aligned = step.aligned
        assert aligned is not None
        numbers = [reader.numbers(flow.window) for reader, flow in zip(self._readers, (aligned.reference, aligned.suspect), strict=True)]
        left = aligned.pairs
        names = list(zip(numbers[0][left].tolist(), numbers[1][aligned.left[left]].tolist(), strict=True))
        self.pairs.append(Counter(names))
        for name, sure in zip(names, aligned.confidence[left].tolist(), strict=True):
            confidence[name] = min(confidence.get(name, 3), max(1, sure))
        for found, number, partner in zip(self.alone, numbers, (aligned.left, aligned.right), strict=True):
            found.append(Counter(number[np.flatnonzero((partner < 0) & (number >= 0))].tolist()))


def _sites(pairs: Tally[_Pair], confidence: dict[_Pair, int], table: SiteTable) -> tuple[PlanSite, ...]:
    """Sites of pairs; numbers were given in the order in which the sites were met."""
    found = []
    for left, right in sorted(pairs.every.keys() | pairs.first.keys()):
        key, other = table.keys[left], table.keys[right]
        pair = (left, right)
        found.append(PlanSite(key, None if other == key else other, pairs.every[pair], pairs.first[pair], confidence[pair]))
    return tuple(found)


def _lonely(tally: Tally[int], table: SiteTable) -> tuple[Alone, ...]:
    numbers = tally.every.keys() | tally.first.keys()
    found = [Alone(table.keys[number], table.spots[number], tally.every[number], tally.first[number]) for number in numbers]
    return tuple(sorted(found, key=lambda one: (-one.every, -one.first, one.key)))
