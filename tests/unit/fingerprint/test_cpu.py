"""The host entry points: argument handling, caching, which calls keep the GIL, byte strings, composites."""

from __future__ import annotations

import numpy as np
import pytest

from opguard_core.fingerprint import cpu, native, numpy_twin
from opguard_core.fingerprint.composite import combine
from opguard_core.fingerprint.digest import Digests
from opguard_core.fingerprint.dtypes import ELEMENT_TYPES
from tests.support.twins import chunked, compiled, native_or_skip, oracle, random_codes, strides_of

FLOAT32 = ELEMENT_TYPES["float32"]


def test_a_result_is_a_plain_digests_value():
    x = np.arange(5, dtype=np.float32)
    found = compiled(x, "float32")
    assert type(found) is Digests
    assert [type(field) for field in found] == [int, int, int, int, bool, int]
    assert found == oracle(x, "float32")


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 0, 2)])
def test_an_empty_array_is_never_dereferenced(shape):
    found = cpu.fingerprint(0, "float32", shape, (1,) * len(shape))
    assert found == oracle(np.empty(shape, dtype=np.float32), "float32")
    assert (found.nbytes, found.trivial) == (0, True)


def test_a_scalar_has_no_dimensions():
    x = np.array(2.5, dtype=np.float64)
    assert compiled(x, "float64") == chunked(x, "float64") == oracle(x, "float64")


def test_more_dimensions_than_the_plan_holds_go_to_numpy():
    shape = (2,) * (native.MAX_DIMS + 1)
    strides = tuple(3 * 4 ** (k % 5) for k in range(len(shape)))  # nothing merges
    memory = np.random.default_rng(0).integers(0, 255, 1 + sum(strides), dtype=np.uint8)
    shape, strides = (*shape[:3], *(1,) * (len(shape) - 3)), strides  # small: only 8 elements, still this many dimensions
    reader = cpu.Reader(ELEMENT_TYPES["uint8"], shape, strides)
    assert reader.read(memory.ctypes.data) == numpy_twin.fingerprint(memory.ctypes.data, ELEMENT_TYPES["uint8"], shape, strides)


def test_an_unknown_dtype_is_a_key_error():
    with pytest.raises(KeyError, match="float3"):
        cpu.fingerprint(0, "float3", (0,), (1,))


