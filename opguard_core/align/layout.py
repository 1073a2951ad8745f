"""Tells another layout from a permutation: same elements in another order are a layout when the data came in that way."""

from __future__ import annotations

import numpy as np

from opguard_core.align.columns import Ints
from opguard_core.align.dataflow import Dataflow
from opguard_core.align.slots import LAYOUT, PERMUTED, Matched


def resolve(outputs: Matched, inputs: Matched, reference: Dataflow, suspect: Dataflow) -> None:
    """Turn PERMUTED into LAYOUT, in place, where a layout is carried along.

    An output is a layout if any input of its pair is one; an input is a layout if the outputs that produced it are. Both
    follow the data only, so the result does not depend on the order of events.

    Args:
        outputs: Matched outputs of the window's pairs.
        inputs: Matched reads of the same pairs.
        reference: Dataflow of the reference's window.
        suspect: Dataflow of the suspect's window.

    Cost: linear in the number of permuted slots.
    """
    if not (outputs.code == PERMUTED).any() and not (inputs.code == PERMUTED).any():
        return
    source = _sources(outputs, inputs, reference, suspect)
    permuted_inputs = np.flatnonzero((inputs.code == PERMUTED) & (source >= 0))
    by_source = permuted_inputs[np.argsort(source[permuted_inputs], kind="stable")]
    sorted_source = source[by_source]
    waiting = np.unique(inputs.pair[inputs.code == LAYOUT]).tolist()
    already = np.flatnonzero(outputs.code == LAYOUT)
    waiting.extend(_spread(already, inputs, by_source, sorted_source))
    done = set()
    while waiting:
        pair = waiting.pop()
        if pair in done:
            continue
        done.add(pair)
        start, end = np.searchsorted(outputs.pair, [pair, pair + 1])
        rows = start + np.flatnonzero(outputs.code[start:end] == PERMUTED)
        outputs.code[rows] = LAYOUT
        waiting.extend(_spread(rows, inputs, by_source, sorted_source))


def _sources(outputs: Matched, inputs: Matched, reference: Dataflow, suspect: Dataflow) -> Ints:
    """For each matched read, the matched output that produced it on both sides, -1 when there is none."""
    output_at = np.full(len(reference.window.event), -1, np.int64)
    output_at[outputs.left] = np.arange(len(outputs.left))
    left_writer, right_writer = reference.writer[inputs.left], suspect.writer[inputs.right]
    source = np.where(left_writer >= 0, output_at[left_writer], -1)
    source[(source >= 0) & (outputs.right[source] != right_writer)] = -1
    return source


def _spread(rows: Ints, inputs: Matched, by_source: Ints, sorted_source: Ints) -> list[int]:
    """Mark the reads of layout outputs as layouts; the pairs that read them."""
    pairs: list[int] = []
    for row in rows.tolist():
        start, end = np.searchsorted(sorted_source, [row, row + 1])
        readers = by_source[start:end]
        inputs.code[readers] = LAYOUT
        pairs.extend(inputs.pair[readers].tolist())
    return pairs
