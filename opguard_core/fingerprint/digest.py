"""The value every fingerprint implementation returns."""

from __future__ import annotations

from typing import NamedTuple


class Digests(NamedTuple):
    """Fingerprint of one tensor's logical bytes (row-major values, little-endian, whatever the memory layout).

    Attributes:
        mix64: Equality of ordered bytes; always changed by a corruption within one 8-byte lane.
        value64: As mix64 over elements widened without loss; kept by a pure widening or narrowing cast that loses nothing.
        bag64: Order-free over widened elements.
        xor32: XOR of 32-bit words; for comparison with other tools only, never equality.
        trivial: At most two elements, or all elements equal: never paired by content.
        nbytes: Logical bytes.
    """

    mix64: int
    value64: int
    bag64: int
    xor32: int
    trivial: bool
    nbytes: int
