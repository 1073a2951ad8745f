"""How much of a window found a counterpart on the other side."""

from __future__ import annotations

import numpy as np

from opguard_core.align import slots
from opguard_core.align.aligned import Aligned
from opguard_core.align.columns import DATA_PHASE, PHASES
from opguard_core.align.sets import among
from opguard_core.align.timeline import REFERENCE, SUSPECT
from opguard_core.certify.findings import Shares
from opguard_core.certify.index import WindowIndex
from opguard_core.ids import Phase

_MODEL_PHASES = [PHASES.index(phase) for phase in (Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD)]


def shares(aligned: Aligned, index: WindowIndex) -> Shares:
    """How much of a window's non-trivial results found a counterpart.

    Work on the data does not count: it may happen in another process, and what the training takes from it is compared
    where it is read.
    """
    telling, paired, accounted = [], [], []
    for side, partner in ((REFERENCE, aligned.left), (SUSPECT, aligned.right)):
        window = index.window(side)
        counted = window.comparable & (window.phase != DATA_PHASE)
        rows = np.flatnonzero(window.output & window.telling & counted[window.event])
        at = index.output_index[side][rows]
        alike = (at >= 0) & (aligned.outputs.code[at] <= slots.LAST_SAME) if len(aligned.outputs.code) else np.zeros(len(rows), bool)
        open_rows = rows[~alike]
        values = aligned.suspect_values if side == REFERENCE else aligned.reference_values
        unknown = open_rows[~among(window.value[open_rows], values)]
        has_result, unaccounted = np.zeros((2, len(window)), bool)
        has_result[window.event[rows]] = True
        unaccounted[window.event[unknown]] = True
        telling.append(int(has_result.sum()))
        paired.append(int((has_result & (partner >= 0)).sum()))
        accounted.append(int((has_result & ~unaccounted).sum()))
    return Shares(aligned.reference.window.number, _two(telling), _two(paired), _two(accounted), *_recast(aligned))


def _recast(aligned: Aligned) -> tuple[int, int]:
    """Matched floating-point results of the model, and how many of them have another precision on the other side."""
    left, right, outputs = aligned.reference.window, aligned.suspect.window, aligned.outputs
    counted = np.isin(left.phase[left.event[outputs.left]], _MODEL_PHASES)
    a, b = left.dtype[outputs.left[counted]], right.dtype[outputs.right[counted]]
    floating = [number for number in np.unique(np.concatenate([a, b])).tolist() if "float" in left.text(number)]
    both = np.isin(a, floating) & np.isin(b, floating)
    return int(both.sum()), int((a[both] != b[both]).sum())


def _two(numbers: list[int]) -> tuple[int, int]:
    return numbers[0], numbers[1]
