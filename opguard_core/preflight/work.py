"""What one step of a trace is made of: boundaries, tensors, bytes read by each mode, bytes on disk, seconds.

A trace of one mode tells what the others would read: `full` marks what it did not read again as carried, `trusted` what it
left out by operator, and in a `verify` trace a read of an unchanged version of bytes just seen is what `full` would carry.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opguard_core.ids import OPERATOR_MODES, Direction, Kind, Status
from opguard_core.plan.allowlist import TRUSTED
from opguard_core.preflight.sites import is_step_end
from opguard_core.trace.columns import StringTables
from opguard_core.trace.reader import RankTrace, Run
from opguard_core.trace.sources import SOURCES_NAME, stored_bytes
from opguard_core.trace.window import WindowTable

Flags = NDArray[np.bool_]
_TRUSTED = frozenset(name.replace("::", ".") for name in TRUSTED)


@dataclass(frozen=True)
class Load:
    """What an observed step does, on the rank that has the most boundaries.

    Attributes:
        events: Boundaries of one step.
        tensors: Tensors that each mode fingerprints in one step.
        read_bytes: Bytes of these.
        state_tensors: Tensors of the state at the end of a step.
        state_bytes: Bytes of these.
    """

    events: float
    tensors: Mapping[str, float]
    read_bytes: Mapping[str, float]
    state_tensors: float
    state_bytes: float


@dataclass(frozen=True)
class Measured:
    """One side, measured over its first steps.

    Attributes:
        load: What one step does.
        steps: Steps measured.
        observed_s: Seconds of an observed step, None if no two updates were seen.
        bare_s: Seconds of a step after observation ended, in the same process; None if it was not measured.
        disk_step_bytes: Bytes of trace that one more step adds, all ranks.
        disk_start_bytes: Bytes of trace that a run has whatever its length: set-up, sources, tables.
        clock: "wall"; "work" where the machine was too busy for that: the time that the training's thread worked.
        observer: Who observed, "native" or "dispatch".
        device: Card that the training used, "" where it used none.
        memory_bytes_per_s: What that card's memory could move at most, None if unknown.
        device_bytes: Memory of the card that observing took for records on their way.
        pinned_bytes: Host memory that it took for them.
    """

    load: Load
    steps: int
    observed_s: float | None
    bare_s: float | None
    disk_step_bytes: int
    disk_start_bytes: int
    clock: str = "wall"
    observer: str = "dispatch"
    device: str = ""
    memory_bytes_per_s: float | None = None
    device_bytes: int = 0
    pinned_bytes: int = 0

    @property
    def ratio(self) -> float | None:
        """Observed over bare, or None."""
        return self.observed_s / self.bare_s if self.observed_s and self.bare_s else None


@dataclass
class _Rank:
    """Sums of one rank's steps."""

    events: list[int] = field(default_factory=list)
    tensors: list[Counter[str]] = field(default_factory=list)
    read_bytes: list[Counter[str]] = field(default_factory=list)
    state: list[tuple[int, int]] = field(default_factory=list)
    rows: list[tuple[int, int]] = field(default_factory=list)
    ended_ns: list[int] = field(default_factory=list)


def measure(run: Run) -> Measured:
    """Count and time the steps of a short run.

    Args:
        run: A trace of the first steps, of any mode but sentinel; where its program was ended early, its manifest has the
            times of unobserved steps.

    Cost: reads the trace once.
    """
    ranks = {number: _count(trace) for number, trace in run.ranks.items()}
    loads = [_load(rank) for rank in ranks.values()]
    heaviest = max(loads, key=lambda load: load.events)
    clock = _clock(run)
    observed, bare = ([_median_s(times) for times in _told(run, what, clock)] for what in ("observed", "bare"))
    if not observed:  # no early end: the times between the updates
        observed = [_median_s(np.diff(rank.ended_ns).tolist()) for rank in ranks.values()]
    per_step, start = zip(*(_disk(run.ranks[number], rank) for number, rank in ranks.items()), strict=True)
    sources = stored_bytes(run.path / SOURCES_NAME)
    steps = max(len(rank.events) for rank in ranks.values())
    timed = _slowest(observed), _slowest(bare)
    return Measured(heaviest, steps, *timed, sum(per_step), sum(start) + sources, clock, **_machine(run))


