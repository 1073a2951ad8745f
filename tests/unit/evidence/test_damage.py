"""Damage with a known answer is described exactly: what differs, where, by how much, in which bits, and the likely class."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard_core.evidence.damage import describe
from opguard_core.evidence.damage.likely import CLASSES
from tests.support.blocks import bfloat16, block, flipped, normal, through_bfloat16

X = normal(16, 24)


def damage(suspect, reference=X, **given):
    found = describe(block(reference), block(suspect), **given)
    assert found.likely in CLASSES
    assert len(json.dumps(found.as_dict())) < 20_000
    return found


def test_equal_bytes_are_no_damage():
    found = damage(X.copy())
    assert (found.likely, found.differing, found.share) == ("none", 0, 0.0)


def test_one_bit_in_one_element():
    found = damage(flipped(X, (3, 5), 22))
    assert (found.likely, found.differing, found.elements, found.alternatives) == ("single bit", 1, 384, ())
    assert found.rule == "one of 384 elements differs, in bit 22 alone (mantissa)"
    assert found.bits == {
        "width": 32,
        "flipped": [{"bit": 22, "is": "mantissa", "count": 1}],
        "single_bit_elements": 1,
        "pattern": "0x00400000",
    }
    assert found.distance == {"unit": "ulp", "max": 1 << 22, "histogram": [{"from": (1 << 21) + 1, "to": 1 << 22, "count": 1}]}
    assert found.first[0]["index"] == [3, 5]
    assert found.first[0]["reference"] == repr(float(X[3, 5]))
    assert [axis["ranges"] for axis in found.axes] == [[[3, 3]], [[5, 5]]]


def test_the_last_bit_may_as_well_be_rounding():
    assert damage(flipped(X, (0, 0), 0)).alternatives == ("reduction order",)


def test_one_bit_of_an_exponent_is_not_taken_for_a_factor():
    assert damage(flipped(X, (1, 1), 23)).likely == "single bit"


def test_the_same_bit_in_several_elements():
    suspect = X
    for row in (1, 4, 9):
        suspect = flipped(suspect, (row, 7), 18)
    found = damage(suspect)
    assert (found.likely, found.differing) == ("single bit", 3)
    assert "each in bit 18 alone" in found.rule


def test_two_rows_swapped():
    suspect = X.copy()
    suspect[[2, 9]] = suspect[[9, 2]]
    found = damage(suspect)
    assert (found.likely, found.differing) == ("permutation", 48)
    assert found.order["text"] == "rows 2 and 9 are swapped"
    assert found.order["known"] == "sorted, equal"
    assert found.order["from"] == [[2, 9], [9, 2]]
    assert [(axis["touched"], axis["ranges"]) for axis in found.axes] == [(2, [[2, 2], [9, 9]]), (24, [[0, 23]])]
    assert found.axes[0]["length"] == 16
    assert found.block


@pytest.mark.parametrize(
    ("suspect", "text"),
    [
        (np.roll(X, 3, axis=0), "rows are rolled by 3"),
        (np.roll(X, -1, axis=1), "columns are rolled by -1"),
        (X[::-1], "rows are in reverse order"),
        (
            X.reshape(16, 6, 4)[:, [0, 2, 1, 3, 4, 5]].reshape(16, 24),
            "columns in blocks of 4 (heads, for example): blocks 1 and 2 are swapped",
        ),
        (X[:, np.random.default_rng(1).permutation(24)], "columns are in another order"),
    ],
)
def test_permutations_are_named(suspect, text):
    found = damage(suspect)
    assert found.likely == "permutation"
    assert text in found.order["text"]


def test_a_transpose_kept_in_the_old_shape():
    square = normal(12, 12)
    found = damage(square.T, square)
    assert (found.likely, found.order["kind"], found.order["axes"]) == ("layout", "transpose", [1, 0])


def test_heads_read_in_another_layout():
    found = damage(normal(2, 6, 4, 8).transpose(0, 2, 1, 3).reshape(2, 6, 32), normal(2, 6, 32).reshape(2, 6, 32))
    assert found.likely == "layout"
    assert "2 x 6 x 4 x 8" in found.order["text"]


def test_tiles_for_repeats():
    heads = normal(2, 5, 8)
    found = damage(np.tile(heads, (3, 1, 1)), np.repeat(heads, 3, axis=0))
    assert found.order is not None
    assert found.likely in ("layout", "permutation")


def test_the_same_elements_in_no_order_that_we_know():
    flat = X.ravel().copy()
    np.random.default_rng(5).shuffle(flat)
    found = describe(block(X), block(flat.reshape(X.shape)))
    assert (found.likely, found.order["kind"]) == ("permutation", "unknown")


def test_a_sum_in_another_order():
    a, b = normal(16, 200), normal(200, 24, seed=1)
    forwards = np.zeros((16, 24), np.float32)
    backwards = forwards.copy()
    for k in range(200):
        forwards += a[:, k : k + 1] * b[k]
        backwards += a[:, 199 - k : 200 - k] * b[199 - k]
    found = damage(backwards, forwards)
    assert found.likely == "reduction order"
    assert "cast" in found.alternatives
    assert found.size["relative_rms"] < 1e-6
    assert found.distance["max"] == int(np.abs(forwards.view(np.int32).astype(np.int64) - backwards.view(np.int32)).max())
    assert sum(one["count"] for one in found.distance["histogram"]) == found.differing


@pytest.mark.parametrize(
    ("low", "to"), [("bfloat16", through_bfloat16), ("tf32 or float16", lambda x: x.astype(np.float16).astype(np.float32))]
)
def test_a_cast_through_a_lower_precision(low, to):
    found = damage(to(X))
    assert (found.likely, found.rule.split("; ")[1]) == ("cast", f"rounding the reference to {low} gives the suspect")
    back = damage(X, to(X))
    assert (back.likely, back.rule.split("; ")[1]) == ("cast", f"rounding the suspect to {low} gives the reference")


def test_arithmetic_in_a_lower_precision_is_a_cast_that_is_not_certain():
    found = damage(through_bfloat16(X * np.float32(1.01)))
    assert (found.likely, found.alternatives) == ("cast", ("unknown",))
    assert {"relation": "coarse", "value": "bfloat16", "side": "suspect"} in found.relations


def test_a_constant_factor_and_a_constant_shift():
    assert "times 0.125" in damage(X * np.float32(0.125)).rule
    assert "times 0.3333333333333333" in damage(X / np.float32(3)).rule
    found = damage(X + np.float32(2))
    assert (found.likely, found.rule.split("; ")[1]) == ("shift", "each is the reference plus 2.0, to a few ULP")
    found = damage(np.arange(40) + 3, np.arange(40))
    assert (found.likely, found.distance["max"], found.distance["unit"]) == ("shift", 3, "difference")


def test_signs():
    found = damage(-X)
    assert (found.likely, found.special["only_sign_differs"]) == ("sign", 384)


@pytest.mark.parametrize(("name", "made"), [("scale", lambda x: x * np.float32(3)), ("shift", lambda x: x + np.float32(300))])
def test_a_factor_or_shift_does_not_speak_for_an_element_that_is_no_number_any_more(name, made):
    reference = normal(16, 24)
    reference[2, 2] = -4
    suspect = made(reference)
    assert damage(suspect, reference).likely == name
    fits = {}
    for odd in (np.nan, np.inf, -np.inf):
        suspect[2, 2] = odd
        fits[odd] = damage(suspect, reference).likely == name
    assert list(fits.values()) == [False, False, name == "scale"]  # a factor may overflow, and keeps the sign


def test_zeroed_part_of_a_row_is_not_called_a_whole_one():
    suspect = X.copy()
    suspect[3, ::2] = suspect[3, 1:5] = suspect[5, 4:] = 0
    assert damage(suspect).rule == "34 of 384 elements differ; all of them are zero in the suspect, and they lie in 2 of 16 rows"


def test_zeroed_rows_masks_and_fills():
    suspect = X.copy()
    suspect[4:6] = 0
    found = damage(suspect)
    assert (found.likely, found.block) == ("zeroed", True)
    mask = np.random.default_rng(3).random(X.shape) < 0.5
    assert damage(np.where(mask, 0, X).astype(np.float32)).likely == "mask"
    assert damage(np.where(mask, -np.inf, X).astype(np.float32)).likely == "mask"
    assert damage(np.where(mask, np.finfo(np.float32).min, X).astype(np.float32)).likely == "mask"
    assert damage(X > 0.5, X > 0).likely == "mask"


def test_a_row_over_another_one():
    suspect = X.copy()
    suspect[11] = suspect[3]
    found = damage(suspect)
    assert (found.likely, found.rule) == ("copied rows", "index 11 of axis 0 holds what the reference has at index 3 of it")


def test_what_is_left_of_an_input():
    before = normal(16, 24, seed=8)
    suspect = X.copy()
    suspect[:, 3:9] = before[:, 3:9]
    found = damage(suspect, others={"in.0": block(before)})
    assert (found.likely, "in.0" in found.rule) == ("stale", True)


def test_a_corrupted_row_and_a_regular_stride():
    suspect = X.copy()
    suspect[7] += normal(24, seed=2) * 5
    found = damage(suspect)
    assert found.likely == "row corruption"
    assert "1 of 16 row" in found.rule
    flat = X.ravel().copy()
    flat[5::16] += 100
    assert damage(flat.reshape(X.shape)).stride == {"first": 5, "step": 16, "count": 24}


def test_numbers_that_became_nan():
    suspect = X.copy()
    suspect[0, :5] = np.nan
    suspect[1, :3] = np.inf
    found = damage(suspect)
    assert found.special["nan_appeared"] == 5
    assert found.special["inf_appeared"] == 3
    assert found.likely in ("not finite", "mask")
    assert "max" not in found.distance or found.distance["max"] > 0


def test_other_numbers_altogether():
    assert damage(normal(16, 24, seed=77)).likely == "unrelated"


def test_nothing_fits():
    suspect = X.copy()
    suspect[[0, 3, 9, 12], [1, 7, 2, 20]] *= np.float32([1.5, 3.1, -0.2, 77])
    found = damage(suspect)
    assert (found.likely, found.differing) == ("unknown", 4)


def test_one_number_alone_shows_no_pattern():
    found = describe(block(np.float32(1.0)), block(np.float32(0.5)))
    assert (found.likely, found.alternatives) == ("unknown", ("single bit", "reduction order"))
    assert describe(block(np.int64(4)), block(np.int64(5))).alternatives == ("single bit", "shift")
    assert describe(block(np.float32(1.0)), block(np.float32(0.31))).likely == "unknown"


DTYPES = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    "int64",
    "uint8",
    "complex64",
    "bits8",
]


@pytest.mark.parametrize("dtype", DTYPES)
@settings(deadline=None)
@given(data=st.data())
def test_counts_hold_for_every_dtype(dtype, data):
    size = {"float64": 8, "int64": 8, "complex64": 8, "float32": 4, "float16": 2, "bfloat16": 2}.get(dtype, 1)
    number = data.draw(st.integers(1, 40))
    raw = bytearray(data.draw(st.binary(min_size=number * size, max_size=number * size)))
    other = bytearray(raw)
    wanted = set()
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, number * size - 1))
        other[at] ^= 1 << data.draw(st.integers(0, 7))
    for index in range(number):
        if raw[index * size : (index + 1) * size] != other[index * size : (index + 1) * size]:
            wanted.add(index)
    shape = (number,)
    found = describe(
        block(np.frombuffer(raw, np.uint8), dtype)._replace(shape=shape), block(np.frombuffer(other, np.uint8), dtype)._replace(shape=shape)
    )
    assert found.differing == len(wanted)
    assert [one["index"][0] for one in found.first] == sorted(wanted)[:8]
    flips = sum(bin(left ^ right).count("1") for left, right in zip(raw, other, strict=True))
    assert sum(one["count"] for one in found.bits.get("flipped", [])) == flips


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_distances_are_in_its_own_steps(dtype):
    codes = np.arange(0x3F80, 0x3F80 + 20, dtype=np.uint16)
    found = describe(block(codes, dtype), block(codes + 2, dtype))
    assert (found.distance["max"], found.differing) == (2, 20)


def test_the_same_numbers_in_another_dtype():
    found = describe(block(bfloat16(X), "bfloat16"), block(through_bfloat16(X)))
    assert (found.likely, found.differing) == ("cast", None)
    found = describe(block(X), block(bfloat16(X), "bfloat16"))
    assert found.rule == "rounding the reference to bfloat16 gives the other side"
    assert describe(block(X), block(X.astype(np.float64) * 1.1)).likely == "unknown"


def test_other_shapes():
    assert describe(block(X), block(np.ascontiguousarray(X.T))).rule.endswith("axes in the order (1, 0)")
    assert "same bytes" in describe(block(X), block(X.reshape(8, 48))).rule
    assert "the first 20 of axis 1 are equal" in describe(block(X), block(np.ascontiguousarray(X[:, :20]))).rule
    assert "the last 10 of axis 0 are equal" in describe(block(X), block(X[6:])).rule
    assert describe(block(X), block(normal(5))).likely == "unknown"


def test_bytes_that_do_not_fit_the_shape_are_refused():
    with pytest.raises(ValueError, match="bytes"):
        describe(block(X), block(X)._replace(data=b"1234"))


def test_empty_and_single_tensors():
    assert describe(block(np.zeros((0, 4), np.float32)), block(np.zeros((0, 4), np.float32))).likely == "none"
    found = describe(block(np.bool_(True)), block(np.bool_(False)))
    assert found.likely == "mask"


def test_memory_beyond_the_blocks_is_bounded():
    large = normal(1 << 10, 1 << 11)
    suspect = (large.view(np.uint32) + 1).view(np.float32)
    blocks = block(large), block(suspect)
    tracemalloc.start()
    try:
        found = describe(*blocks)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.differing == large.size
    assert peak < 48 << 20, "one array of float64 of all elements has 16 MiB; a pass over whole arrays makes a dozen"
