"""The text of cuda/*.cu on a CPU (fibers for threads) against the oracle: every path, dtype, layout and flag, the ring, replays.

What a CPU cannot show, races between blocks, speed and more than 4 GiB, tests/gpu/kernels.py shows on the card.
"""

from __future__ import annotations

import ctypes
import random  # noqa: TID251  a generator of its own
import re
import shutil

import numpy as np
import pytest

from opguard_core.fingerprint import constants, cpu, reference
from opguard_core.fingerprint.dtypes import ELEMENT_TYPES
from tests.support import emulated_cuda
from tests.support.emulated_cuda import ROOT, Device, Place, digests_of, plan, view_of

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="compiles cuda/fingerprint.cu as C++: needs g++"),
    pytest.mark.timeout(300),  # the first test compiles
]

LAYOUTS = [
    ((0,), (1,)),
    ((1,), (1,)),
    ((2,), (1,)),
    ((7,), (1,)),
    ((129,), (1,)),
    ((1500,), (1,)),
    ((4096 + 3,), (1,)),
    ((), ()),
    ((5, 0, 3), (1, 1, 1)),
    ((50, 60), (1, 50)),
    ((130, 70), (1, 131)),
    ((3, 40, 50), (2000, 1, 40)),
    ((40, 3, 33), (1, 1400, 41)),
    ((64, 128), (1, 64)),
    ((2, 3, 33, 35), (3600, 1200, 1, 34)),
    ((30, 7), (9, 1)),
    ((100,), (2,)),
    ((5, 100), (0, 1)),
    ((40, 40, 3), (120, 3, 1)),
    ((4, 3, 6, 5), (90, 30, 1, 6)),
    ((2, 3, 5, 64), (5 * 576, 64, 576, 1)),  # heads of attention, cut out of queries, keys and values
    ((3, 9, 32), (9 * 48, 48, 1)),
    ((70, 128), (256, 1)),
    ((1, 5, 16), (0, 0, 1)),
]


@pytest.fixture(scope="module")
def memory() -> np.ndarray:
    room = np.random.default_rng(7).integers(0, 256, size=1 << 20, dtype=np.uint8)
    return room[-room.ctypes.data % 256 :]


def check(device: Device, places: list[Place], flags: int = 0, *, reverse: bool = False) -> None:
    for place, record in zip(places, device.run(places, flags, reverse=reverse), strict=True):
        expected = cpu.fingerprint(*place)
        assert digests_of(record, expected.nbytes) == expected, place


@pytest.mark.parametrize("dtype", ELEMENT_TYPES)
def test_every_dtype_and_layout(memory: np.ndarray, dtype: str) -> None:
    item = ELEMENT_TYPES[dtype].item_bytes
    device = Device()
    for offset in (0, 1, 3):
        check(device, [Place(memory.ctypes.data + offset * item, dtype, *layout) for layout in LAYOUTS])
        for layout in LAYOUTS[4:15]:
            check(device, [Place(memory.ctypes.data + offset * item, dtype, *layout)])


@pytest.mark.parametrize("seed", range(40))
def test_all_blocks_of_a_launch_are_resident_together(seed: int) -> None:
    draw = random.Random(seed)
    numels = [draw.choice((1, 768, 3072, 768 * 768, 768 * 3072, 50304 * 768)) for _ in range(draw.randint(1, 64))]
    planned = plan([view_of(Place(256, "bfloat16", (numel,), (1,))) for numel in numels], 0, 132)
    assert planned.num_views == len(numels)
    assert planned.grid <= max(2 * 132, len(numels) + 1)


@pytest.mark.parametrize("seed", range(30))
def test_rows_of_whole_vectors(memory: np.ndarray, seed: int) -> None:
    """Any number of blocks and any sizes: what a thread steps over and what it carries differ."""
    draw = random.Random(seed)
    dtype = ("bfloat16", "float32", "float16")[seed % 3]
    per_vector = 16 // ELEMENT_TYPES[dtype].item_bytes
    places = []
    for _ in range(4):
        dims = draw.randint(1, 4)
        row = per_vector * draw.randint(1, 40)
        shape, strides, span = (row,), (1,), row
        for size in (draw.randint(1, 9) for _ in range(dims)):
            step = span + per_vector * draw.randint(0, 3) if draw.random() < 0.9 else 0
            shape, strides, span = (size, *shape), (step, *strides), span + (size - 1) * step
        order = list(range(dims))
        draw.shuffle(order)
        shape, strides = ((*(sizes[k] for k in order), sizes[-1]) for sizes in (shape, strides))
        if span * ELEMENT_TYPES[dtype].item_bytes < memory.nbytes:
            places.append(Place(memory.ctypes.data, dtype, shape, strides))
    device = Device(num_sms=draw.randint(1, 3))
    check(device, places)
    for place in places:
        check(device, [place])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16", "float64", "complex128"])
