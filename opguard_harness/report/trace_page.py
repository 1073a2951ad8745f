"""What a trace holds, laid out for people."""

from __future__ import annotations

from typing import Any

from opguard_harness.report import device_words
from opguard_harness.report.escape import terminal

_UNKNOWN = "unknown"
_LISTED = 6


def trace_page(found: dict[str, Any]) -> list[str]:
    """Lay out the counts of ``workspace.contents.contents``.

    Args:
        found: Its result.
    """
    lines = [
        f"trace      {terminal(found['trace'])}",
        f"command    {terminal(' '.join(found['argv']))[:200] or _UNKNOWN}",
        f"captured   {terminal(found['created_utc']) or _UNKNOWN}, mode {terminal(found['mode']) or _UNKNOWN}, {_ended(found['exit'])}",
        f"holds      {found['events']} events, {found['tensors']} tensors",
        f"size       {found['bytes_on_disk']} bytes{_per_tensor(found)}",
    ]
    if found["operators"]:
        lines.append(f"operators  {', '.join(f'{terminal(name)} x{count}' for name, count in found['operators'].items())}")
    if not found["complete"]:
        lines.append(f"incomplete {terminal(found['torn'] or 'a rank stops early, see below')}")
    if found["missing_ranks"]:
        lines.append(f"missing    ranks {', '.join(map(str, found['missing_ranks']))}")
    for rank in found["per_rank"]:
        lines += _rank(rank)
    return lines


def _ended(ended: dict[str, Any] | None) -> str:
    if ended is None:
        return "end unknown"
    return f"exit code {ended.get('code')}" if ended.get("signal") is None else f"signal {ended['signal']}"


def _per_tensor(found: dict[str, Any]) -> str:
    return f", {found['bytes_per_tensor']} per tensor" if found["tensors"] else ""


def _rank(rank: dict[str, Any]) -> list[str]:
    steps = f"windows {rank['windows'][0]}:{rank['windows'][1]}" if rank["windows"] else "no windows"
    phases = ", ".join(f"{terminal(name)} {count}" for name, count in rank["phases"].items())
    parts = [f"{rank['events']} events, {steps}", phases, f"ended by {terminal(rank['ended'])}"]
    lines = [f"rank {rank['rank']:<5} {'; '.join(part for part in parts if part)}"]
    if rank["torn"]:
        lines.append(f"           stops early: {terminal(rank['torn'])}")
    if rank["dropped"]:
        lines.append(f"           {sum(last - first + 1 for first, last in rank['dropped'])} events were dropped")
    lines += _named(rank)
    if "device_work" in rank:
        lines += _device_work(rank["device_work"])
    lines += [
        f"           not seen: {terminal(str(name))}: {terminal(str(facts))[:160]}" for name, facts in rank["coverage"].items() if facts
    ]
    return lines


def _named(rank: dict[str, Any]) -> list[str]:
    """How many calls have names, and orders that named none; nothing where there are none."""
    told = rank["engines"].get("semantic")
    if not isinstance(told, dict):
        return []
    patterns = told.get("patterns")
    given = patterns.items() if isinstance(patterns, dict) else ()
    unused = [text for text, facts in given if isinstance(facts, dict) and not facts.get("calls")]
    more = f"; named nothing: {terminal(', '.join(unused[:_LISTED]))}" if unused else ""
    return [f"           named boundaries: {terminal(str(told.get('calls')))} calls of {terminal(str(told.get('names')))} names{more}"]


def _device_work(work: dict[str, Any]) -> list[str]:
    """Which share of the device's work has a boundary; what launched most; what has none."""
    lines = [f"           device work with a boundary: {terminal(device_words.of_side({'': work}))}"]
    if not work["watched"]:
        return lines
    for name, key in (("by operator", "operators"), ("by kernel", "kernels")):
        rows = [f"{terminal(row.get('operator') or row['name'])} {_amount(row)}" for row in work[key][:_LISTED]]
        more = work[f"{key}_total"] - len(rows)
        if rows:
            lines.append(f"           {name}: {', '.join(rows)}{f', and {more} more' if more > 0 else ''}")
    loose = work["unattributed"][:_LISTED]
    lines += [f"           without a boundary: {terminal(device_words.loose(row))}" for row in loose]
    if work["unattributed_total"] > len(loose):
        lines.append(f"           and {work['unattributed_total'] - len(loose)} more kernels without a boundary (`--json` has more)")
    return lines


def _amount(row: dict[str, Any]) -> str:
    time = f" ({row['device_ns'] / 1e6:.1f} ms)" if "device_ns" in row else ""
    return f"x{row['launches']}{time}"
