"""How an exception ends a run shows what was different: the operator that raised, or the value that Python was told last."""

from __future__ import annotations

import re

import numpy as np

from opguard_core.align.columns import READ, Flags, Ints, Window
from opguard_core.align.timeline import Timeline
from opguard_core.certify.index import WindowIndex

_RAISED = re.compile(r";raised=\w+$")

_AFTER_THE_LAST = 4
"""Events that may follow the last operator of a run that ends: the end of a backward call, the state, the end itself."""


def raising(window: Window, events: Ints) -> Flags:
    """Which of these events' operators raised an exception; bool[len(events)]."""
    args = window.args[events]
    raised = [number for number in np.unique(args).tolist() if _RAISED.search(window.text(number))]
    flags: Flags = np.isin(args, raised)
    return flags


def raised_alone(reference: Window, suspect: Window, left: int, right: int) -> bool:
    """Of two paired events exactly one raised."""
    return bool(raising(reference, np.array([left]))[0] != raising(suspect, np.array([right]))[0])


def last_told(timeline: Timeline, index: WindowIndex) -> tuple[int, int]:
    """By side the read that is the last thing a program did before it raised: what Python was told made it raise; else -1."""
    found = []
    for side, columns in enumerate(timeline.columns):
        window = index.window(side)
        last = np.flatnonzero(window.comparable)[-1:].tolist()
        told = bool(last) and window.kind[last[0]] == READ and len(window) - 1 - last[0] <= _AFTER_THE_LAST
        found.append(last[0] if told and columns.trace.manifest.ended == "exception" else -1)
    return found[0], found[1]
