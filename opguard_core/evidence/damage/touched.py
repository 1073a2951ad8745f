"""Where elements differ: which rows, columns, planes; a regular stride; a whole block. Memory is bounded by the sum of the lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

MAX_SHOWN = 8
_MAX_LENGTH = 1 << 22
"""Longer axes are looked at in stretches of several indices."""


class Touched:
    """Collects flat positions, in rising order.

    Args:
        shape: Lengths of the tensor.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape or (1,)
        self.count = 0
        self._grain = [max(1, -(-length // _MAX_LENGTH)) for length in self.shape]
        self._counts = [np.zeros(-(-length // grain), dtype=np.int64) for length, grain in zip(self.shape, self._grain, strict=True)]
        self._first = self._last = self._step = 0
        self._regular = True

    def add(self, positions: npt.NDArray[np.int64]) -> None:
        """Take the positions of one chunk."""
        if not positions.size:
            return
        for counts, grain, index in zip(self._counts, self._grain, np.unravel_index(positions, self.shape), strict=True):
            found = np.bincount(index // grain if grain > 1 else index)
            counts[: found.size] += found
        self._follow(positions)
        self.count += positions.size

    def _follow(self, positions: npt.NDArray[np.int64]) -> None:
        """Keep the step between positions as long as it is one."""
        if not self.count:
            self._first = int(positions[0])
        if self._regular:
            steps = np.diff(positions, prepend=self._last) if self.count else np.diff(positions)
            if steps.size:
                self._step = self._step or int(steps[0])
                self._regular = bool((steps == self._step).all())
        self._last = int(positions[-1])

    def slices(self, axis: int) -> npt.NDArray[np.int64]:
        """Differing elements of each index of an axis (of each stretch, where the axis is very long)."""
        return self._counts[axis]

    def is_exact(self, axis: int) -> bool:
        """Whether each index of an axis is counted by itself."""
        return self._grain[axis] == 1

    @property
    def block(self) -> bool:
        """Whether what differs is every element of the touched indices of all axes."""
        number = 1
        for counts in self._counts:
            number *= int(np.count_nonzero(counts))
        return bool(self.count) and number == self.count and all(grain == 1 for grain in self._grain)

    def stride(self) -> dict[str, int] | None:
        """First position, step and count if the flat positions have one step of more than one element."""
        if not self._regular or self.count < 3 or self._step <= 1:
            return None
        return {"first": self._first, "step": self._step, "count": self.count}

    def axes(self) -> list[dict[str, Any]]:
        """Each axis: how many of its indices are touched, and which."""
        return [self._axis(number) for number in range(len(self.shape))]

    def _axis(self, number: int) -> dict[str, Any]:
        counts, grain = self._counts[number], self._grain[number]
        at = np.flatnonzero(counts)
        found: dict[str, Any] = {
            "axis": number,
            "length": self.shape[number],
            "touched": int(at.size) if grain == 1 else min(self.shape[number], int(at.size) * grain),
            "exact": grain == 1,
            "ranges": _ranges(at * grain, grain),
        }
        steps = np.diff(at)
        if at.size > 2 and steps[0] > 1 and (steps == steps[0]).all():
            found["step"] = int(steps[0]) * grain
        return found


def _ranges(at: npt.NDArray[np.int64], grain: int) -> list[list[int]]:
    """Runs of neighbouring indices as first and last, the first ones."""
    if not at.size:
        return []
    breaks = np.flatnonzero(np.diff(at) > grain)
    firsts, lasts = at[np.concatenate([[0], breaks + 1])], at[np.concatenate([breaks, [at.size - 1]])] + grain - 1
    return [[int(first), int(last)] for first, last in zip(firsts[:MAX_SHOWN], lasts[:MAX_SHOWN], strict=True)]
