"""Where backward passes start: the one value of a training that is the same quantity on both sides, however it is computed."""

from __future__ import annotations

import numpy as np

from opguard_core.align.columns import PHASES, READ, Ints, Window
from opguard_core.align.timeline import REFERENCE, SUSPECT, Row, Timeline
from opguard_core.certify.roots import Node
from opguard_core.ids import Phase

MAX_SCALINGS = 8
"""Factors in a row between the loss and what a backward pass starts from: a mean over micro-batches, a loss scale."""

_BACKWARD = PHASES.index(Phase.BACKWARD)
_SCALING = ("mul", "div")


def starts(window: Window) -> Ints:
    """Events that make the first gradient of a backward pass, in the shape of what it starts from."""
    names = {number for number in np.unique(window.op).tolist() if window.text(number) == "ones_like"}
    return np.flatnonzero(np.isin(window.op, list(names)) & (window.phase == _BACKWARD) & (window.forward < 0))


def is_scalar(window: Window, row: int) -> bool:
    """One element."""
    return bool(window.vocabulary.numel(window.shape[row : row + 1])[0] == 1)


def tells_the_loss(timeline: Timeline, node: Node) -> bool:
    """Python is told, on both sides, the value from which the same backward pass starts, at most scaled.

    Args:
        timeline: All windows.
        node: A pair of events; the backward pass may lie in an earlier window (a loss that is printed after the update).

    Cost: the reads of every backward start in the windows that wrote what is told.
    """
    passes = [_passes_from(timeline, side, node.window, event) for side, event in zip((REFERENCE, SUSPECT), node.both, strict=True)]
    return bool(passes[REFERENCE] & passes[SUSPECT])


def _passes_from(timeline: Timeline, side: int, number: int, event: int) -> set[tuple[int, int]]:
    """Backward passes, as (window, place in its order), that start from what a read hands on."""
    window = timeline.flow(side, number).window
    if window.kind[event] != READ:
        return set()
    made = [row for read in window.reads(event).tolist() for row in timeline.producers(Row(side, number, read))[0]]
    return {
        (row.window, place)
        for row in made
        for place, start in enumerate(starts(timeline.flow(side, row.window).window).tolist())
        if row in _scaled(timeline, side, row.window, start)
    }


def _scaled(timeline: Timeline, side: int, number: int, start: int) -> set[Row]:
    """Rows that hold what a backward pass starts from, or that value before it was scaled."""
    window = timeline.flow(side, number).window
    found: set[Row] = set()
    reads = list(range(int(window.first[start]), int(window.first[start + 1])))
    for _ in range(MAX_SCALINGS):
        made = {row for read in reads for row in timeline.producers(Row(side, number, read))[0] if row.window == number}
        made = {row for row in made - found if is_scalar(window, row.row)}
        found |= made
        makers = [int(window.event[row.row]) for row in made]
        reads = [read for maker in makers if window.text(int(window.op[maker])) in _SCALING for read in window.reads(maker).tolist()]
        if not reads:
            break
    return found
