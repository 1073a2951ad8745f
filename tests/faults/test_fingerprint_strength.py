"""Faults that a weaker mixer misses: each of these broke an earlier candidate (``spec.md`` section 2 says which and why).

The claim is about sums: a fault in several places is missed when the changes it makes to the single terms cancel. So collect the
changes that one fault makes in many random places and demand that no two of them are equal or opposite. A hundred thousand
terms give 10^10 pairs; a digest of 64 good bits has no such pair.
"""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest

from opguard_core.fingerprint import numpy_twin
from opguard_core.fingerprint.constants import LOW32, POSITION

NUM_TERMS = 1 << 17
WORD = np.uint64


def lanes_of(kind):
    """Random 64-bit lanes: two float32, four bfloat16, one float64, eight bytes, or small integers."""
    rng = np.random.default_rng(7)
    if kind == "float32":
        return rng.standard_normal(2 * NUM_TERMS, dtype=np.float32).view(WORD)
    if kind == "bfloat16":
        return (rng.standard_normal(4 * NUM_TERMS, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16).view(WORD)
    if kind == "float64":
        return rng.standard_normal(NUM_TERMS).view(WORD)
    if kind == "bool":
        return rng.integers(0, 2, 8 * NUM_TERMS, dtype=np.uint8).view(WORD)
    return rng.integers(1, 50_000, NUM_TERMS).astype(WORD)


LANE_FAULTS = {
    "both signs of a float32 lane": ("float32", lambda w: w ^ WORD(0x8000000080000000)),
    "all signs of a bfloat16 lane": ("bfloat16", lambda w: w ^ WORD(0x8000800080008000)),
    "sign of a float64": ("float64", lambda w: w ^ WORD(1 << 63)),
    "sign of the second float32": ("float32", lambda w: w ^ WORD(1 << 63)),
    "both float32 doubled": ("float32", lambda w: w + WORD(0x0080000000800000)),
    "all bfloat16 doubled": ("bfloat16", lambda w: w + WORD(0x0080008000800080)),
    "last bits of a float32 lane": ("float32", lambda w: w ^ WORD(0x100000001)),
    "eight booleans negated": ("bool", lambda w: w ^ WORD(0x0101010101010101)),
    "an integer plus one": ("int64", lambda w: w + WORD(1)),
    "an integer negated": ("int64", lambda w: ~w + WORD(1)),
}


def assert_nothing_cancels(changes):
    distinct = np.unique(changes)
    assert distinct.size == changes.size
    assert not np.intersect1d(distinct, ~distinct + WORD(1)).size


@pytest.mark.parametrize("name", LANE_FAULTS)
def test_a_fault_in_two_lanes_does_not_cancel_in_mix64(name):
    kind, fault = LANE_FAULTS[name]
    lanes = lanes_of(kind)
    places = np.arange(1, lanes.size + 1, dtype=WORD) * WORD(POSITION)
    assert_nothing_cancels(numpy_twin.mix_lanes(fault(lanes) + places) - numpy_twin.mix_lanes(lanes + places))


def value_terms(words):
    placed = numpy_twin.mix_elements(words) ^ (np.arange(1, words.size + 1, dtype=WORD) * WORD(POSITION))
    return (placed & WORD(LOW32)) * (placed >> WORD(32))


ELEMENT_FAULTS = {
    "sign of a float32": ("float32", lambda e: e ^ WORD(1 << 31)),
    "last bit of a float32": ("float32", lambda e: e ^ WORD(1)),
    "a float32 doubled": ("float32", lambda e: e + WORD(1 << 23)),
    "sign of a float64": ("float64", lambda e: e ^ WORD(1 << 63)),
    "an integer moved far": ("int64", lambda e: e + WORD(1 << 20)),
    "an integer negated": ("int64", lambda e: ~e + WORD(1)),
}


def positive_elements(kind):
    """Distinct elements, and none the faulty form of another: that would be a permutation."""
    lanes = lanes_of(kind)
    if kind == "float32":
        lanes = (lanes.view(np.uint32)[::2] & np.uint32(0x7FFFFFFF)).astype(WORD)
    elif kind == "float64":
        lanes = lanes & WORD((1 << 63) - 1)
    return np.unique(lanes)


@pytest.mark.parametrize("name", ELEMENT_FAULTS)
def test_a_fault_in_two_elements_does_not_cancel(name):
    kind, fault = ELEMENT_FAULTS[name]
    elements = positive_elements(kind)
    if name != "a float32 doubled" and name != "last bit of a float32":  # these two map elements onto others
        assert_nothing_cancels(numpy_twin.mix_elements(fault(elements)) - numpy_twin.mix_elements(elements))
    assert_nothing_cancels(value_terms(fault(elements)) - value_terms(elements))


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int64"])
def test_a_swap_of_neighbours_is_seen_by_value64(kind):
    if kind == "bfloat16":
        elements = lanes_of(kind).view(np.uint16).astype(WORD) << WORD(16)
    else:
        elements = lanes_of(kind) if kind == "int64" else lanes_of(kind).view(np.uint32).astype(WORD)
    swapped = elements.reshape(-1, 2)[:, ::-1].reshape(-1)
    change = (value_terms(swapped) - value_terms(elements)).reshape(-1, 2).sum(axis=1, dtype=WORD)
    differs = elements[0::2] != elements[1::2]
    assert differs.any()
    assert (change[differs] != 0).all()


def quarters(dtype):
    return (np.arange(-12, 13) / 4).astype(dtype)


@pytest.mark.parametrize(
    ("elements", "size"),
    [
        (np.arange(60, dtype=WORD), 4),
        (np.arange(-30, 30).view(WORD), 4),
        (quarters(np.float32).view(np.uint32).astype(WORD), 5),
        (quarters(np.float64).view(WORD), 5),
    ],
    ids=["small integers", "integers around zero", "float32 quarters", "float64 quarters"],
)
def test_no_two_multisets_of_simple_numbers_share_a_bag64(elements, size):
    multisets = np.array(list(combinations_with_replacement(np.unique(elements).tolist(), size)), dtype=WORD)
    sums = numpy_twin.mix_elements(multisets).sum(axis=1, dtype=WORD)
    assert np.unique(sums).size == len(multisets)


def test_the_test_can_fail():
    """A product of the element with itself and a constant, as often proposed, does share sums."""
    multisets = np.array(list(combinations_with_replacement(range(60), 4)), dtype=WORD)
    weak = multisets * (multisets ^ WORD(0xD6E8FEB86659FD93))
    assert np.unique(weak.sum(axis=1, dtype=WORD)).size < len(multisets) // 2
