"""What each digest sees of each fault: the table of ``spec.md`` section 6, every cell tried."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import opguard_core.fingerprint
from tests.support.twins import compiled

SPEC = Path(opguard_core.fingerprint.__file__).with_name("spec.md")
SEEDS = range(25)
BITS = {"float32": np.uint32, "bfloat16": np.uint16, "float16": np.uint16, "float64": np.uint64, "int32": np.uint32, "int64": np.uint64}
NAN = {"float32": 0x7FC00000, "bfloat16": 0x7FC0, "float16": 0x7E00, "float64": 0x7FF8 << 48}
SHAPE = (8, 4, 16)  # rows, heads, width


def sign(dtype):
    return BITS[dtype](1 << (8 * BITS[dtype]().itemsize - 1))


def values(rng, dtype):
    """Random values of the dtype as their bits."""
    if dtype.startswith("int"):
        return rng.integers(1, 50_000, SHAPE).astype(BITS[dtype])
    if dtype == "bfloat16":
        return (rng.standard_normal(SHAPE, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return rng.standard_normal(SHAPE).astype(dtype).view(BITS[dtype])


def two_places(rng, x):
    """Two elements in the same half of their lanes' 32-bit words."""
    flat = x.reshape(-1)
    first, second = rng.choice(flat.size // 4, 2, replace=False) * 4
    return flat, first, second


def single_bit(rng, x, dtype):
    flat = x.reshape(-1)
    flat[rng.integers(flat.size)] ^= BITS[dtype](1 << int(rng.integers(8 * x.itemsize)))


def two_equal_flips(rng, x, dtype):
    flat, first, second = two_places(rng, x)
    bit = BITS[dtype](1 << int(rng.integers(8 * x.itemsize)))
    flat[first] ^= bit
    flat[second] ^= bit


def all_signs(rng, x, dtype):
    x ^= sign(dtype)


def rows_swapped(rng, x, dtype):
    a, b = rng.choice(len(x), 2, replace=False)
    x[[a, b]] = x[[b, a]]


def rolled(rng, x, dtype):
    x[:] = np.roll(x, 1, axis=0)


def heads_interleaved(rng, x, dtype):
    rows, heads, width = x.shape
    x[:] = x.transpose(0, 2, 1).reshape(rows, heads, width)


def transposed_values(rng, x, dtype):
    matrix = x.reshape(len(x), -1)
    x[:] = matrix.T.reshape(x.shape)


def row_duplicated(rng, x, dtype):
    a, b = rng.choice(len(x), 2, replace=False)
    x[a] = x[b]


def rows_exchanged(rng, x, dtype):
    """Two equal rows become two other equal rows; the fault-free array is prepared likewise by `EQUAL_ROWS`."""
    x[1] = x[2] = values(rng, dtype)[0]


def nan_payload(rng, x, dtype):
    flat = x.reshape(-1)
    flat[flat == BITS[dtype](NAN[dtype])] ^= BITS[dtype](1)


def minus_zero(rng, x, dtype):
    flat = x.reshape(-1)
    flat[flat == 0] ^= sign(dtype)


def filled(value):
    def fault(rng, x, dtype):
        x[:] = value(dtype)

    return fault


def planted(count, value):
    """Prepare an array that holds ``value`` in ``count`` places."""

    def prepare(rng, x, dtype):
        flat, first, second = two_places(rng, x)
        flat[[first, second][:count]] = value(dtype)

    return prepare


def equal_rows(rng, x, dtype):
    x[1] = x[2]


def nan_of(dtype):
    return BITS[dtype](NAN[dtype])


def nothing(rng, x, dtype):
    pass


FLOATS = ("float32", "bfloat16", "float16", "float64")
ALL = (*FLOATS, "int32", "int64")
# name: (what the array is like before, the fault, dtypes)
FAULTS = {
    "single bit": (nothing, single_bit, ALL),
    "two equal flips": (nothing, two_equal_flips, ALL),
    "all signs flipped": (nothing, all_signs, FLOATS),
    "two rows swapped": (nothing, rows_swapped, ALL),
    "rolled by one row": (nothing, rolled, ALL),
    "heads interleaved": (nothing, heads_interleaved, ALL),
    "transposed values": (nothing, transposed_values, ALL),
    "row duplicated over another": (nothing, row_duplicated, ALL),
    "two rows exchanged for two equal others": (equal_rows, rows_exchanged, ALL),
    "NaN payload": (planted(1, nan_of), nan_payload, FLOATS),
    "NaN payload in two places": (planted(2, nan_of), nan_payload, FLOATS),
    "minus zero for zero": (planted(1, lambda dtype: 0), minus_zero, FLOATS),
    "minus zero for zero in two places": (planted(2, lambda dtype: 0), minus_zero, FLOATS),
    "constant of another value": (filled(lambda dtype: 3), filled(lambda dtype: 5), ALL),
    "zeros against NaN": (filled(lambda dtype: 0), filled(nan_of), FLOATS),
}
SPECIAL = {"trailing zero row dropped", "cast without loss", "transposed view against its copy"}


def table():
    """Rows of the table in spec.md: fault -> (mix64, value64, bag64, xor32, trivial)."""
    lines = SPEC.read_text().splitlines()
    start = lines.index("| fault | mix64 | value64 | bag64 | xor32 | trivial |")
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name] = tuple(cells)
    return rows


