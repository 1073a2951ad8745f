# ruff: noqa: E402  (torch may be missing)
"""Python numbers have the digests of the tensors that torch makes of them."""

import math
import struct

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opguard_core.probe.numbers import digests_of_number, dtype_of
from opguard_core.probe.tensor import fingerprint_host


def numbers():
    rng = np.random.default_rng(0)
    yield from (0, 1, -1, True, False, 0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 2**63 - 1, -(2**63))
    for _ in range(300):
        yield int(rng.integers(-(2**63), 2**63)) >> int(rng.integers(64))
        yield struct.unpack("<d", rng.bytes(8))[0]


def test_a_number_has_the_digests_of_its_tensor():
    for number in numbers():
        tensor = torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else torch.int64)
        assert digests_of_number(number) == fingerprint_host(tensor), number
        assert dtype_of(number) == str(tensor.dtype).removeprefix("torch.")


def test_what_equal_numbers_share_is_their_bytes():
    assert digests_of_number(True) == digests_of_number(1) != digests_of_number(1.0)
    assert digests_of_number(0.0) != digests_of_number(-0.0)


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**64 - 1, 2**70, -(2**70), 3**500, -(2**127), -(2**128)])
def test_an_integer_that_no_tensor_holds_has_the_digests_of_its_bytes(number):
    size = next(size for size in range(8, 400, 8) if -(1 << 8 * size - 1) <= number < 1 << 8 * size - 1)
    data = torch.tensor(list(number.to_bytes(size, "little", signed=True)), dtype=torch.uint8)
    assert (dtype_of(number), digests_of_number(number)) == ("uint8", fingerprint_host(data))
    assert digests_of_number(number) not in (digests_of_number(number + 1), digests_of_number(-number))
