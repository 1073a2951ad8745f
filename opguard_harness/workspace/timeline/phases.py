"""Spans of a lane: steps, and in them phases, and in those the phases that interrupt one and let it go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opguard_core.ids import Phase

INTERRUPTING = (Phase.COLLECTIVE, Phase.RECOMPUTE, Phase.DATA, Phase.EVAL)
"""Phases that lie inside another one if that goes on behind them."""


@dataclass(frozen=True)
class Span:
    """Events of a lane under one name.

    Attributes:
        name: What they are.
        first: Index of the first event.
        end: One past the last.
        depth: 0 for a step, 1 for a phase, 2 for one inside it.
    """

    name: str
    first: int
    end: int
    depth: int


def spans(steps: Sequence[int], phases: Sequence[str]) -> list[Span]:
    """Nested spans of consecutive events, an outer one before those in it.

    Args:
        steps: Step of each event.
        phases: Phase of each event.
    """
    found: list[Span] = []
    for first, end in _runs(steps):
        found.append(Span(f"step {steps[first]}", first, end, 0))
        found += _phases(phases, first, end)
    return found


def _phases(phases: Sequence[str], first: int, end: int) -> list[Span]:
    """Phases of one step."""
    runs = [(first + a, first + b) for a, b in _runs(phases[first:end])]
    found: list[Span] = []
    at = 0
    while at < len(runs):
        last, inner = at, list[Span]()
        while last + 2 < len(runs) and phases[runs[last + 1][0]] in INTERRUPTING and phases[runs[last + 2][0]] == phases[runs[at][0]]:
            inner.append(Span(phases[runs[last + 1][0]], *runs[last + 1], 2))
            last += 2
        found += [Span(phases[runs[at][0]], runs[at][0], runs[last][1], 1), *inner]
        at = last + 1
    return found


def _runs(values: Sequence[object]) -> list[tuple[int, int]]:
    """First and end of each run of equal values."""
    starts = [at for at in range(len(values)) if at == 0 or values[at] != values[at - 1]]
    return list(zip(starts, [*starts[1:], len(values)], strict=True)) if starts else []