def test_addresses_that_no_element_is_aligned_to(memory: np.ndarray, dtype: str) -> None:
    for byte in (1, 2, 5, 8, 9, 15):
        check(Device(), [Place(memory.ctypes.data + byte, dtype, shape, strides) for shape, strides in LAYOUTS])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int16", "float8_e5m2", "complex64"])
def test_the_oracle_itself(memory: np.ndarray, dtype: str) -> None:
    item = ELEMENT_TYPES[dtype].item_bytes
    if dtype == "complex64":
        array = memory[:2400].view("<c8").reshape(20, 15).T
    else:
        array = memory[: 300 * item].view(f"<u{item}").reshape(20, 15).T
    place = Place(array.ctypes.data, dtype, array.shape, tuple(step // item for step in array.strides))
    expected = reference.fingerprint(array, dtype)
    assert digests_of(Device().run([place])[0], expected.nbytes) == expected


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "float8_e8m0fnu"]
)
def test_every_code_of_a_small_float(dtype: str) -> None:
    bits = 8 * ELEMENT_TYPES[dtype].item_bytes
    codes = np.arange(1 << bits, dtype=f"<u{bits // 8}")
    check(Device(), [Place(codes.ctypes.data, dtype, codes.shape, (1,))])


def test_random_layouts(memory: np.ndarray) -> None:
    rng = np.random.default_rng(11)
    names = list(ELEMENT_TYPES)
    device = Device(num_sms=2)
    for _ in range(12):
        places = []
        for _ in range(8):
            dtype = names[rng.integers(len(names))]
            item = ELEMENT_TYPES[dtype].item_bytes
            shape = tuple(int(n) for n in rng.integers(1, [40, 30, 12][: rng.integers(1, 4)]))
            steps, step = [0] * len(shape), 1
            for d in rng.permutation(len(shape)):
                steps[d] = step
                step *= shape[d] + int(rng.integers(0, 3))
            places.append(Place(memory.ctypes.data + item * int(rng.integers(0, 9)), dtype, shape, tuple(steps)))
        check(device, places, reverse=bool(rng.integers(2)))


@pytest.mark.parametrize("layout", [((40000,), (1,)), ((200, 300), (1, 201)), ((300, 70), (100, 1))])
@pytest.mark.parametrize("dtype", ["bfloat16", "uint8", "float32"])
def test_the_number_of_blocks_and_their_order_do_not_matter(memory: np.ndarray, dtype: str, layout: tuple) -> None:
    place = Place(memory.ctypes.data + ELEMENT_TYPES[dtype].item_bytes, dtype, *layout)
    for num_sms in (1, 2, 7):
        check(Device(num_sms=num_sms), [place])
        check(Device(num_sms=num_sms), [place], reverse=True)


