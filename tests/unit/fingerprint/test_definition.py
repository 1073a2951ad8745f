"""The constants, the mixers and the widening are the same in spec.md, in Python and in C."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest

from opguard_core.fingerprint import constants, native, numpy_twin, reference
from opguard_core.fingerprint.dtypes import ELEMENT_TYPES, FLOAT8, Widening, float8_table, opaque

C_SOURCE = native.SOURCE.with_name("dense.h").read_text()
SPEC = native.SOURCE.with_name("spec.md").read_text()
NAMES = {"C": "POSITION", "K1": "SPREAD", "K2": "FEED", "K0": "OFFSET", "N": "SCATTER", "F": "FOLD"}


@pytest.mark.parametrize(("letter", "name"), NAMES.items())
def test_a_constant_has_one_value(letter, name):
    value = getattr(constants, name)
    assert re.search(rf"^    {letter} +=? ?= 0x{value:016X}\b", SPEC, re.M)
    assert re.search(rf"^#define {name} 0x{value:016X}ull\b", C_SOURCE, re.M)


def test_lane_fold_has_one_value():
    assert f"LANE_FOLD = {constants.LANE_FOLD}," in C_SOURCE
    assert f"M(x):  x ^= x >> {constants.LANE_FOLD};" in SPEC


def test_the_kinds_of_widening_are_numbered_as_in_c():
    names = re.search(r"enum \{ (U8, .*?) \};", C_SOURCE).group(1).split(", ")
    assert names == [kind.name for kind in sorted(Widening)]


def test_spec_names_every_dtype():
    assert [name for name in ELEMENT_TYPES if name not in SPEC] == []


def undo_shifted_xor(x: int, shift: int) -> int:
    undone = x
    for _ in range(64 // shift):
        undone = x ^ (undone >> shift)
    return undone


def undo_spread(x: int) -> int:
    x = undo_shifted_xor(x, 32) * pow(constants.FEED, -1, 1 << 64) & constants.MASK64
    return undo_shifted_xor(x, 32)


def test_both_mixers_are_bijections():
    """Every word comes back, so no two words share an image."""
    inverse = pow(constants.SPREAD, -1, 1 << 64)
    words = [0, 1, 1 << 31, 1 << 63, constants.MASK64, *(int(w) for w in np.random.default_rng(0).integers(0, 1 << 63, 200))]
    for word in words:
        lane = undo_spread(constants.mix_lane(word)) * inverse & constants.MASK64
        assert undo_shifted_xor(lane, constants.LANE_FOLD) == word
        element = (undo_spread(constants.mix_element(word)) - constants.OFFSET) * inverse & constants.MASK64
        assert undo_shifted_xor(element, 32) == word


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", *FLOAT8])
def test_every_code_of_a_small_float_widens_as_the_oracle_says(dtype):
    element = ELEMENT_TYPES[dtype]
    codes = np.arange(1 << (8 * element.item_bytes), dtype=f"<u{element.item_bytes}")
    widened = numpy_twin.widen(codes.view(np.uint8), element).tolist()
    step = 1 if dtype in FLOAT8 else 7  # the oracle is slow; 7 meets every exponent and all specials are added
    specials = [0, 0x7C00, 0x7C01, 0x7E00, 0xFC00, 0xFFFF, 0x8000, 0x7F80, 0x7F81, 0xFF80, 0x03FF, 0x0400, 1]
    for code in {*range(0, len(codes), step), *(code for code in specials if code < len(codes))}:
        assert widened[code] == reference.widen(code, element), hex(code)


def test_float16_widens_as_its_value_where_it_has_one():
    codes = np.arange(1 << 16, dtype=np.uint16)
    values = codes.view(np.float16)
    widened = numpy_twin.widen(codes.view(np.uint8), ELEMENT_TYPES["float16"]).astype(np.uint32)
    finite = np.isfinite(values)
    assert (widened[finite] == values[finite].astype(np.float32).view(np.uint32)).all()


def test_no_two_codes_of_a_small_float_widen_alike():
    for name in FLOAT8:
        assert len(set(float8_table(name))) == 256
    for name in ("float16", "bfloat16"):
        codes = np.arange(1 << 16, dtype=np.uint16)
        assert np.unique(numpy_twin.widen(codes.view(np.uint8), ELEMENT_TYPES[name])).size == 1 << 16


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", *FLOAT8])
def test_no_two_codes_of_a_small_float_share_a_bag64_term(dtype):
    codes = np.arange(1 << (8 * ELEMENT_TYPES[dtype].item_bytes), dtype=f"<u{ELEMENT_TYPES[dtype].item_bytes}")
    mixed = numpy_twin.mix_narrow(numpy_twin.widen(codes.view(np.uint8), ELEMENT_TYPES[dtype]))
    terms = (mixed & np.uint64(constants.LOW32)) * (mixed >> np.uint64(32))
    assert np.unique(terms).size == codes.size


def test_the_oracle_agrees_with_itself_written_out_by_hand():
    """Three float32 elements: two lanes and two pairs, the second ones padded; no loop over the data."""
    x = np.array([1.0, -2.5, 3e-40], dtype=np.float32)
    e, f, g = struct.unpack("<3I", x.tobytes())
    mask, low = constants.MASK64, constants.LOW32
    lane = constants.mix_lane
    one, two = constants.POSITION, constants.POSITION * 2 & mask
    mix = lane((e + (f << 32) + one) & mask) + lane((g + two) & mask)
    (ae, be), (af, bf), (ag, bg), (az, bz) = (constants.mix_narrow(word) for word in (e, f, g, 0))
    bag = ae * be + af * bf + ag * bg
    value = ((ae + bf + one) & low) * ((af - be + (one >> 32)) & low) + ((ag + bz + two) & low) * ((az - bg + (two >> 32)) & low)
    found = reference.fingerprint(x)
    assert found.mix64 == lane((mix + 13 * constants.FOLD) & mask)
    assert found.value64 == lane((value + 4 * constants.FOLD) & mask)
    assert found.bag64 == lane((bag + 4 * constants.FOLD) & mask)
    assert found.xor32 == e ^ f ^ g
    assert (found.trivial, found.nbytes) == (False, 12)


def test_a_dtype_without_a_meaning_is_read_as_unsigned_integers():
    assert opaque("float4_e2m1fn_x2", 1).widening == Widening.U8
    assert opaque("future", 8).widening == Widening.B64
    with pytest.raises(ValueError, match="elements of 3 bytes"):
        opaque("odd", 3)


def test_the_spec_ships_beside_the_code():
    assert Path(native.SOURCE).parent == Path(constants.__file__).parent
