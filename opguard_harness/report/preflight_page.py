"""What a preflight found, laid out for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opguard_core.ids import SIDES
from opguard_harness.report.escape import terminal

_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def preflight_page(found: Mapping[str, Any]) -> list[str]:
    """Lay out the findings of ``workspace.preflight.preflight``.

    Args:
        found: Its result.
    """
    common, cost = found["common"], found["cost"]
    shares = ", ".join(f"{common['share'][side]:.1%} of the {side}'s" for side in SIDES)
    counted = f"{common['boundaries_per_step']} boundaries a step at {common['sites']} sites"
    lines = [
        f"common      {counted}: {shares} (data aside); {common['renamed']} renamed",
        *(f"{side:<11} {_alone(found['alone'][side])}" for side in SIDES),
        f"contract    {_contract(found['contract'])}",
        *(f"{'cost' if side == SIDES[0] else '':<11} {_cost(side, cost[side], cost['mode'])}" for side in SIDES),
        f"disk        {_disk(cost['disk'])}",
        *(f"warning     {terminal(text)}" for text in found["warnings"]),
    ]
    if found["plan"]:
        plan = found["plan"]
        steps = "all steps" if plan["steps"] is None else f"steps {plan['steps'][0]}:{plan['steps'][1]}"
        lines += [
            f"plan        {terminal(plan['file'])}: {plan['hash'][:12]}, {plan['sites']} sites, mode {plan['mode']}, {steps}",
            "next        give it to both runs: `opguard-harness compare --plan FILE`, or `plan` of `run_guarded`",
        ]
    return lines


def _alone(alone: Mapping[str, Any]) -> str:
    if not alone["sites"]:
        return "nothing of its own"
    first = alone["examples"][0]
    where = f"{first['operator']} in {first['phase']}: {first['text'][:80]}"
    own = f"{alone['boundaries_per_step']} a step of its own at {alone['sites']} sites"
    return f"{own}; the first: {terminal(where)} ({terminal(first['at'])})"


def _contract(contract: list[dict[str, Any]]) -> str:
    if not contract:
        return "no differences"
    arithmetic = [item["key"] for item in contract if item["severity"] == "arithmetic"]
    named = f" change arithmetic ({terminal(', '.join(arithmetic[:6]))})" if arithmetic else " change arithmetic"
    return f"{len(contract)} differences, of which {len(arithmetic)}{named}"


def _cost(side: str, cost: Mapping[str, Any], mode: str) -> str:
    if cost["step_s"] is None:
        extra = ", ".join(f"{name} +{_milliseconds(one.added_s)}" for name, one in cost["modes"].items())
        return f"{side}: a bare step was not timed; by the number of boundaries and bytes a step gets longer by: {extra}"
    own = cost["modes"][mode]
    others = ", ".join(f"{name} {one.ratio:.2f}x" for name, one in cost["modes"].items() if name != mode)
    measured = f"{own.ratio:.2f}x measured" if own.ratio is not None else "not timed"
    return f"{side}: {mode} {measured} on a step of {_milliseconds(cost['step_s'])}; estimated: {others}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _disk(room: Any) -> str:
    each = f"{_size(room.step_bytes)} a step and {_size(room.start_bytes)} once, both sides"
    if room.needed_bytes is None:
        return f"{each}; {room.steps_that_fit} steps fit into the {_size(room.free_bytes)} that may be used"
    fits = "fit" if room.fits else "DO NOT FIT"
    return f"{each}; {_size(room.needed_bytes)} for {room.planned_steps} steps {fits} into the {_size(room.free_bytes)} that may be used"


def _size(num_bytes: int) -> str:
    """A size with at most four digits."""
    value, unit = float(num_bytes), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"
