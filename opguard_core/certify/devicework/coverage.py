"""Which share of the work that a rank gave to its device has a boundary: by count, by time, by operator, by kernel, the rest named.

Counts the rows of ``launches``. A kernel of a replayed graph counts with the operator that captured it, and as touching: nothing looks at
what a replay writes. Cannot see: kernels of a graph whose capture was not seen (one piece of work stands for all of them), and what never
passed the places that are watched; the rank's manifest says what it knows of those.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opguard_core.align.steps import Steps
from opguard_core.certify.devicework.kernels import is_watched
from opguard_core.certify.devicework.names import told_apart
from opguard_core.ids import Work
from opguard_core.trace.columns import NO_NUMBER
from opguard_core.trace.reader import RankTrace

SHOWN = 12
"""Operators and kernels listed, those with the most work first, and twice as many without a boundary; the rest is counted."""

BEFORE_ALL = "before the first boundary"
NOT_IN_TRACE = "(an event that the trace lost)"

Ints = NDArray[np.int64]
Times = Mapping[str, float]
"""Mean nanoseconds on the device by recorded kernel name."""

Kernel = tuple[str, str]
"""Kind of work and recorded name."""


@dataclass
class Loose:
    """Work without a boundary, of one kernel.

    Attributes:
        count: Pieces of work.
        num_bytes: Of copies and fills.
        touching: Of ``count``, those that got, or may have got, an address inside a living storage of the program.
        phases: Phases of the boundaries before them, in order of first sight.
        afters: First and last event after which they were seen; None before the first.
    """

    count: int = 0
    num_bytes: int = 0
    touching: int = 0
    phases: list[str] = field(default_factory=list)
    afters: list[int] = field(default_factory=list)


@dataclass
class RankWork:
    """Device work of one rank.

    Attributes:
        watched: Whether it was recorded.
        why: Why it was not, or what the record lacks.
        lost: Records lost.
        escaped: Calls known to have gone past the record.
        attributed: Pieces of work with a boundary, by kernel.
        loose: Work without one, by kernel.
        by_operator: Kernels of each operator, with counts.
        boundaries: Events that launched something.
        replayed: Pieces of work of replayed graphs among ``attributed``, when no boundary was in flight.
        replays: Replays of graphs, None where that was not counted.
        steps: Step of each event in `Loose.afters`.
        times: Mean kernel times.
    """

    watched: bool
    why: str = ""
    lost: int = 0
    escaped: int = 0
    attributed: Counter[Kernel] = field(default_factory=Counter)
    loose: dict[Kernel, Loose] = field(default_factory=dict)
    by_operator: dict[str, Counter[Kernel]] = field(default_factory=dict)
    boundaries: int = 0
    replayed: int = 0
    replays: int | None = None
    steps: dict[int, int] = field(default_factory=dict)
    times: Times = field(default_factory=dict)

    @property
    def num_attributed(self) -> int:
        """Pieces of work with a boundary."""
        return self.attributed.total()

    @property
    def num_loose(self) -> int:
        """Pieces of work without one."""
        return sum(loose.count for loose in self.loose.values())

    @property
    def total(self) -> int:
        """All pieces of work."""
        return self.num_attributed + self.num_loose

    @property
    def kernels(self) -> Counter[Kernel]:
        """All work by kernel."""
        return self.attributed + Counter({kernel: loose.count for kernel, loose in self.loose.items()})

    def to_dict(self, shown: int = SHOWN) -> dict[str, Any]:
        """Plain form, as an answer has it; lists are cut to so many, totals are not."""
        if not self.watched:
            return {"watched": False, "why": self.why}
        names = told_apart(self.kernels)
        operators = sorted(self.by_operator.items(), key=lambda item: (-self._weight(item[1]), -item[1].total(), item[0]))
        kernels = sorted(self.kernels.items(), key=lambda item: (-self._weight(Counter({item[0]: item[1]})), -item[1], item[0]))
        loose = sorted(self.loose.items(), key=lambda item: (-item[1].touching, -item[1].count, item[0]))
        return {
            "watched": True,
            **({"why": self.why} if self.why else {}),
            "launches": self.total,
            "attributed": self.num_attributed,
            "share": self.num_attributed / self.total if self.total else 1.0,
            "time": self._time(),
            "boundaries": self.boundaries,
            "operators": [{"operator": name, "launches": works.total(), **self._ns(works)} for name, works in operators[:shown]],
            "operators_total": len(operators),
            "kernels": [
                {
                    "name": names[kernel],
                    "kind": kernel[0],
                    "launches": count,
                    "attributed": self.attributed[kernel],
                    **self._ns(Counter({kernel: count})),
                }
                for kernel, count in kernels[:shown]
            ],
            "kernels_total": len(kernels),
            "unattributed": [self._loose(names[kernel], kernel, one) for kernel, one in loose[: 2 * shown]],
            "unattributed_total": len(loose),
            "touching": sum(one.touching for one in self.loose.values()) + self.replayed,
            "graph_replays": self._num_replays(),
            "lost": self.lost,
            "escaped": self.escaped,
        }

    def _num_replays(self) -> int:
        """As counted; in a trace of before, a row stands for each."""
        return sum(count for (kind, _), count in self.kernels.items() if kind == Work.GRAPH) if self.replays is None else self.replays

    def _weight(self, works: Counter[Kernel]) -> float:
        """Nanoseconds where times are known; work without one weighs nothing."""
        return sum(count * self.times.get(kernel, 0.0) for (_, kernel), count in works.items())

    def _ns(self, works: Counter[Kernel]) -> dict[str, int]:
        known = self._weight(works)
        return {"device_ns": round(known)} if known else {}

    def _time(self) -> dict[str, Any] | None:
        """Shares by time; None without kernel times."""
        every = self.kernels
        timed = sum(count for (_, kernel), count in every.items() if kernel in self.times)
        total = self._weight(every)
        if not total:
            return None
        own = self._weight(self.attributed)
        return {"device_ns": round(total), "attributed_ns": round(own), "share": own / total, "timed": timed}

    def _loose(self, name: str, kernel: Kernel, one: Loose) -> dict[str, Any]:
        steps = [self.steps[after] for after in one.afters if after in self.steps]
        return {
            "name": name,
            "kind": kernel[0],
            "count": one.count,
            **({"bytes": one.num_bytes} if one.num_bytes else {}),
            "touching": one.touching,
            "phases": one.phases,
            "steps": [min(steps), max(steps)] if steps else None,
            **self._ns(Counter({kernel: one.count})),
        }


def rank_work(trace: RankTrace, times: Times | None = None) -> RankWork | None:
    """Count the device work of a rank.

    Args:
        trace: The rank.
        times: Mean nanoseconds by kernel, of a preflight; without any those of the rank's own manifest.

    Returns:
        None where there was no device to watch: the manifest does not speak of it and there are no rows.

    Raises:
        TraceFormatError: The trace cannot be read.

    Cost: one pass over the events if there are rows, two if some have no boundary.
    """
    report = trace.manifest.engines.get("launches")
    told = report if isinstance(report, dict) else {}
    if not is_watched(trace):
        return None if report is None else RankWork(False, str(told.get("reason") or "no reason is recorded"))
    lost = _number(told, "lost") + trace.manifest.drops.other.get("launches", 0)
    found = RankWork(True, str(told.get("reason") or ""), lost, _number(told, "escaped"), times=times or kernel_times(trace))
    found.replays = _number(told, "replays") if "replays" in told else None
    if len(trace.launches):
        _count(trace, found)
    return found


def kernel_times(trace: RankTrace) -> Times:
    """Mean times that a rank's own manifest has, from a profile of one of its steps (``kernel_times`` of `launches`, or beside it)."""
    report = trace.manifest.engines.get("launches")
    own = report.get("kernel_times") if isinstance(report, dict) else None
    return times_of(own or trace.manifest.extra.get("kernel_times"))