def test_short_calls_keep_the_gil_and_long_ones_release_it():
    loaded = native_or_skip()
    assert cpu.Reader(FLOAT32, (cpu.RELEASE_GIL_BYTES // 4 - 1,), (1,))._call is loaded.holding
    assert cpu.Reader(FLOAT32, (cpu.RELEASE_GIL_BYTES // 4,), (1,))._call is loaded.releasing


@pytest.mark.parametrize("compiler", [True, False])
def test_arrays_read_together_have_the_digests_they_have_by_themselves(monkeypatch, compiler):
    if not compiler:
        monkeypatch.setattr(cpu, "_loaded", native.NoNative("for this test"))
    rng = np.random.default_rng(2)
    for number in (1, 2, 30):
        arrays = [random_codes(rng, (k % 7 + 1, 5 + k), dtype) for k, dtype in zip(range(number), [*ELEMENT_TYPES] * 2, strict=False)]
        names = [dtype for _, dtype in zip(range(number), [*ELEMENT_TYPES] * 2, strict=False)]
        singles = [cpu.Reader(ELEMENT_TYPES[name], one.T.shape, strides_of(one.T)) for one, name in zip(arrays, names, strict=True)]
        addresses = [one.ctypes.data for one in arrays]
        expected = [list(reader.read(address)[:4]) for reader, address in zip(singles, addresses, strict=True)]
        together = cpu.Readers(singles)
        for _ in range(2):
            assert together.read(addresses).tolist() == expected
            assert together.read(np.array(addresses, dtype=np.uint64)).tolist() == expected


def test_arrays_read_together_release_the_gil_if_all_of_them_are_long():
    loaded = native_or_skip()
    short = cpu.Reader(FLOAT32, (cpu.RELEASE_GIL_BYTES // 8,), (1,))
    assert cpu.Readers([short])._call is loaded.holding_many
    assert cpu.Readers([short] * 2)._call is loaded.releasing_many


def test_the_cache_of_shapes_is_bounded(monkeypatch):
    monkeypatch.setattr(cpu, "_readers", {})
    monkeypatch.setattr(cpu, "_MAX_READERS", 3)
    x = np.arange(40, dtype=np.uint8)
    for length in range(1, 20):
        assert compiled(x[:length], "uint8") == oracle(x[:length], "uint8")
        assert len(cpu._readers) <= 3


def test_without_a_compiler_numpy_gives_the_same(monkeypatch):
    x = random_codes(np.random.default_rng(1), (37, 11), "bfloat16").T
    expected = compiled(x, "bfloat16")
    monkeypatch.setattr(cpu, "_loaded", native.NoNative("for this test"))
    monkeypatch.setattr(cpu, "_readers", {})
    assert compiled(x, "bfloat16") == expected
    assert cpu.implementation() == native.NoNative("for this test")


@pytest.mark.parametrize("data", [b"", b"\0", b"abc", bytes(range(256)) * 9, bytearray(b"xyz"), memoryview(b"12345678")])
def test_byte_strings_are_arrays_of_uint8(data):
    expected = oracle(np.frombuffer(bytes(data), dtype=np.uint8), "uint8")
    assert cpu.digests_of_bytes(data) == expected
    assert cpu.fingerprint_bytes(data) == expected.mix64


@pytest.mark.parametrize(
    ("dtype", "flip"), [("complex64", (1 << 63, 1 << 63)), ("complex128", (0, 1 << 63)), ("float16", (0x8000800080008000,) * 2)]
)
def test_flipped_signs_read_as_the_flipped_array(dtype, flip):
    for shape, axes in [((5, 3), (0, 1)), ((40, 70), (1, 0)), ((3, 900), (0, 1))]:
        x = random_codes(np.random.default_rng(2), shape, dtype).transpose(axes)
        element, strides = ELEMENT_TYPES[dtype], tuple(step // x.itemsize for step in x.strides)
        raw = np.frombuffer(x.tobytes(), dtype=np.uint8)
        mask = np.resize(np.array(flip, dtype="<u8").view(np.uint8), raw.size)
        expected = chunked((raw ^ mask).view(x.dtype), dtype)
        assert cpu.fingerprint(x.ctypes.data, dtype, x.shape, strides, flip) == expected
        assert numpy_twin.fingerprint(x.ctypes.data, element, x.shape, strides, flip) == expected


def test_a_composite_depends_on_its_kind_and_the_order_of_its_parts():
    a, b = cpu.digests_of_bytes(b"indices!!"), cpu.digests_of_bytes(b"values")
    whole = combine("sparse_coo", [a, b])
    others = [combine("sparse_coo", [b, a]), combine("nested", [a, b]), combine("sparse_coo", [a]), combine("sparse_coo", [a, b, b])]
    for digest in ("mix64", "value64", "bag64"):
        assert len({getattr(each, digest) for each in [whole, *others]}) == 5
    assert (whole.nbytes, whole.xor32, whole.trivial) == (15, a.xor32 ^ b.xor32, False)


def test_a_composite_sees_a_change_in_any_part():
    parts = [cpu.digests_of_bytes(bytes([k] * 9 + [1])) for k in range(4)]
    whole = combine("x", parts)
    for k, part in enumerate(parts):
        changed = [*parts]
        changed[k] = part._replace(mix64=part.mix64 ^ 1, value64=part.value64 ^ 1, bag64=part.bag64 ^ 1)
        other = combine("x", changed)
        assert (other.mix64 != whole.mix64, other.value64 != whole.value64, other.bag64 != whole.bag64) == (True, True, True)
