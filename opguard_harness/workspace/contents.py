"""What is inside a trace, counted: facts for `trace DIR` and for the tools that capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opguard_core.trace.reader import RankTrace

_OPERATORS_SHOWN = 12


def contents(trace: Path) -> dict[str, Any]:
    """Count a trace; reads every event once, one window at a time.

    Args:
        trace: A run's trace directory.

    Returns:
        Plain values: run facts, per-rank counts and coverage, the most frequent operators.

    Raises:
        TraceFormatError: It cannot be read.
    """
    from opguard_core.certify.devicework.coverage import times_of
    from opguard_core.trace.reader import Run

    run = Run.open(trace)
    operators: Counter[str] = Counter()
    times = times_of(run.manifest.extra.get("kernel_times"))
    ranks = [_rank(number, rank, operators, times) for number, rank in sorted(run.ranks.items())]
    num_bytes = sum(path.stat().st_size for path in trace.rglob("*") if path.is_file())
    tensors = sum(rank["tensors"] for rank in ranks)
    manifest = run.manifest
    return {
        "trace": str(trace),
        "created_utc": manifest.created_utc,
        "argv": manifest.argv,
        "mode": manifest.mode,
        "window": list(manifest.steps) if manifest.steps else None,
        "exit": manifest.exit,
        "complete": run.torn is None and all(rank["torn"] is None for rank in ranks),
        "torn": run.torn.text if run.torn else None,
        "missing_ranks": run.missing_ranks,
        "left_alone": manifest.left_alone,
        "ranks": len(ranks),
        "events": sum(rank["events"] for rank in ranks),
        "tensors": tensors,
        "bytes_on_disk": num_bytes,
        "bytes_per_tensor": round(num_bytes / tensors, 1) if tensors else None,
        "operators": dict(operators.most_common(_OPERATORS_SHOWN)),
        "per_rank": ranks,
    }


def boundaries(trace: Path) -> tuple[Counter[tuple[str, str]], int]:
    """Count the boundaries of all ranks by (phase, operator), and the windows; markers are left out."""
    from opguard_core.trace.reader import Run

    found: Counter[tuple[str, str]] = Counter()
    windows = set()
    for rank in Run.open(trace).ranks.values():
        for table in rank.iter_windows():
            windows.add(table.window)
            phases, operators, kinds = (table.strings[name] for name in ("phase", "operator", "kind"))
            for kind, phase, operator in zip(*(table.events[name].tolist() for name in ("kind", "phase", "operator")), strict=True):
                if kinds[kind] in ("operator", "collective"):
                    found[(phases[phase], operators[operator])] += 1
    return found, len(windows)


def _rank(number: int, rank: RankTrace, operators: Counter[str], times: Mapping[str, float]) -> dict[str, Any]:
    """Counts of one rank; adds its operators to the common count."""
    kinds: Counter[str] = Counter()
    phases: Counter[str] = Counter()
    windows = []
    for table in rank.iter_windows():
        windows.append(table.window)
        names = {name: table.strings[name] for name in ("kind", "phase", "operator")}
        for kind, phase, operator in zip(*(table.events[name].tolist() for name in ("kind", "phase", "operator")), strict=True):
            kinds[names["kind"][kind]] += 1
            if names["kind"][kind] in ("operator", "collective"):
                phases[names["phase"][phase]] += 1
                operators[names["operator"][operator]] += 1
    return {
        "rank": number,
        "events": rank.num_events,
        "tensors": rank.num_slots,
        "windows": [min(windows), max(windows) + 1] if windows else None,
        "kinds": dict(kinds),
        "phases": dict(phases),
        "torn": rank.torn.text if rank.torn else None,
        "dropped": [list(pair) for pair in rank.dropped],
        "ended": rank.manifest.ended,
        "engines": rank.manifest.engines,
        "coverage": rank.manifest.coverage,
        **_device_work(rank, times),
    }


def _device_work(rank: RankTrace, times: Mapping[str, float]) -> dict[str, Any]:
    """Which share of the device's work has a boundary; nothing where there was no device."""
    from opguard_core.certify.devicework.coverage import rank_work

    found = rank_work(rank, times)
    return {} if found is None else {"device_work": found.to_dict()}