def test_more_views_than_one_launch_takes(memory: np.ndarray) -> None:
    names = list(ELEMENT_TYPES)
    places = [Place(memory.ctypes.data + 16 * k, names[k % len(names)], *LAYOUTS[k % len(LAYOUTS)]) for k in range(150)]
    assert plan([view_of(place) for place in places]).num_views < len(places)
    check(Device(), places)


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "complex32", "float32", "bfloat16", "int8"])
def test_conjugate_and_negative_views(memory: np.ndarray, dtype: str) -> None:
    size = ELEMENT_TYPES[dtype].component_bytes
    sign = b"\0" * (size - 1) + b"\x80"
    negative = sign * (16 // size)
    conjugate = (b"\0" * size + sign) * (16 // size // 2) if size < 16 else negative
    for pattern in (negative, conjugate):
        flip = (int.from_bytes(pattern[:8], "little"), int.from_bytes(pattern[8:], "little"))
        check(Device(), [Place(memory.ctypes.data, dtype, shape, strides, flip) for shape, strides in LAYOUTS])


@pytest.mark.parametrize("flags", [emulated_cuda.NO_VALUE64, emulated_cuda.NO_ELEMENTS])
def test_digests_left_out(memory: np.ndarray, flags: int) -> None:
    places = [
        Place(memory.ctypes.data + 2 * k, dtype, *LAYOUTS[k])
        for k in range(len(LAYOUTS))
        for dtype in ("bfloat16", "float32", "float16", "int64", "uint8")
    ]
    for place, record in zip(places, Device().run(places, flags), strict=True):
        expected = cpu.fingerprint(*place)
        found = digests_of(record, expected.nbytes)
        assert (found.mix64, found.xor32, found.trivial) == (expected.mix64, expected.xor32, expected.trivial), place
        assert found.value64 == 0
        assert found.bag64 == (expected.bag64 if flags == emulated_cuda.NO_VALUE64 else 0)
        absent = emulated_cuda.VALUE64_ABSENT if flags == emulated_cuda.NO_VALUE64 else emulated_cuda.ELEMENTS_ABSENT
        assert record["flags"] & ~np.uint32(emulated_cuda.TRIVIAL) == absent


@pytest.mark.parametrize("layout", [((20000,), (1,)), ((9,), (1,)), ((100, 90), (1, 100)), ((60, 50), (70, 1))])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint8", "int64", "bool"])
@pytest.mark.parametrize("flags", [0, emulated_cuda.NO_ELEMENTS])
def test_statistics(dtype: str, layout: tuple, flags: int) -> None:
    shape, strides = layout
    rng = np.random.default_rng(3)
    numbers = rng.normal(size=20100) * 100
    if dtype.startswith("float"):
        numbers[rng.integers(0, 20100, size=40)] = np.nan
        numbers[rng.integers(0, 20100, size=30)] = -np.inf
        numbers[:3] = (np.nan, np.inf, -1.5)
    array = numbers.astype(dtype)
    item = array.itemsize
    view = np.lib.stride_tricks.as_strided(array, shape, tuple(item * step for step in strides))
    place = Place(array.ctypes.data, dtype, shape, strides)
    device = Device()
    record = device.run([place], flags | emulated_cuda.STATISTICS)[0]
    expected = cpu.fingerprint(*place)
    assert int(record["mix64"]) == expected.mix64
    assert record["flags"] & emulated_cuda.HAS_STATISTICS
    if dtype.startswith("float"):
        assert (record["nan_count"], record["inf_count"]) == (np.isnan(view).sum(), np.isinf(view).sum())
    else:
        assert (record["nan_count"], record["inf_count"]) == (0, 0)
    sizes = np.abs(view.astype(np.float64))
    assert record["max_abs"] == np.float32(np.max(sizes[~np.isnan(sizes)]))


def test_no_statistics_of_bits_without_a_meaning(memory: np.ndarray) -> None:
    record = Device().run([Place(memory.ctypes.data, "uint64", (100,), (1,))], emulated_cuda.STATISTICS)[0]
    assert not record["flags"] & emulated_cuda.HAS_STATISTICS
    assert (record["nan_count"], record["inf_count"], record["max_abs"]) == (0, 0, 0)


@pytest.mark.parametrize("regions", [2, 3, 64])
@pytest.mark.parametrize("layout", [((5000,), (1,)), ((70, 90), (1, 71)), ((11,), (1,))])
def test_a_region_is_the_fingerprint_of_its_elements(memory: np.ndarray, regions: int, layout: tuple) -> None:
    shape, strides = layout
    array = np.lib.stride_tricks.as_strided(memory.view("<u2"), shape, tuple(2 * step for step in strides))
    records = Device().run([Place(memory.ctypes.data, "bfloat16", *layout)] * 2, regions << emulated_cuda.REGIONS_SHIFT)
    assert len(records) == 2 * regions
    flat = np.ascontiguousarray(array).reshape(-1)
    each = -(-(-(-flat.size // regions) * 2) // 16) * 8
    for k, record in enumerate(records):
        part = np.ascontiguousarray(flat[k % regions * each :][:each])
        assert record["region"] == k % regions + 1
        assert digests_of(record, part.nbytes) == cpu.fingerprint(part.ctypes.data, "bfloat16", part.shape, (1,))


@pytest.mark.parametrize("length", [1, 2, 3, 1000, 40000])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "uint8", "complex128"])
def test_trivial_means_that_all_elements_are_equal(dtype: str, length: int) -> None:
    item = ELEMENT_TYPES[dtype].item_bytes
    array = np.tile(np.arange(3, 3 + item, dtype=np.uint8), length)
    place = Place(array.ctypes.data, dtype, (length,), (1,))
    assert Device().run([place])[0]["flags"] & emulated_cuda.TRIVIAL
    array[-1] ^= 1
    assert bool(Device().run([place])[0]["flags"] & emulated_cuda.TRIVIAL) == (length <= 2)
    check(Device(), [place])


def test_more_elements_than_32_bits_count(memory: np.ndarray) -> None:
    planned = plan([view_of(Place(memory.ctypes.data, "int16", (1 << 20, 1 << 14), (0, 1)))])
    first_segment = (ctypes.c_uint64 * 3).from_buffer(planned.rest)
    blocks = (ctypes.c_uint32 * 2).from_buffer(planned.rest, 24)
    first_segment[1], first_segment[2] = 1000, (1 << 33) + 16000
    blocks[0], blocks[1] = 0, 1  # alone: no block 0 that claims
    planned.grid = planned.header.num_blocks = 1
    device = Device()
    device.launch(planned)
    part = np.take(memory[: 2 << 14].view("<i2"), np.arange(16000, 17000), mode="wrap")
    expected = cpu.fingerprint(part.ctypes.data, "int16", (1000,), (1,))
    assert digests_of(device.take()[0], 2000) == expected


def test_a_replayed_launch_appends_and_counts(memory: np.ndarray) -> None:
    device = Device()
    planned = plan([view_of(Place(memory.ctypes.data, "bfloat16", (n,), (1,))) for n in (40000, 10, 0)], num_sms=2)
    assert planned.grid > 3
    for _ in range(4):
        device.launch(planned, captured=True, ticket=70)
    records = device.take()
    assert records["ticket"].tolist() == [70, 71, 72] * 4
    assert records["occurrence"].tolist() == [k // 3 for k in range(12)]
    assert len(set(records["mix64"].tolist())) == 3


def test_a_full_ring_is_not_overwritten_and_the_loss_is_counted(memory: np.ndarray) -> None:
    device = Device(capacity=64)
    planned = plan([view_of(Place(memory.ctypes.data, "int32", (n,), (1,))) for n in range(25)], num_sms=1)
    for first in (100, 200, 300, 400):
        device.launch(planned, ticket=first, captured=True)
    records = device.take()
    assert records["ticket"].tolist() == [*range(100, 125), *range(200, 225)]
    assert int(device.control[1]) == 50
    device.launch(planned, ticket=500, captured=True)  # around the end of the ring
    records = device.take()
    assert records["ticket"].tolist() == [*range(500, 525)]
    assert set(records["occurrence"].tolist()) == {4}  # two were lost: the gap shows


def test_a_torn_or_old_entry_does_not_pass_its_check(memory: np.ndarray) -> None:
    device = Device()
    device.launch(plan([view_of(Place(memory.ctypes.data, "int32", (30,), (1,)))]))
    passes = emulated_cuda.library().og_emulated_check
    entry = device.entries[: emulated_cuda.ENTRY_BYTES].copy()
    check_word = int(entry.view(emulated_cuda.RECORD)["check"][0])
    assert passes(entry.ctypes.data, 0) == check_word
    assert passes(entry.ctypes.data, device.capacity) != check_word
    for byte in range(0, 88, 3):
        torn = entry.copy()
        torn[byte] ^= 0x10
        assert passes(torn.ctypes.data, 0) != check_word


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"widening": 99}, "unknown widening"),
        ({"item_bytes": 3}, "item size"),
        ({"numel": 7}, "does not fit the sizes"),
        ({"data": 0}, "null address"),
        ({"num_dims": 25}, "too many dimensions"),
    ],
)
def test_views_that_cannot_be_read(memory: np.ndarray, change: dict[str, int], why: str) -> None:
    view = view_of(Place(memory.ctypes.data, "float32", (4, 5), (5, 1)))
    for name, value in change.items():
        setattr(view, name, value)
    with pytest.raises(ValueError, match=why):
        plan([view])


def test_the_constants_are_those_of_the_definition() -> None:
    text = (ROOT / "cuda" / "digest.cuh").read_text()
    found = {name: int(value, 16) for name, value in re.findall(r"#define (\w+) (0x[0-9A-F]+)u", text)}
    assert found == {
        "POSITION": constants.POSITION,
        "SPREAD": constants.SPREAD,
        "OFFSET": constants.OFFSET,
        "FEED_HIGH": constants.FEED >> 32,
        "SCATTER": constants.SCATTER,
        "FOLD": constants.FOLD,
    }
    assert constants.FEED & constants.LOW32 == 1
