"""What a trace holds, laid out for people."""

from __future__ import annotations

from typing import Any

from opguard_harness.report.escape import terminal


def trace_page(found: dict[str, Any]) -> list[str]:
    """Lay out the counts of ``workspace.contents.contents``.

    Args:
        found: Its result.
    """
    ended = found["exit"] or {}
    how = f"signal {ended['signal']}" if ended.get("signal") else f"exit code {ended.get('code')}"
    lines = [
        f"trace      {terminal(found['trace'])}",
        f"command    {terminal(' '.join(found['argv']))[:200]}",
        f"captured   {terminal(found['created_utc'])}, mode {terminal(found['mode'])}, {how}",
        f"holds      {found['events']} events, {found['tensors']} tensors",
        f"size       {found['bytes_on_disk']} bytes, {found['bytes_per_tensor']} per tensor",
        f"operators  {', '.join(f'{terminal(name)} x{count}' for name, count in found['operators'].items())}",
    ]
    if not found["complete"]:
        lines.append(f"incomplete {terminal(found['torn'] or 'a rank stops early, see below')}")
    if found["missing_ranks"]:
        lines.append(f"missing    ranks {', '.join(map(str, found['missing_ranks']))}")
    for rank in found["per_rank"]:
        lines += _rank(rank)
    return lines


def _rank(rank: dict[str, Any]) -> list[str]:
    steps = f"windows {rank['windows'][0]}:{rank['windows'][1]}" if rank["windows"] else "no windows"
    phases = ", ".join(f"{terminal(name)} {count}" for name, count in rank["phases"].items())
    lines = [f"rank {rank['rank']:<5} {rank['events']} events, {steps}; {phases}; ended by {terminal(rank['ended'])}"]
    if rank["torn"]:
        lines.append(f"           stops early: {terminal(rank['torn'])}")
    if rank["dropped"]:
        lines.append(f"           {sum(last - first + 1 for first, last in rank['dropped'])} events were dropped")
    lines += [
        f"           not seen: {terminal(str(name))}: {terminal(str(facts))[:160]}" for name, facts in rank["coverage"].items() if facts
    ]
    return lines
