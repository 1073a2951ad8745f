"""Two runs in, one verdict out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from opguard_core.align.ranks import pair_ranks
from opguard_core.align.timeline import Timeline
from opguard_core.certify.completeness import Completeness
from opguard_core.certify.describe import Describer
from opguard_core.certify.filtered import listed
from opguard_core.certify.filters import Filter, parse_filters
from opguard_core.certify.findings import RankFindings
from opguard_core.certify.hiding import Hiding
from opguard_core.certify.judge import RankJudge
from opguard_core.certify.semantic.answer import semantic
from opguard_core.certify.sentinel import compare_sentinels, is_sentinel
from opguard_core.certify.summary import summarise
from opguard_core.certify.verdict import Verdict
from opguard_core.trace.reader import Run

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many events are done, and how many there are."""


def compare(
    reference: Run,
    suspect: Run,
    *,
    rank_map: Mapping[int, int] | None = None,
    progress: Progress | None = None,
    filters: Iterable[Filter | Mapping[str, Any]] = (),
    contract_conflicts: Iterable[str] = (),
) -> Verdict:
    """Align and certify two runs.

    Args:
        reference: The run that is taken to be right.
        suspect: The run under suspicion.
        rank_map: Suspect rank by reference rank; equal numbers by default.
        progress: Told about every window done.
        filters: Benign differences somebody declared.
        contract_conflicts: Keys of contract differences that change arithmetic.

    Raises:
        TraceFormatError: A trace holds what no trace may hold.
        ConfigError: The rank map makes no sense.
        FilterInvalid: A filter names more or less than one difference, or lacks a reason or evidence.

    Cost: linear in the traces up to the first difference; one window of one rank of each side in memory.
    """
    ranks = pair_ranks(reference.ranks, suspect.ranks, rank_map)
    rules = parse_filters(filters)
    if is_sentinel(reference) and is_sentinel(suspect):  # state alone, which no filter may hide
        verdict = compare_sentinels(reference, suspect, ranks, tuple(contract_conflicts))
        verdict.filters = listed([], rules)
        return verdict
    total = sum(reference.ranks[a].num_events + suspect.ranks[b].num_events for a, b in ranks.pairs)
    counter = _Counter(progress, total)
    judged = [_judge_rank(reference, suspect, a, b, rules, counter) for a, b in ranks.pairs]
    completeness = Completeness(reference, suspect, ranks, [findings for findings, _ in judged], tuple(contract_conflicts))
    verdict = summarise(judged, completeness, rules)
    verdict.semantic = semantic(reference, suspect, ranks.pairs, verdict.pivot)
    return verdict


class _Counter:
    """Turns per-window counts into progress over all ranks."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def add(self, events: int) -> None:
        """Another window is done."""
        self._done += events
        if self._progress is not None:
            self._progress("align", min(self._done, self._total), self._total)


def _judge_rank(
    reference: Run, suspect: Run, reference_rank: int, rank: int, rules: list[Filter], counter: _Counter
) -> tuple[RankFindings, Describer]:
    timeline = Timeline(reference.ranks[reference_rank], suspect.ranks[rank])
    describer = Describer(timeline, rank)
    findings = RankFindings(rank, reference_rank)
    RankJudge(timeline, findings, Hiding(timeline, describer, rules, findings.filtered)).run(counter.add)
    return findings, describer


__all__ = ["Progress", "compare"]
