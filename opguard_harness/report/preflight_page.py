"""What a preflight found, laid out for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opguard_core.ids import SIDES
from opguard_harness.report import device_words
from opguard_harness.report.escape import terminal

_LOOSE = 4
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def preflight_page(found: Mapping[str, Any]) -> list[str]:
    """Lay out the findings of ``workspace.preflight.findings``.

    Args:
        found: Its result.
    """
    common, cost = found["common"], found["cost"]
    shares = ", ".join(f"{common['share'][side]:.1%} of the {side}'s" for side in SIDES)
    counted = f"{common['boundaries_per_step']} boundaries a step at {common['sites']} sites"
    lines = [
        f"common      {counted}: {shares} (data aside); {common['renamed']} renamed",
        *(f"{side:<11} {_alone(found['alone'][side])}" for side in SIDES),
        *_device_work(found.get("device_work")),
        *(f"profiler    {side}: {terminal(device_words.profiled(check))}" for side, check in found.get("kernel_check", {}).items()),
        f"contract    {_contract(found['contract'])}",
        *(f"{'cost' if side == SIDES[0] else '':<11} {_cost(side, cost[side], cost['mode'])}" for side in SIDES),
        *_bases(cost),
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


def _device_work(work: Mapping[str, Any] | None) -> list[str]:
    """Boundaries that do device work, work without a boundary, and kernels of one side only."""
    if work is None:
        return []
    lines = [f"device work {terminal(device_words.in_short(work))}"]
    sites = work["sites"]
    if sites is not None:
        lone = " and ".join(f"{sites['alone'][side]['sites']} of the {side} alone" for side in SIDES)
        lines.append(
            f"            sites that launch it: {sites['both']} on both sides, {sites['one_sided_total']} common ones on one side "
            f"only, {lone}; common ones that launch nothing: {sites['idle']}"
        )
    for side in SIDES:
        rows = [row for rank in work[side].values() if rank["watched"] for row in rank["unattributed"]]
        lines += [f"            {side}, without a boundary: {terminal(device_words.loose(row))}" for row in rows[:_LOOSE]]
        lines += [f"            and {len(rows) - _LOOSE} more of the {side}"] if len(rows) > _LOOSE else []
    lines += [f"            a lead: {terminal(device_words.lead(row))}" for row in work["one_sided"][:_LOOSE]]
    more = work["one_sided_total"] - _LOOSE
    return [*lines, *([f"            and {more} more kernels of one side only"] if more > 0 else [])]


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


def _bases(cost: Mapping[str, Any]) -> list[str]:
    """What the estimates rest on, once where both sides share it, and the memory that observing takes of a card."""
    said = {side: cost[side]["basis"] for side in SIDES}
    alike = len(set(said.values())) == 1
    lines = [f"basis       {terminal(text if alike else f'{side}: {text}')}" for side, text in said.items()][: 1 if alike else None]
    taken = max(cost[side]["device_bytes"] for side in SIDES)
    if taken:
        pinned = max(cost[side]["pinned_bytes"] for side in SIDES)
        lines.append(f"memory      {_size(taken)} of the card and {_size(pinned)} of the host for records on their way, in every mode")
    return lines


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
