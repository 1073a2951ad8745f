"""Apply the knobs of the "rank" kind inside a rank, right after torch was imported and before capture starts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from opguard_core.contract.knobs import KNOBS

Report = dict[str, dict[str, object]]


def _algorithms(torch: Any) -> tuple[Callable[[], bool], Callable[[bool], None]]:
    return torch.are_deterministic_algorithms_enabled, lambda value: torch.use_deterministic_algorithms(value, warn_only=True)


_SPECIAL: Mapping[str, Callable[[Any], tuple[Callable[[], bool], Callable[[bool], None]]]] = {
    "torch.use_deterministic_algorithms": _algorithms,
}


def apply_in_rank() -> Report:
    """Set every "rank" knob.

    Returns:
        ``{name: {"before", "after"}}``; a knob that this torch does not have is ``{"not_applied": reason}``.
    """
    report: Report = {}
    for knob in KNOBS:
        if knob.when != "rank":
            continue
        try:
            read, write = _access(knob.name)
            before = read()
            write(bool(knob.value))
            report[knob.name] = {"before": before, "after": read()}
        except (AttributeError, RuntimeError) as error:
            report[knob.name] = {"not_applied": f"{type(error).__name__}: {error}"}
    return report


def _access(name: str) -> tuple[Callable[[], bool], Callable[[bool], None]]:
    """How to read and write one setting of torch."""
    torch: Any = sys.modules["torch"]
    if name in _SPECIAL:
        return _SPECIAL[name](torch)
    *path, last = name.split(".")[1:]
    holder = torch
    for part in path:
        holder = getattr(holder, part)
    getattr(holder, last)  # an unknown name would be created by setting it
    return lambda: bool(getattr(holder, last)), lambda value: setattr(holder, last, value)