def _machine(run: Run) -> dict[str, Any]:
    """Who observed and on what, as the rank that took the most of its card says it."""
    found = [_rank_machine(trace) for _, trace in sorted(run.ranks.items())]
    return max(found, key=lambda facts: facts["device_bytes"])


def _rank_machine(trace: RankTrace) -> dict[str, Any]:
    contract, engines = trace.manifest.contract, trace.manifest.engines
    name, rate = (contract.get(f"device.{fact}") for fact in ("name", "memory_bytes_per_s"))
    active = [engine for engine in ("native", "dispatch") if isinstance(report := engines.get(engine), dict) and report.get("active", True)]
    digests = [report.get("fingerprint") for report in engines.values() if isinstance(report, dict)]
    devices = [device for found in digests if isinstance(found, dict) for device in found.values() if isinstance(device, dict)]
    taken = {key: sum(number for device in devices if type(number := device.get(key)) is int) for key in ("device_bytes", "pinned_bytes")}
    return {
        "observer": active[0] if active else "dispatch",
        "device": name if isinstance(name, str) else "",
        "memory_bytes_per_s": float(rate) if isinstance(rate, int | float) and rate > 0 else None,
        **taken,
    }


def _slowest(seconds: Sequence[float | None]) -> float | None:
    """All ranks wait for the slowest one."""
    return max((one for one in seconds if one is not None), default=None)


def _clock(run: Run) -> str:
    """Which clock to believe: on a busy machine a step takes as long as the others let it, unless a device does the work."""
    load, cores = (run.manifest.extra.get(name) for name in ("load", "cores"))
    busy = isinstance(load, int | float) and isinstance(cores, int) and load > cores
    on_device = any(not device.startswith("cpu") for trace in run.ranks.values() for device in trace.strings["device"] if device)
    return "work" if busy and not on_device else "wall"


def _told(run: Run, what: str, clock: str) -> Iterator[list[int]]:
    """Nanoseconds of the steps of each rank, as the launcher noted them."""
    noted = run.manifest.extra.get("step_times")
    at = ("wall", "work").index(clock)
    for times in noted.values() if isinstance(noted, dict) else ():
        steps = times.get(what) if isinstance(times, dict) else None
        yield [step[at] for step in steps or () if len(step) == 2 and all(type(count) is int for count in step)]


def _median_s(times_ns: Sequence[int]) -> float | None:
    return statistics.median(times_ns) / 1e9 if times_ns else None


def _count(trace: RankTrace) -> _Rank:
    rank = _Rank()
    for table in trace.iter_windows():
        rank.rows.append((len(table), table.num_slots))
        _count_window(table, trace.manifest.mode, rank)
    return rank


