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


POSITIONS = np.arange(1, 2 * NUM_TERMS + 1, dtype=WORD) * WORD(POSITION)


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


def is_narrow(kind):
    return kind in ("float32", "bfloat16")


def bag_terms(words, kind):
    if not is_narrow(kind):
        return numpy_twin.mix_elements(words)
    mixed = numpy_twin.mix_narrow(words)
    return (mixed & WORD(LOW32)) * (mixed >> WORD(32))


def value_terms(words, kind):
    """One term an element for wide words, one term a pair for narrow ones."""
    if is_narrow(kind):
        return numpy_twin.narrow_terms(numpy_twin.mix_narrow(words), POSITIONS[: words.size // 2].copy())
    return numpy_twin.wide_terms(numpy_twin.mix_elements(words), POSITIONS[: words.size].copy())


def elements_of(kind):
    lanes = lanes_of(kind)
    if kind == "float32":
        return lanes.view(np.uint32).astype(WORD)
    if kind == "bfloat16":
        return lanes.view(np.uint16)[: 2 * NUM_TERMS].astype(WORD) << WORD(16)
    return lanes


SIGN, LAST, DOUBLED = (lambda e: e ^ WORD(1 << 31)), (lambda e: e ^ WORD(1 << 16)), (lambda e: (e + WORD(1 << 23)) & WORD(LOW32))
ELEMENT_FAULTS = {
    "sign of a float32": ("float32", SIGN),
    "last bit of a float32": ("float32", lambda e: e ^ WORD(1)),
    "a float32 doubled": ("float32", DOUBLED),
    "sign of a bfloat16": ("bfloat16", SIGN),
    "last bit of a bfloat16": ("bfloat16", LAST),
    "a bfloat16 doubled": ("bfloat16", DOUBLED),
    "sign of a float64": ("float64", lambda e: e ^ WORD(1 << 63)),
    "an integer moved far": ("int64", lambda e: e + WORD(1 << 20)),
    "an integer negated": ("int64", lambda e: ~e + WORD(1)),
}


@pytest.mark.parametrize("name", ELEMENT_FAULTS)
def test_a_fault_in_two_elements_does_not_cancel_in_bag64(name):
    """Only faults that do not turn one element into another's faulty form: that would be a permutation."""
    kind, fault = ELEMENT_FAULTS[name]
    elements = np.unique(elements_of(kind))
    faulty = fault(elements)
    keep = (faulty > elements) & ~np.isin(faulty, elements)
    assert_nothing_cancels(bag_terms(faulty[keep], kind) - bag_terms(elements[keep], kind))


@pytest.mark.parametrize("which", ["first of each pair", "second of each pair", "all"])
@pytest.mark.parametrize("name", ELEMENT_FAULTS)
def test_a_fault_in_two_elements_does_not_cancel_in_value64(name, which):
    kind, fault = ELEMENT_FAULTS[name]
    elements = elements_of(kind)
    faulty = elements.copy()
    chosen = {"first of each pair": slice(0, None, 2), "second of each pair": slice(1, None, 2), "all": slice(None)}[which]
    faulty[chosen] = fault(faulty[chosen])
    changes = value_terms(faulty, kind) - value_terms(elements, kind)
    assert_nothing_cancels(changes if is_narrow(kind) else changes[chosen])


@pytest.mark.parametrize("distance", [1, 2, 64])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int64"])
def test_a_swap_is_seen_by_value64(kind, distance):
    """Neighbours within a pair, whole pairs, and rows."""
    elements = elements_of(kind)
    swapped = elements.reshape(-1, 2, distance)[:, ::-1].reshape(-1)
    terms_each = max(2 * distance // (2 if is_narrow(kind) else 1), 1)
    change = (value_terms(swapped, kind) - value_terms(elements, kind)).reshape(-1, terms_each).sum(axis=1, dtype=WORD)
    differs = (elements.reshape(-1, 2, distance)[:, 0] != elements.reshape(-1, 2, distance)[:, 1]).any(axis=1)
    assert differs.any()
    assert (change[differs] != 0).all()


def quarters(dtype):
    return (np.arange(-12, 13) / 4).astype(dtype)


def float32_words(values):
    return np.asarray(values, dtype=np.float32).view(np.uint32).astype(WORD)


@pytest.mark.parametrize(
    ("elements", "size", "kind"),
    [
        (np.arange(60, dtype=WORD), 4, "int64"),
        (np.arange(-30, 30).view(WORD), 4, "int64"),
        (quarters(np.float64).view(WORD), 5, "float64"),
        (float32_words(quarters(np.float32)), 5, "float32"),
        (float32_words(np.arange(60)), 4, "float32"),
        (float32_words(2.0 ** np.arange(-12, 13)), 5, "float32"),
        (float32_words([0, 1, -1, 2, -2, 0.5, -0.5, 1 / 0.9, 2 / 0.9, 3 / 0.9, np.inf, -np.inf, np.nan, 1e-5, -0.0]), 6, "float32"),
    ],
    ids=["small integers", "around zero", "float64 quarters", "quarters", "whole floats", "powers of two", "masks and dropout"],
)
def test_no_two_multisets_of_simple_numbers_share_a_bag64(elements, size, kind):
    multisets = np.array(list(combinations_with_replacement(np.unique(elements).tolist(), size)), dtype=WORD)
    terms = bag_terms(multisets.reshape(-1), kind).reshape(multisets.shape)
    assert np.unique(terms.sum(axis=1, dtype=WORD)).size == len(multisets)


def test_the_test_can_fail():
    """A product of the element with itself and a constant, as often proposed, does share sums."""
    multisets = np.array(list(combinations_with_replacement(range(60), 4)), dtype=WORD)
    weak = multisets * (multisets ^ WORD(0xD6E8FEB86659FD93))
    assert np.unique(weak.sum(axis=1, dtype=WORD)).size < len(multisets) // 2
