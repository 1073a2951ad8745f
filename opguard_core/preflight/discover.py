"""Two short traces in, what both sides run out: the boundaries in common and what each side has alone."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opguard_core.align.ranks import pair_ranks
from opguard_core.align.timeline import Step, Timeline
from opguard_core.ids import Phase
from opguard_core.plan.document import PlanSite, SiteKey
from opguard_core.preflight.device import Launches, SiteWork, Working, kernel_times, work_of, working
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
        shared: Boundaries of one step that both sides have: of the median step but the first.
        alone: Boundaries of one step that the reference, the suspect has alone; likewise.
        share: Shared boundaries of that step over all that the reference, the suspect has in it. Work on the data does not
            count: it may happen in another process.
        working: Which sites do device work; None where nothing launched any, or nothing watched it.
        device_work: Which share of both sides' device work has a boundary, as in an answer; None where no rank had a device.
        kernel_times: Mean times by kernel, where a step was profiled.
    """

    sites: tuple[PlanSite, ...]
    reference_only: tuple[Alone, ...]
    suspect_only: tuple[Alone, ...]
    steps: int
    shared: int
    alone: tuple[int, int]
    share: tuple[float, float]
    working: Working | None = None
    device_work: dict[str, Any] | None = None
    kernel_times: dict[str, dict[str, float]] = field(default_factory=dict)


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
    names: tuple[Tally[int], Tally[int]] = (Tally(), Tally())
    alone: tuple[Tally[int], Tally[int]] = (Tally(), Tally())
    confidence: dict[_Pair, int] = {}
    sizes: list[tuple[int, ...]] = []
    starts = all(from_the_start(run) for run in (reference, suspect))
    ranks = pair_ranks(reference.ranks, suspect.ranks, None).pairs
    work = SiteWork()
    for left, right in ranks:
        rank = _Rank(reference.ranks[left], suspect.ranks[right], table, work)
        rank.read(confidence)
        pairs.add_rank(rank.pairs, starts=starts)
        for side in (0, 1):
            totals = [_of_side(counts, side) + lone for counts, lone in zip(rank.pairs, rank.alone[side], strict=True)]
            names[side].add_rank(totals, starts=starts)
            alone[side].add_rank(rank.alone[side], starts=starts)
        sizes = max(sizes, rank.sizes(), key=len)
    lonely = [_lonely(tally, table) for tally in alone]
    typical = [int(statistics.median_high(column)) for column in zip(*(sizes[1:] or sizes), strict=True)] or [0] * 6
    shared, *alone_counts = typical[:3]
    counting, *lone = typical[3:]
    share = [counting / (counting + count) if counting else 0.0 for count in lone]
    numbered = _sites(pairs, names, confidence, table)
    sites = tuple(site for _, site in numbered)
    told = working(work, numbered), work_of(reference, suspect, ranks), kernel_times(reference, suspect)
    return Discovery(sites, lonely[0], lonely[1], len(sizes), shared, (alone_counts[0], alone_counts[1]), (share[0], share[1]), *told)


def _of_side(counts: Counter[_Pair], side: int) -> Counter[int]:
    """Counts of pairs as counts of one side's sites."""
    found: Counter[int] = Counter()
    for pair, count in counts.items():
        found[pair[side]] += count
    return found


class _Rank:
    """Counts of one pair of ranks, window by window."""

    def __init__(self, reference: RankTrace, suspect: RankTrace, table: SiteTable, work: SiteWork) -> None:
        self._table = table
        self._timeline = Timeline(reference, suspect)
        self._readers = tuple(SiteReader(columns, table) for columns in self._timeline.columns)
        self._launches = tuple(Launches(trace) for trace in (reference, suspect))
        self._work = work
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

    def sizes(self) -> list[tuple[int, ...]]:
        """Of each step: pairs, and boundaries that each side has alone; then the same without work on the data."""
        found = []
        for pairs, left, right in zip(self.pairs, *self.alone, strict=True):
            counts = [_of_side(pairs, 0), left, right]
            found.append((*(count.total() for count in counts), *(self._without_data(count) for count in counts)))
        return found

    def _without_data(self, counts: Counter[int]) -> int:
        return sum(count for number, count in counts.items() if self._table.keys[number].phase != str(Phase.DATA))

    def _take(self, step: Step, confidence: dict[_Pair, int]) -> None:
        aligned = step.aligned
        assert aligned is not None
        numbers = [reader.numbers(flow.window) for reader, flow in zip(self._readers, (aligned.reference, aligned.suspect), strict=True)]
        left = aligned.pairs
        names = list(zip(numbers[0][left].tolist(), numbers[1][aligned.left[left]].tolist(), strict=True))
        self.pairs.append(Counter(names))
        for name, sure in zip(names, aligned.confidence[left].tolist(), strict=True):
            confidence[name] = min(confidence.get(name, 3), max(1, sure))
        lone = [
            np.flatnonzero((partner < 0) & (number >= 0)) for number, partner in zip(numbers, (aligned.left, aligned.right), strict=True)
        ]
        for found, number, events in zip(self.alone, numbers, lone, strict=True):
            found.append(Counter(number[events].tolist()))
        counts = [launches.of(flow.window) for launches, flow in zip(self._launches, (aligned.reference, aligned.suspect), strict=True)]
        both = zip(counts[0][left].tolist(), counts[1][aligned.left[left]].tolist(), strict=True)
        for name, launched in zip(names, both, strict=True):
            self._work.add_pair(name, launched)
        for at, (number, events) in enumerate(zip(numbers, lone, strict=True)):
            for site, count in zip(number[events].tolist(), counts[at][events].tolist(), strict=True):
                self._work.alone[at][site] += count


def _sites(
    pairs: Tally[_Pair], names: tuple[Tally[int], Tally[int]], confidence: dict[_Pair, int], table: SiteTable
) -> list[tuple[_Pair, PlanSite]]:
    """Sites of pairs; numbers were given in the order in which the sites were met.

    One site can have another partner in another step. What a plan asks of a side is never more than that side did.
    """
    every, first = (_within(getattr(pairs, name), getattr(names[0], name), getattr(names[1], name)) for name in ("every", "first"))
    found = []
    for pair in sorted(every.keys() | first.keys()):
        key, other = table.keys[pair[0]], table.keys[pair[1]]
        found.append((pair, PlanSite(key, None if other == key else other, every[pair], first[pair], confidence[pair])))
    return found


def _within(pairs: Counter[_Pair], left: Counter[int], right: Counter[int]) -> Counter[_Pair]:
    """Counts of pairs, the most frequent first, as far as the counts of both sides reach."""
    left, right = Counter(left), Counter(right)
    kept: Counter[_Pair] = Counter()
    for pair, count in sorted(pairs.items(), key=lambda item: (-item[1], item[0])):
        taken = min(count, left[pair[0]], right[pair[1]])
        if taken:
            kept[pair] = taken
            left[pair[0]] -= taken
            right[pair[1]] -= taken
    return kept


def _lonely(tally: Tally[int], table: SiteTable) -> tuple[Alone, ...]:
    numbers = tally.every.keys() | tally.first.keys()
    found = [Alone(table.keys[number], table.spots[number], tally.every[number], tally.first[number]) for number in numbers]
    return tuple(sorted(found, key=lambda one: (-one.every, -one.first, one.key)))
