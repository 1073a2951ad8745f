"""Decisions drawn from the bytes of one fuzzer input, so that a mutation of the bytes is a mutation of the decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Reads numbers off the front of an input; an input that is used up gives zeros."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def __bool__(self) -> bool:
        """Whether anything is left."""
        return self._at < len(self._data)

    def number(self, below: int) -> int:
        """A number from 0 to below - 1."""
        width = 1 if below <= 1 << 8 else 2 if below <= 1 << 16 else 8
        raw = int.from_bytes(self._data[self._at : self._at + width], "little")
        self._at += width
        return raw % below

    def of(self, values: Sequence[T]) -> T:
        """One of the values."""
        return values[self.number(len(values))]

    def rest(self) -> bytes:
        """All that is left."""
        rest, self._at = self._data[self._at :], len(self._data)
        return rest