def check(name, before, after, *, columns=("mix64", "value64", "bag64", "xor32")):
    expected = dict(zip(("mix64", "value64", "bag64", "xor32", "trivial"), table()[name], strict=True))
    for column in columns:
        changed = getattr(before, column) != getattr(after, column)
        assert changed == (expected[column] == "seen"), (name, column)
    assert after.trivial == (expected["trivial"] == "yes"), name


def test_the_table_and_the_faults_are_the_same():
    assert set(table()) == set(FAULTS) | SPECIAL


@pytest.mark.parametrize("name", FAULTS)
def test_each_digest_sees_what_the_table_says(name):
    prepare, fault, dtypes = FAULTS[name]
    for dtype in dtypes:
        columns = ("mix64", "value64", "bag64", "xor32") if BITS[dtype]().itemsize == 4 else ("mix64", "value64", "bag64")
        for seed in SEEDS:
            rng = np.random.default_rng([seed, 1])
            x = values(rng, dtype)
            prepare(rng, x, dtype)
            before = compiled(x, dtype)
            fault(rng, x, dtype)
            check(name, before, compiled(x, dtype), columns=columns)


def test_a_dropped_row_of_zeros_is_seen_by_its_count():
    for seed in SEEDS:
        x = values(np.random.default_rng(seed), "float32")
        x[-1] = 0
        check("trailing zero row dropped", compiled(x, "float32"), compiled(x[:-1], "float32"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32"])
def test_a_cast_without_loss_keeps_the_value_digests(dtype):
    for seed in SEEDS:
        x = values(np.random.default_rng(seed), dtype)
        if dtype == "bfloat16":
            wide, name = x.astype(np.uint32) << 16, "float32"
        elif dtype == "float16":
            wide, name = x.view(np.float16).astype(np.float32).view(np.uint32), "float32"
        else:
            wide, name = x.astype(np.uint64), "int64"
        columns = ("mix64", "value64", "bag64") if dtype == "int32" else ("mix64", "value64", "bag64", "xor32")
        check("cast without loss", compiled(x, dtype), compiled(wide, name), columns=columns)


def test_a_transposed_view_and_its_copy_are_the_same():
    for dtype in ALL:
        x = values(np.random.default_rng(3), dtype)
        view = x.transpose(2, 0, 1)
        check("transposed view against its copy", compiled(view, dtype), compiled(np.ascontiguousarray(view), dtype))


def test_known_limit_float32_to_float64_is_no_cast():
    x = np.random.default_rng(0).standard_normal(64, dtype=np.float32)
    narrow, wide = compiled(x.view(np.uint32), "float32"), compiled(x.astype(np.float64).view(np.uint64), "float64")
    assert narrow.value64 != wide.value64
    assert narrow.bag64 != wide.bag64


def test_known_limit_integer_to_float_is_no_cast():
    x = np.arange(1, 65, dtype=np.uint32)
    floats = x.astype(np.float32).view(np.uint32)
    assert compiled(x, "int32").value64 != compiled(floats, "float32").value64
    assert compiled(floats, "int32").value64 != compiled(floats, "float32").value64  # nor are the same bits under another type


def test_known_limit_a_quieted_nan_is_a_change():
    signalling = np.full(4, 0x7D00, dtype=np.uint16)
    quieted = np.full(4, 0x7FE00000, dtype=np.uint32)
    assert compiled(signalling, "float16").value64 != compiled(quieted, "float32").value64


def test_known_limit_shape_is_not_part_of_a_digest():
    x = values(np.random.default_rng(0), "float32")
    assert compiled(x, "float32") == compiled(x.reshape(-1), "float32")


def test_the_fewest_elements_and_equal_elements_are_trivial():
    x = np.arange(1, 8, dtype=np.uint32)
    assert [compiled(x[:k], "float32").trivial for k in range(4)] == [True, True, True, False]
    last_differs = np.full(5000, 7, dtype=np.uint16)
    assert compiled(last_differs, "bfloat16").trivial
    last_differs[-1] = 8
    assert not compiled(last_differs, "bfloat16").trivial
    pairs = np.full(9, 1 + 2j, dtype=np.complex64).view(np.uint64)
    assert compiled(pairs, "complex64").trivial
    zeros = np.array([0x00000000, 0x80000000, 0x00000000], dtype=np.uint32)
    assert not compiled(zeros, "float32").trivial
