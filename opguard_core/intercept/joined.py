"""What the profiled steps of several ranks say together; see `profiled`, whose words these are. Needs no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

MAX_NAMED = 20  # differences told, the most frequent first


def joined(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The answers of several ranks as one: times weighted by counts, checks added up."""
    times: dict[str, list[float]] = {}
    check: Counter[str] = Counter()
    names: dict[str, Counter[str]] = {"missed": Counter(), "alone": Counter()}
    checked = False
    for part in parts:
        for name, one in part.get("kernel_times", {}).items():
            whole = times.setdefault(name, [0, 0.0])
            whole[0] += one["count"]
            whole[1] += one["count"] * one["mean_ns"]
        if "kernel_check" in part:
            checked = True
            check.update({key: value for key, value in part["kernel_check"].items() if key not in names})
            for key, whole_names in names.items():
                whole_names.update(part["kernel_check"][key])
    found: dict[str, Any] = {}
    if times:
        found["kernel_times"] = {name: {"count": int(count), "mean_ns": total / count} for name, (count, total) in times.items() if count}
    if checked:
        found["kernel_check"] = {**check, **{key: dict(all_names.most_common(MAX_NAMED)) for key, all_names in names.items()}}
    return found
