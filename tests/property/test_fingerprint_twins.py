"""Claim: the compiled twin, the numpy twin and the oracle agree bit for bit on every dtype, shape, stride, offset and length."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard_core.fingerprint.dtypes import ELEMENT_TYPES
from tests.support.twins import chunked, compiled, oracle, random_codes

DTYPES = sorted(ELEMENT_TYPES)


@st.composite
def strided(draw: st.DrawFn):
    """A dtype, and a view with permuted, skipped, reversed, broadcast and offset dimensions."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=5)))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    array = random_codes(rng, shape, dtype, draw(st.integers(0, 9)))
    if draw(st.booleans()) and array.size:  # equal elements: `trivial` must agree too
        array = np.resize(array.reshape(-1)[:1], shape)
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    cuts = [slice(draw(st.integers(0, 2)), None, draw(st.sampled_from([1, 1, 2, 3]))) for _ in range(array.ndim)]
    array = array[(..., *cuts)]
    if array.ndim and draw(st.booleans()):
        array = array[::-1]
    if draw(st.booleans()):
        array = np.broadcast_to(array, (draw(st.integers(0, 4)), *array.shape))
    return dtype, array


@settings(max_examples=400, deadline=None, derandomize=True)
@given(strided())
def test_all_twins_agree_on_small_views(case):
    dtype, array = case
    expected = oracle(array, dtype)
    assert compiled(array, dtype) == expected
    assert chunked(array, dtype) == expected


# Around every size at which an implementation changes its way: lanes, widening blocks, gather buffer, tiles, chunks.
EDGES = [1, 2, 3, 7, 8, 9, 255, 256, 257, 1023, 1024, 1025, 32767, 32768, 32769, 65536 + 5]


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float16", "float32", "float64", "complex64", "complex128", "float8_e5m2"])
def test_compiled_and_chunked_agree_around_block_sizes(dtype):
    rng = np.random.default_rng(5)
    for length in EDGES:
        dense = random_codes(rng, (length,), dtype, 3)
        assert compiled(dense, dtype) == chunked(dense, dtype)
        spaced = random_codes(rng, (length, 2), dtype)[:, 1]
        assert compiled(spaced, dtype) == chunked(spaced, dtype)
        assert compiled(spaced, dtype) == compiled(spaced.copy(), dtype)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(DTYPES), st.integers(1, 3), st.integers(1, 150), st.integers(30, 700), st.integers(0, 5), st.integers(0, 1 << 32))
def test_transposed_matrices_read_as_their_copies(dtype, planes, rows, columns, padding, seed):
    """Tiles, their ragged edges, and the lanes that span two logical rows of odd length."""
    memory = random_codes(np.random.default_rng(seed), (planes, columns, rows + padding), dtype)
    view = memory[:, :, :rows].transpose(0, 2, 1)
    assert compiled(view, dtype) == chunked(np.ascontiguousarray(view), dtype)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.sampled_from(DTYPES), st.integers(1, 40), st.integers(200, 3000), st.integers(0, 9), st.integers(0, 1 << 32))
def test_rows_of_a_wider_matrix_read_as_their_copies(dtype, rows, columns, padding, seed):
    """Long dense runs that are hashed in place, with lanes across their ends."""
    memory = random_codes(np.random.default_rng(seed), (rows, columns + padding), dtype)
    view = memory[:, :columns]
    assert compiled(view, dtype) == chunked(np.ascontiguousarray(view), dtype)


def test_threads_do_not_disturb_each_other():
    rng = np.random.default_rng(9)
    arrays = [random_codes(rng, (40 + k, 300), "bfloat16").T for k in range(4)]
    expected = [chunked(array, "bfloat16") for array in arrays]
    wrong: list[int] = []

    def work(k: int) -> None:
        wrong.extend(k for _ in range(50) if compiled(arrays[k], "bfloat16") != expected[k])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
