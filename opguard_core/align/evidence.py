"""Evidence that a reference event and a suspect event do the same work, as a score for many cells at once.

Source: weights from a study of 29 real pairs and 742 injected faults; content and dataflow carry the decision, code
places only break ties (site keys alone got 10 of 29 right).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opguard_core.align.columns import PHASES, Flags, Ints
from opguard_core.align.features import Features
from opguard_core.ids import Phase

MINIMUM = 2.0
"""Least score of a pair in the evidence pass."""

_COMMUTATIVE = frozenset(
    "add mul maximum minimum eq ne logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor dot hypot".split()
)
_PLAIN = (
    ("op", 1.0), ("shape", 1.0), ("dtype", 0.25), ("phase", 0.5), ("args", 0.25), ("module", 0.5), ("site", 0.5), ("library_site", 0.25),
)  # fmt: skip
_IF_ANY = (("tensor", 0.5), ("forward_site", 0.5), ("small", 0.5), ("forward_value", 1.0))
STRANGERS = np.zeros((len(PHASES), len(PHASES)), bool)
"""Phases that do nothing alike, though they read the same parameters: an evaluation, and a backward or an update."""
for _phase in (Phase.BACKWARD, Phase.OPTIMIZER):
    STRANGERS[PHASES.index(_phase), PHASES.index(Phase.EVAL)] = STRANGERS[PHASES.index(Phase.EVAL), PHASES.index(_phase)] = True


@dataclass(frozen=True)
class Cells:
    """Scores of cells and which of them may pair in each pass.

    Attributes:
        score: float32[c].
        evident: bool[c], admissible by content.
        structural: bool[c], admissible by structure.
    """

    score: NDArray[np.float32]
    evident: Flags
    structural: Flags


def commutes(name: str) -> bool:
    """True if a folded operator gives the same result with its first two operands swapped."""
    return name in _COMMUTATIVE


def score(reference: Features, suspect: Features, left: Ints, right: Ints) -> Cells:
    """Score the cells (left[k], right[k]).

    Args:
        reference: Columns of the reference's window.
        suspect: Columns of the suspect's window.
        left: int64[c], reference events.
        right: int64[c], suspect events.

    Cost: about 30 column reads per cell, vectorised.
    """
    r, s = reference.window, suspect.window
    total = np.zeros(len(left), np.float32)
    same: dict[str, Flags] = {}
    for name, weight in _PLAIN:
        a, b = (getattr(side if name in ("shape", "dtype") else side.window, name) for side in (reference, suspect))
        same[name] = a[left] == b[right]
        total += np.float32(weight) * same[name]
    total += np.float32(0.25) * ((r.node[left] == s.node[right]) & (r.node[left] != 0))
    for name, weight in _IF_ANY:
        a, b = getattr(reference, name)[left], getattr(suspect, name)[right]
        total += np.float32(weight) * ((a == b) & (a != 0))
    inputs = equal_inputs(reference, suspect, left, right)
    total += np.minimum(inputs, 2)
    outputs = _equal_any(reference.output_bags[left], suspect.output_bags[right])
    total += np.float32(3.0) * outputs
    alike = same["shape"] | (reference.layout[left] == suspect.layout[right])
    numel = (reference.numel[left] == suspect.numel[right]) & (reference.numel[left] >= 0)
    place = same["site"] & same["module"] & (r.site[left] != 0)
    evident = (same["op"] & (inputs > 0)) | (outputs & alike)
    comparable = r.comparable[left] & s.comparable[right] & (outputs | ~STRANGERS[r.phase[left], s.phase[right]])
    return Cells(total, evident & comparable & (total >= MINIMUM), same["op"] & (same["shape"] | numel | place) & comparable)


def equal_inputs(reference: Features, suspect: Features, left: Ints, right: Ints) -> Ints:
    """Number of non-trivial inputs of equal content in the same position (or swapped, where the operator commutes)."""
    a, b = reference.input_bags[left], suspect.input_bags[right]
    straight = ((a == b) & (a != 0)).sum(1)
    names = reference.window.vocabulary.texts
    op = reference.window.op[left]
    distinct, inverse = np.unique(op, return_inverse=True)
    swaps = np.array([commutes(names[number]) for number in distinct], bool)[inverse.reshape(-1)] if len(op) else np.zeros(0, bool)
    if swaps.any():
        crossed = ((a[:, 0] == b[:, 1]) & (a[:, 0] != 0)).astype(np.int64) + ((a[:, 1] == b[:, 0]) & (a[:, 1] != 0))
        straight = np.where(swaps, np.maximum(straight, crossed), straight)
    counts: Ints = straight.astype(np.int64)
    return counts


def _equal_any(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> Flags:
    flags: Flags = ((a == b) & (a != 0)).any(1)
    return flags
