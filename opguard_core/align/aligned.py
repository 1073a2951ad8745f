"""One window aligned: which events are pairs, how sure, and how their slots compare."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from opguard_core.align import evidence, layout, slots
from opguard_core.align.columns import Flags, Ints, Window, Words, combined
from opguard_core.align.dataflow import Dataflow
from opguard_core.align.features import Features
from opguard_core.align.flow import pair_flow
from opguard_core.align.pairing import EVIDENCE, FLOW, RESCUE, STRUCTURE, Pairing
from opguard_core.align.passes import anchor_large_gaps, join_content, pair_exact, pair_leftovers, return_strays, solve_gaps
from opguard_core.align.sets import sorted_set
from opguard_core.align.slots import Matched


@dataclass(eq=False)
class Aligned:
    """The pairs of one window, and everything that follows from them alone.

    Attributes:
        reference: Dataflow of the reference's window (`.window` holds its columns).
        suspect: Dataflow of the suspect's window.
        left: int64[a], partner of each reference event, -1 when it has none.
        right: int64[b], partner of each suspect event, -1 when it has none.
        how: uint8[a], pass that made the pair (`pairing.HOW`).
        confidence: uint8[a], 3 same data path, 2 same place or unique or same parameter or held by its neighbours, 1 operator and shape
            only, 0 free.
        banded: Gaps too large to be searched in full.
        features: What alignment derived from each side's columns.
    """

    reference: Dataflow
    suspect: Dataflow
    left: Ints
    right: Ints
    how: NDArray[np.uint8]
    confidence: NDArray[np.uint8]
    banded: int
    features: tuple[Features, Features]

    @cached_property
    def pairs(self) -> Ints:
        """Reference events that have a partner, rising."""
        return np.flatnonzero(self.left >= 0)

    @cached_property
    def outputs(self) -> Matched:
        """Matched outputs of all pairs; `pair` indexes `pairs`."""
        outputs, _ = self._matched
        return outputs

    @cached_property
    def inputs(self) -> Matched:
        """Matched reads of all pairs; `pair` indexes `pairs`."""
        _, inputs = self._matched
        return inputs

    @cached_property
    def _matched(self) -> tuple[Matched, Matched]:
        left, right = self.pairs, self.left[self.pairs]
        outputs = slots.match(self.reference.window, self.suspect.window, left, right, outputs=True)
        inputs = slots.match(self.reference.window, self.suspect.window, left, right, outputs=False)
        layout.resolve(outputs, inputs, self.reference, self.suspect)
        return outputs, inputs

    @cached_property
    def differs(self) -> Flags:
        """bool[pairs]: some output is not the same."""
        flags = np.zeros(len(self.pairs), bool)
        flags[self.outputs.pair[~self.outputs.same]] = True
        return flags

    @cached_property
    def reads_differ(self) -> Flags:
        """bool[pairs]: some read is not the same."""
        flags = np.zeros(len(self.pairs), bool)
        flags[self.inputs.pair[~self.inputs.same]] = True
        return flags

    @cached_property
    def reference_values(self) -> Words:
        """Sorted ordered contents, known and not trivial, that the reference read or produced in this window."""
        return _values(self.reference.window)

    @cached_property
    def suspect_values(self) -> Words:
        """The same for the suspect."""
        return _values(self.suspect.window)


def _values(window: Window) -> Words:
    return sorted_set(window.value[window.telling & (window.read | window.output)])


def align(reference: Window, suspect: Window) -> Aligned:
    """Align one window of one rank.

    The passes break ties by position and by side; so that swapping the sides gives the mirrored alignment, they always
    run with the same window first, chosen by content.

    Args:
        reference: The reference's window.
        suspect: The suspect's window, same vocabulary.

    Cost: about 3 us per event while the sides agree; gaps cost their cells, at most a band of each.
    """
    if _order(reference) > _order(suspect):
        mirrored = _align(suspect, reference)
        how, confidence = (np.zeros(len(reference), np.uint8) for _ in range(2))
        paired = np.flatnonzero(mirrored.left >= 0)
        how[mirrored.left[paired]] = mirrored.how[paired]
        confidence[mirrored.left[paired]] = mirrored.confidence[paired]
        flows = mirrored.suspect, mirrored.reference
        return Aligned(*flows, mirrored.right, mirrored.left, how, confidence, mirrored.banded, mirrored.features[::-1])
    return _align(reference, suspect)


def _order(window: Window) -> tuple[int, ...]:
    """A fingerprint of a window that does not depend on its side."""
    rows = window.read | window.output
    content = combined(window.slot[rows], window.value[rows]).sum(dtype=np.uint64) if rows.any() else 0
    return len(window), int(rows.sum()), int(content), int(window.op.sum()), int(window.site.sum())


def _align(reference: Window, suspect: Window) -> Aligned:
    left_flow, right_flow = Dataflow(reference), Dataflow(suspect)
    pairing = Pairing(Features(reference), Features(suspect))
    join_content(pairing)
    return_strays(pairing)
    pair_exact(pairing)
    anchor_large_gaps(pairing)
    solve_gaps(pairing, pairing.gaps(), EVIDENCE)
    pair_leftovers(pairing)
    pair_flow(pairing, left_flow, right_flow)
    solve_gaps(pairing, pairing.gaps(), STRUCTURE)
    pairing.lay_skeleton()
    solve_gaps(pairing, pairing.whole_lanes(), RESCUE)
    pair_flow(pairing, left_flow, right_flow)
    features = pairing.reference, pairing.suspect
    return Aligned(left_flow, right_flow, pairing.left, pairing.right, pairing.how, _confidence(pairing), pairing.banded, features)


def _confidence(pairing: Pairing) -> NDArray[np.uint8]:
    """How sure each pair is; 3 same data path, 2 same place, unique, same parameter or held, 1 operator and shape only."""
    reference, suspect = pairing.reference, pairing.suspect
    r, s = reference.window, suspect.window
    left = np.flatnonzero(pairing.left >= 0)
    right = pairing.left[left]
    same_op = r.op[left] == s.op[right]
    same_phase = r.phase[left] == s.phase[right]
    content = reference.has_content[left] & (reference.output_content[left] == suspect.output_content[right])
    path = content | (same_op & (evidence.equal_inputs(reference, suspect, left, right) > 0))
    site = (
        (r.site[left] == s.site[right]) & (r.site[left] != 0) & same_phase & (reference.forward_site[left] == suspect.forward_site[right])
    )
    named = (reference.tensor[left] == suspect.tensor[right]) & (reference.tensor[left] != 0)
    site &= named | (reference.tensor[left] == 0) | (suspect.tensor[right] == 0)  # one line updates every parameter
    unique = (
        same_op & _unique(reference)[left] & _unique(suspect)[right] & (reference.structural_loose[left] == suspect.structural_loose[right])
    )
    flowed = same_op & (pairing.how[left] == FLOW)
    confidence = np.zeros(len(pairing.left), np.uint8)
    held = same_op & same_phase & (reference.structural_loose[left] == suspect.structural_loose[right])
    held &= _held(pairing, left[path])[left]
    confidence[left] = np.where(path, 3, np.where(site | named | unique | flowed | held, 2, 1))
    return confidence


def _held(pairing: Pairing, sure: Ints) -> Flags:
    """Reference events of pairs that stand, on both sides, directly between the same two pairs of the same data path."""
    partner = np.full(len(pairing.left), -1, np.int64)
    partner[sure] = pairing.left[sure]
    held = np.zeros(len(partner), bool)
    r, s = pairing.reference.window, pairing.suspect.window
    for lane in pairing.lanes():
        here, there = np.flatnonzero(r.comparable & (r.lane == lane)), np.flatnonzero(s.comparable & (s.lane == lane))
        place = np.full(len(s), -1, np.int64)
        place[there] = np.arange(len(there))
        # Places among the suspect's events of the lane; two numbers for "none" that are no neighbours of any place.
        sure_at = np.where(partner[here] >= 0, place[partner[here]], -9)
        own = pairing.left[here[1:-1]]
        own_at = np.where(own >= 0, place[own], -99)
        held[here[1:-1]] = (sure_at[:-2] == own_at - 1) & (sure_at[2:] == own_at + 1)
    return held


def _unique(side: Features) -> Flags:
    """Events that are the only ones of their operator, phase and shape in the window."""
    keys = np.where(side.window.comparable, side.structural_loose, np.uint64(0))
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    unique: Flags = (counts[inverse.reshape(-1)] == 1) & side.window.comparable
    return unique