def times_of(stored: object) -> Times:
    """Mean times out of what is stored: by kernel, ``{"count": n, "mean_ns": x}`` or nanoseconds. What is none of these is left out."""
    if not isinstance(stored, Mapping):
        return {}
    means = {str(name): one.get("mean_ns") if isinstance(one, Mapping) else one for name, one in stored.items()}
    return {name: float(mean) for name, mean in means.items() if isinstance(mean, int | float) and 0 < mean < math.inf}


def _number(report: Mapping[str, Any], name: str) -> int:
    value = report.get(name)
    return value if type(value) is int and value > 0 else 0


def _count(trace: RankTrace, found: RankWork) -> None:
    table = trace.launches
    columns, kinds, kernels = table.columns, table.strings["kind"], table.strings["kernel"]
    seqs, operators, phases, windows = _events(trace)
    codes = columns["kind"].astype(np.int64) * max(len(kernels), 1) + columns["kernel"]

    def kernel(code: int) -> Kernel:
        return kinds[code // max(len(kernels), 1)], kernels[code % max(len(kernels), 1)]

    loose, own = slice(0, table.num_unattributed), slice(table.num_unattributed, None)
    found.boundaries = len(np.unique(columns["seq"][own]))
    again = (columns["after"][own] != NO_NUMBER) & (columns["touches"][own] != 0)
    found.replayed = int(columns["count"][own][again].astype(np.int64).sum())
    operator = _of(seqs, operators, columns["seq"][own])
    num_codes = max(len(kinds), 1) * max(len(kernels), 1)
    keys, inverse = np.unique((operator + 1) * num_codes + codes[own], return_inverse=True)
    counts = _summed(inverse.reshape(-1), columns["count"][own], len(keys))
    by_operator: dict[str, Counter[Kernel]] = defaultdict(Counter)
    for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
        number, code = key // num_codes - 1, key % num_codes
        name = trace.strings["operator"][number] if number >= 0 else NOT_IN_TRACE
        by_operator[name][kernel(code)] += count
        found.attributed[kernel(code)] += count
    found.by_operator = dict(by_operator)
    after = columns["after"][loose]
    phase = _of(seqs, phases, after)
    touching = np.where(columns["touches"][loose] == 0, 0, columns["count"][loose].astype(np.int64))  # not told counts as touching
    places = np.where(after == NO_NUMBER, 0, phase + 2)  # before all boundaries, an event that was lost, a phase
    num_places = len(trace.strings["phase"]) + 2
    keys, first, inverse = np.unique(codes[loose] * num_places + places, return_index=True, return_inverse=True)
    group = inverse.reshape(-1)
    sums = [_summed(group, column, len(first)) for column in (columns["count"][loose], columns["num_bytes"][loose], touching)]
    earliest, latest = np.full(len(first), np.iinfo(np.int64).max), np.full(len(first), -1)
    np.minimum.at(earliest, group, after)
    np.maximum.at(latest, group, after)
    for at in np.argsort(first, kind="stable").tolist():
        code, number = int(keys[at]) // num_places, int(keys[at]) % num_places - 2
        one = found.loose.setdefault(kernel(code), Loose())
        one.count += int(sums[0][at])
        one.num_bytes += int(sums[1][at])
        one.touching += int(sums[2][at])
        where = trace.strings["phase"][number] if number >= 0 else BEFORE_ALL if number == -2 else NOT_IN_TRACE
        if where not in one.phases:
            one.phases.append(where)
        if number >= 0:
            one.afters = [min([int(earliest[at]), *one.afters]), max([int(latest[at]), *one.afters])]
    asked = np.array(sorted({seq for one in found.loose.values() for seq in one.afters}), np.int64)
    if len(asked):
        wanted = list(zip(_of(seqs, windows, asked).tolist(), asked.tolist(), strict=True))
        found.steps = {seq: step for (_, seq), step in Steps(trace).of(wanted).items()}


def _events(trace: RankTrace) -> tuple[Ints, Ints, Ints, Ints]:
    """Number, operator, phase and window of each event."""
    parts: list[list[Ints]] = [[np.zeros(0, np.int64)] * 4]
    for table in trace.iter_windows():
        columns = [table.events[name].astype(np.int64) for name in ("seq", "operator", "phase")]
        parts.append([*columns, np.full(len(table), table.window, np.int64)])
    seq, operator, phase, window = (np.concatenate(column) for column in zip(*parts, strict=True))
    return seq, operator, phase, window


def _of(seqs: Ints, column: Ints, wanted: Ints) -> Ints:
    """Values of a column at some event numbers; -1 where there is no such event."""
    if not len(seqs):
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(seqs, wanted), len(seqs) - 1)
    return np.where(seqs[at] == wanted, column[at], -1)


def _summed(group: Ints, counts: NDArray[Any], num_groups: int) -> Ints:
    """Sums of int64 by group; exact, which `np.bincount` with weights is not."""
    order = np.argsort(group, kind="stable")
    running = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[order].astype(np.int64))])
    ends = np.cumsum(np.bincount(group, minlength=num_groups))
    total: Ints = running[ends] - running[np.concatenate([np.zeros(1, np.int64), ends[:-1]])]
    return total


__all__ = ["BEFORE_ALL", "Loose", "RankWork", "kernel_times", "rank_work", "times_of"]
