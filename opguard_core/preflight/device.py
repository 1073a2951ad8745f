"""Which sites of a look at two runs do device work: the lowest operators that Python can name, on both sides, on one, or nowhere.

Boundaries are the innermost operators that an engine sees, so the one in flight when work is launched is the lowest there is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opguard_core.align.columns import Window
from opguard_core.certify.devicework.coverage import rank_work, times_of
from opguard_core.certify.devicework.leads import device_work
from opguard_core.plan.document import PlanSite
from opguard_core.trace.reader import RankTrace, Run

Ints = NDArray[np.int64]

MAX_TIMES = 4_096
"""Kernels whose mean time a plan carries."""


class Launches:
    """Pieces of work by event of one rank.

    Args:
        trace: The rank.
    """

    def __init__(self, trace: RankTrace) -> None:
        table = trace.launches
        own = slice(table.num_unattributed, None)
        self._seqs, inverse = np.unique(table.columns["seq"][own], return_inverse=True)
        self._counts: Ints = np.zeros(len(self._seqs), np.int64)
        np.add.at(self._counts, inverse.reshape(-1), table.columns["count"][own].astype(np.int64))

    def of(self, window: Window) -> Ints:
        """Pieces of work of each event of a window; int64[n]. A list operator, which is several events, counts at each of them."""
        if not len(self._seqs):
            return np.zeros(len(window), np.int64)
        at = np.minimum(np.searchsorted(self._seqs, window.seq), len(self._seqs) - 1)
        return np.where(self._seqs[at] == window.seq, self._counts[at], 0)


@dataclass
class SiteWork:
    """Pieces of work by site number, over the steps looked at.

    Attributes:
        pairs: Of paired boundaries, by (reference site, suspect site): both sides' counts.
        alone: Of boundaries that one side has alone, by side and site.
    """

    pairs: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    alone: tuple[Counter[int], Counter[int]] = field(default_factory=lambda: (Counter(), Counter()))

    def add_pair(self, pair: tuple[int, int], counts: tuple[int, int]) -> None:
        """Take in one pair of boundaries."""
        known = self.pairs.setdefault(pair, [0, 0])
        known[0] += counts[0]
        known[1] += counts[1]


@dataclass(frozen=True)
class Working:
    """Device work of the sites of a `Discovery`.

    Attributes:
        both: Common sites that launch work on both sides: what a comparison rests on.
        idle: Common sites that launch nothing.
        one_sided: Common sites that launch work on one side only, with both counts.
        alone: Sites of one side that launch work and have no counterpart, by side: how many, and how much they launch.
    """

    both: int
    idle: int
    one_sided: tuple[tuple[PlanSite, tuple[int, int]], ...]
    alone: tuple[tuple[int, int], tuple[int, int]]


def working(work: SiteWork, numbered: list[tuple[tuple[int, int], PlanSite]]) -> Working | None:
    """Sort the sites of a plan by the work they do.

    Args:
        work: What was counted.
        numbered: The common sites with the numbers that they were counted under.

    Returns:
        None where nothing launched any work, or nothing watched it.
    """
    counts = [(site, (found[0], found[1])) for pair, site in numbered for found in [work.pairs.get(pair, [0, 0])]]
    if not any(max(both) for _, both in counts) and not any(lonely.total() for lonely in work.alone):
        return None
    lonely = [(sum(count > 0 for count in counted.values()), counted.total()) for counted in work.alone]
    return Working(
        sum(min(both) > 0 for _, both in counts),
        sum(max(both) == 0 for _, both in counts),
        tuple((site, both) for site, both in counts if min(both) == 0 < max(both)),
        (lonely[0], lonely[1]),
    )


def kernel_times(reference: Run, suspect: Run) -> dict[str, dict[str, float]]:
    """Mean times of the kernels that either side was profiled with, nanoseconds; of both sides the larger.

    Returns:
        By kernel, as `times_of` reads it.
    """
    found: dict[str, float] = {}
    for run in (reference, suspect):
        for name, mean in times_of(run.manifest.extra.get("kernel_times")).items():
            found[name] = max(mean, found.get(name, 0.0))
    longest = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:MAX_TIMES]
    return {name: {"mean_ns": mean} for name, mean in longest}


def work_of(reference: Run, suspect: Run, pairs: tuple[tuple[int, int], ...]) -> dict[str, Any] | None:
    """Device work of both runs, as an answer has it; None where no rank had a device.

    Args:
        reference: A trace of the first steps of the reference.
        suspect: The same of the suspect.
        pairs: Ranks that stand for each other.
    """
    times = times_of(kernel_times(reference, suspect))
    sides = [{rank: rank_work(trace, times) for rank, trace in run.ranks.items()} for run in (reference, suspect)]
    return device_work((sides[0], sides[1]), pairs)


__all__ = ["MAX_TIMES", "Launches", "SiteWork", "Working", "kernel_times", "work_of", "working"]
