"""Device work in words: which share of it has a boundary, what has none, and how the kernels of two boundaries differ.

Kernel names come from the observed programs: whoever shows these texts escapes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor
from typing import Any

from opguard_core.ids import SIDES

HOW = {
    "equal": "the same kernels on both sides",
    "none": "no device work on either side",
    "other counts": "the same kernels, launched another number of times",
    "another split": "another split of the sum (split-K)",
    "another tile": "the same kind of kernel with another tile or vector width",
    "other kernels": "other kernels",
    "one side only": "only one side launched something",
    "unknown": "the device work of one side was not recorded",
}
WHERE_FROM = "by mean kernel times of the preflight"


def percent(share: float) -> str:
    """Rounded down, so that only all of it is 100 %."""
    return f"{floor(1000 * share + 1e-9) / 10:.1f} %"


def of_side(ranks: Mapping[str, Mapping[str, Any]]) -> str:
    """What share of the work of one side has a boundary, over its ranks; "" without any rank."""
    watched = [rank for rank in ranks.values() if rank["watched"]]
    if not watched:
        return f"not recorded: {next(iter(ranks.values()))['why']}" if ranks else ""
    launches, attributed = (sum(rank[key] for rank in watched) for key in ("launches", "attributed"))
    if not launches:
        return "none was launched"
    timed = [rank["time"] for rank in watched if rank["time"]]
    parts = [f"{percent(attributed / launches)} of {launches:,} launches"]
    if timed:
        total, own = (sum(time[key] for time in timed) for key in ("device_ns", "attributed_ns"))
        known = sum(time["timed"] for time in timed)
        part = f" (known for {known:,} launches)" if known < launches else ""
        parts.append(f"{percent(own / total)} of {total / 1e6:,.1f} ms {WHERE_FROM}{part}")
    else:
        parts.append("by count only, for no kernel times are known")
    missing = len(ranks) - len(watched)
    parts += [f"{missing} ranks were not recorded"] if missing else []
    return ", ".join(parts) + _lower_bound(watched)


def _lower_bound(ranks: Sequence[Mapping[str, Any]]) -> str:
    lost, escaped = (sum(rank[key] for rank in ranks) for key in ("lost", "escaped"))
    told = [
        *([f"{lost:,} records were lost"] if lost else []),
        *([f"{escaped:,} entry points were given out past the record"] if escaped else []),
    ]
    return f" ({' and '.join(told)}: there was more)" if told else ""


def is_whole(ranks: Mapping[str, Mapping[str, Any]]) -> bool:
    """All of one side's work was recorded, and has a boundary."""
    return all(
        rank["watched"] and rank["attributed"] == rank["launches"] and not (rank["lost"] or rank["escaped"]) for rank in ranks.values()
    )


def in_short(work: Mapping[str, Any]) -> str:
    """Both sides in one line."""
    told = {side: text for side in SIDES if (text := of_side(work[side]))}
    if len(told) == len(SIDES) and len(set(told.values())) == 1:
        return f"{next(iter(told.values()))} on each side"
    return "; ".join(f"{text} of the {side}" for side, text in told.items())


def loose(row: Mapping[str, Any]) -> str:
    """A kernel without a boundary: how often, where, and whether it may have touched observed tensors."""
    steps = row["steps"]
    when = "" if steps is None else f", step {steps[0]}" if steps[0] == steps[1] else f", steps {steps[0]} to {steps[1]}"
    touches = "touched no observed tensor" if not row["touching"] else f"{row['touching']:,} of them may have touched observed tensors"
    return f"{row['name']} x{row['count']:,} (after work of phase {', '.join(row['phases'])}{when}; {touches})"


def lead(row: Mapping[str, Any]) -> str:
    """A kernel that ran on one side only."""
    by = f", launched by {', '.join(row['operators'])}" if row["operators"] else ", outside all boundaries"
    return f"only the {row['only']} ran {row['name']} x{row['launches']:,}{by}"


def listed(rows: Sequence[Mapping[str, Any]] | None, most: int) -> list[str]:
    """Kernels of one side of a boundary, each with how often."""
    names = [row["name"] if row["count"] == 1 else f"{row['name']} x{row['count']}" for row in rows or ()]
    return names[:most] + ([f"and {len(names) - most} more"] if len(names) > most else [])


def kernels(told: Mapping[str, Any], most: int = 4) -> str:
    """How the kernels of a boundary differ, in a sentence; "" where it launched none."""
    if told["how"] in ("none",):
        return ""
    if told["how"] == "equal":
        return f"{HOW['equal']}: {', '.join(listed(told['reference'], most))}"
    sides = [f"{side}: {', '.join(listed(told[side], most)) or 'nothing'}" for side in SIDES if told[side] is not None]
    return f"{HOW[told['how']]}; {'; '.join(sides)}"


def counted(names: Mapping[str, int], most: int = 4) -> str:
    """Names with counts, as a profiler tells them."""
    shown = [f"{name[:80]} x{count}" for name, count in list(names.items())[:most]]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")


def profiled(check: Mapping[str, Any]) -> str:
    """What a profiler and the record of launches saw of the same step."""
    seen, both = (check.get(key) for key in ("profiler", "both"))
    parts = [f"both saw {both:,} of the profiler's {seen:,} kernels in a step"] if type(seen) is int and type(both) is int else []
    for key, text in (("missed", "the profiler alone"), ("alone", "the record alone")):
        parts += [f"{text}: {counted(check[key])}"] if check.get(key) else []
    graphs = check.get("graphs")
    parts += [f"{graphs:,} replays of graphs captured unseen, whose kernels only the profiler sees"] if graphs else []
    return "; ".join(parts)
