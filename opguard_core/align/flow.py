"""Pairing by dataflow: left-over events that read the same paired values with the same operator."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from opguard_core.align.columns import Ints
from opguard_core.align.dataflow import Dataflow
from opguard_core.align.evidence import STRANGERS
from opguard_core.align.pairing import FLOW, Pairing

CROWD = 64
"""Readers of one value beyond which reading it tells nothing about which of them is meant."""

Key = tuple[int, int, int, int]


def pair_flow(pairing: Pairing, reference: Dataflow, suspect: Dataflow) -> int:
    """Pair left-over events that read the same non-trivial content, or what a pair of events wrote.

    Suspect events go in order, so a pair found here lets its readers be found too.

    Returns:
        Number of pairs made.

    Cost: a few dictionary operations per read of a left-over event.
    """
    readers = _index(pairing, reference)
    window = suspect.window
    shape, op = pairing.suspect.shape, window.op
    made = 0
    for event in pairing.free_right().tolist():
        phase = window.phase[event]
        votes: Counter[int] = Counter()
        named: Counter[int] = Counter()
        for row in window.reads(event).tolist():
            for key in _keys(pairing, suspect, row, int(op[event]), int(shape[event])):
                crowd = readers.get(key, ())
                for candidate, slot in crowd:
                    if pairing.left[candidate] < 0 and not STRANGERS[pairing.reference.window.phase[candidate], phase]:
                        votes[candidate] += 1
                        named[candidate] += slot == window.slot[row]
        if not votes:
            continue
        best = max(votes, key=lambda c: (votes[c], pairing.reference.window.phase[c] == phase, named[c], -c))
        pairing.add(best, event, FLOW)
        made += 1
    return made


def _index(pairing: Pairing, flow: Dataflow) -> dict[Key, list[tuple[int, int]]]:
    """Free reference events by operator, shape and each value they read; by the row that wrote it, too."""
    window, shape = flow.window, pairing.reference.shape
    readers: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    for event in pairing.free_left().tolist():
        for row in window.reads(event).tolist():
            here = (int(window.op[event]), int(shape[event]))
            if window.telling[row]:
                readers[(*here, 0, int(window.value[row]))].append((event, int(window.slot[row])))
            if flow.writer[row] >= 0:
                readers[(*here, 1, int(flow.writer[row]))].append((event, int(window.slot[row])))
    return {key: crowd for key, crowd in readers.items() if len(crowd) <= CROWD}


def _keys(pairing: Pairing, flow: Dataflow, row: int, op: int, shape: int) -> list[Key]:
    window = flow.window
    keys: list[Key] = []
    if window.telling[row]:
        keys.append((op, shape, 0, int(window.value[row])))
    writer = int(flow.writer[row])
    if writer >= 0:
        counterpart = _counterpart(pairing, window.outputs(int(window.event[writer])), writer, int(window.event[writer]))
        if counterpart >= 0:
            keys.append((op, shape, 1, counterpart))
    return keys


def _counterpart(pairing: Pairing, outputs: Ints, row: int, event: int) -> int:
    """The reference's output row in the same position as a suspect output row of a paired event, -1 when there is none."""
    partner = int(pairing.right[event])
    if partner < 0:
        return -1
    theirs = pairing.reference.window.outputs(partner)
    place = int(np.searchsorted(outputs, row))
    return int(theirs[place]) if place < len(theirs) else -1