def _count_window(table: WindowTable, mode: str, rank: _Rank) -> None:
    kind, operator, args = (_texts(table, name, table.events) for name in ("kind", "operator", "args"))
    ends = [at for at in np.flatnonzero(kind == str(Kind.MARKER)).tolist() if is_step_end(operator[at], args[at])]
    rank.ended_ns += table.events["t_host_ns"][ends].tolist()
    of = np.repeat(np.arange(len(table)), np.diff(table.slot_start))
    state = (kind == str(Kind.STATE))[of] if len(of) else np.zeros(0, bool)
    nbytes = table.slots["nbytes"].astype(np.int64)
    status, direction = (_texts(table, name, table.slots) for name in ("status", "direction"))
    read = (status == str(Status.PROBED)) | (status == str(Status.CARRIED))
    trusted = np.isin(_base_names(operator), tuple(_TRUSTED))[of] & ~state if len(of) else np.zeros(0, bool)
    left_out = trusted & (status == str(Status.METADATA)) & (mode == "trusted")
    again = _again(table, read, direction) if mode == "verify" else status == str(Status.CARRIED)
    verify = (read | left_out) & ~state
    chosen = {"verify": verify, "full": verify & ~again, "trusted": verify & ~again & ~trusted}
    if not ends:
        return  # the tail after the last update, or set-up without a step
    rank.events.append(int(np.isin(kind, (str(Kind.OPERATOR), str(Kind.COLLECTIVE), str(Kind.READ))).sum()))
    rank.tensors.append(Counter({name: int(rows.sum()) for name, rows in chosen.items()}))
    rank.read_bytes.append(Counter({name: int(nbytes[rows].sum()) for name, rows in chosen.items()}))
    rank.state.append((int(state.sum()), int(nbytes[state].sum())))


def _texts(table: WindowTable, name: str, columns: Mapping[str, Any]) -> NDArray[Any]:
    strings: StringTables = table.strings
    words = np.array([*strings[name], ""], object)
    found: NDArray[Any] = words[columns[name]]
    return found


def _base_names(operator: NDArray[Any]) -> NDArray[Any]:
    """``aten.add.Tensor`` as the allowlist spells it: ``aten.add``."""
    return np.array([text.rpartition(".")[0] for text in operator.tolist()], object)


def _again(table: WindowTable, read: Flags, direction: NDArray[Any]) -> Flags:
    """Rows of a verify trace whose bytes were seen just before, unchanged: mode full would carry them."""
    again = np.zeros(len(read), bool)
    seen: dict[tuple[int, int, int], tuple[int, ...]] = {}
    columns = [table.slots[name].tolist() for name in ("storage", "extent_lo", "extent_hi", "version")]
    inputs = (direction == str(Direction.IN)).tolist()
    for row in np.flatnonzero(read).tolist():
        storage, lo, hi, version = (column[row] for column in columns)
        where = (storage, lo, hi)
        again[row] = inputs[row] and storage >= 0 and version >= 0 and version in seen.get(where, ())
        seen[where] = (version,) if inputs[row] else (version, version - 1)  # not every operator raises the counter of what it writes
    return again


def _load(rank: _Rank) -> Load:
    """The median step, without the first one where there are others: that one has the set-up in it."""
    later = slice(1, None) if len(rank.events) > 1 else slice(None)

    def median(values: Sequence[int]) -> float:
        return float(statistics.median(values[later])) if values else 0.0

    return Load(
        median(rank.events),
        {mode: median([counts[mode] for counts in rank.tensors]) for mode in OPERATOR_MODES},
        {mode: median([counts[mode] for counts in rank.read_bytes]) for mode in OPERATOR_MODES},
        median([tensors for tensors, _ in rank.state]),
        median([nbytes for _, nbytes in rank.state]),
    )


def _disk(trace: RankTrace, rank: _Rank) -> tuple[int, int]:
    """(bytes that one more step adds, the rest): rows of events and slots grow with the steps, tables of places do not."""
    sizes: Counter[str] = Counter()
    for path in trace.path.iterdir():
        if path.is_file():
            sizes[path.name.partition("-")[0]] += path.stat().st_size
    per_step = 0.0
    for at, table in enumerate(("events", "slots")):
        rows = [counts[at] for counts in rank.rows]
        complete = rows[1 : len(rank.events)] or rows
        if sum(rows):
            per_step += sizes[table] * statistics.median(complete) / sum(rows)
    if rank.events:
        per_step += sizes["lifetimes"] / (len(rank.events) + 1)  # storages made in a step; the set-up makes about as many
    steps = len(rank.events)
    return round(per_step), max(0, sum(sizes.values()) - round(per_step * steps))
