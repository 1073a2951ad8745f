"""The kernels of one boundary on both sides, and how they differ: another algorithm, another split, another tile."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from opguard_core.certify.devicework.names import told_apart, without_numbers
from opguard_core.ids import SIDES, Work
from opguard_core.trace.reader import RankTrace

MAX_KERNELS = 24
"""Different pieces of work of one boundary that an answer lists for each side."""

EQUAL = "equal"
NONE = "none"
COUNTS = "other counts"
SPLIT = "another split"
TILE = "another tile"
KERNELS = "other kernels"
ONE_SIDE = "one side only"
UNKNOWN = "unknown"

_SPLIT = re.compile(r"split_?k|splitkv|split_k_reduce|stream_?k", re.IGNORECASE)
_KERNELS = (str(Work.KERNEL), str(Work.COOPERATIVE), str(Work.GRAPH))

Works = Counter[tuple[str, str]]
"""Pieces of work by kind and recorded name, in order of first sight."""


@dataclass(frozen=True)
class Launched:
    """What a pair of boundaries gave to the device.

    Attributes:
        how: One of the words above.
        works: By side; None where nothing watched it.
    """

    how: str
    works: tuple[Works | None, Works | None]

    def to_dict(self) -> dict[str, Any]:
        """Plain form: ``how``, and of each side a list of ``name``, ``kernel`` (as recorded), ``kind``, ``count``; null: not watched."""
        names = told_apart(work for works in self.works if works for work in works)
        told: dict[str, Any] = {"how": self.how}
        for side, works in zip(SIDES, self.works, strict=True):
            rows = None if works is None else [
                {"name": names[kind, kernel], "kernel": kernel, "kind": kind, "count": count} for (kind, kernel), count in works.items()
            ]  # fmt: skip
            told[side] = rows if rows is None else rows[:MAX_KERNELS]
            if rows is not None and len(rows) > MAX_KERNELS:
                told[f"{side}_more"] = len(rows) - MAX_KERNELS
        return told


def is_watched(trace: RankTrace) -> bool:
    """Whether device work of a rank was recorded."""
    report = trace.manifest.engines.get("launches")
    return len(trace.launches) > 0 or (isinstance(report, dict) and report.get("active") is True)


def works_of(trace: RankTrace, seq: int) -> Works:
    """What one event launched, streams and bytes aside. Cost: two binary searches, and its rows."""
    works: Works = Counter()
    for row in trace.launches.of(seq):
        works[row.kind, row.kernel] += row.count
    return works


def launched(reference: RankTrace, suspect: RankTrace, seqs: tuple[int | None, int | None]) -> Launched | None:
    """What a boundary launched on both sides.

    Args:
        reference: Trace of the reference's rank.
        suspect: Trace of the suspect's rank.
        seqs: Its event on each side; None where that side lacks it.

    Returns:
        None where nothing watched the device work of either side.
    """
    watched = is_watched(reference), is_watched(suspect)
    if not any(watched):
        return None
    works = tuple(
        None if not seen or seq is None else works_of(trace, seq)
        for trace, seen, seq in zip((reference, suspect), watched, seqs, strict=True)
    )
    left, right = works
    if not all(watched):
        return Launched(UNKNOWN, (left, right))
    if left is None or right is None:
        return Launched(ONE_SIDE, (left, right))
    return Launched(how_differ(left, right), (left, right))


def how_differ(reference: Works, suspect: Works) -> str:
    """What is different about the work of two boundaries, in a word; the same word whichever side is called the suspect."""
    if reference == suspect:
        return EQUAL if reference else NONE
    if not reference or not suspect:
        return ONE_SIDE
    if reference.keys() == suspect.keys():
        return COUNTS
    named = [{kernel: count for (kind, kernel), count in works.items() if kind in _KERNELS} for works in (reference, suspect)]
    alone = [kernels.keys() - other.keys() for kernels, other in (named, named[::-1])]
    splits = [any(_SPLIT.search(kernel) for kernel in kernels) for kernels in alone]
    if splits[0] != splits[1]:
        return SPLIT
    if without_numbers(named[0]) == without_numbers(named[1]):
        return TILE
    return KERNELS
