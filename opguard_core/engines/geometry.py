"""Texts and byte spans of a tensor's dtype, shape and strides, computed once per distinct geometry."""

from __future__ import annotations

from typing import Any

import torch

from opguard_core.fingerprint.layout import merge_dimensions


class Geometry:
    """What a slot row says about dtype, shape and strides.

    Attributes:
        dtype: "float32".
        shape: "4,8"; "" for a scalar.
        strides: In elements, "8,1".
        itemsize: Bytes of one element.
        nbytes: Logical bytes.
        span: Bytes from the first element to one past the last in memory; equals nbytes if and only if dense.
        sizes: The shape as it came.
        steps: The strides as they came.
        kind: The torch dtype.
        base: The geometry with the fewest dimensions of which a view at the same place has the same logical bytes, and so the same digests;
            itself if it is that one.
    """

    __slots__ = ("base", "dtype", "itemsize", "kind", "nbytes", "shape", "sizes", "span", "steps", "strides")

    def __init__(self, kind: torch.dtype, sizes: Any, steps: tuple[int, ...]) -> None:
        self.kind, self.sizes, self.steps = kind, tuple(sizes), steps
        self.dtype = str(kind).removeprefix("torch.")
        self.shape = ",".join([str(size) for size in sizes])
        self.strides = ",".join([str(step) for step in steps])
        self.itemsize = kind.itemsize
        count = 1
        for size in sizes:
            count *= size
        self.nbytes = count * self.itemsize
        reach = sum((size - 1) * step for size, step in zip(sizes, steps, strict=True)) + 1 if count else 0
        self.span = reach * self.itemsize
        self.base = self

    def merged(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Sizes and strides without dimensions of length one, and with those joined that lie densely in one another."""
        return merge_dimensions(self.sizes, self.steps) if self.nbytes else ((0,), (1,))


class Geometries:
    """All geometries seen; forgets everything when a program with ever-new shapes fills it."""

    LIMIT = 1 << 16

    def __init__(self) -> None:
        self._known: dict[Any, Geometry] = {}

    def of(self, tensor: torch.Tensor) -> Geometry:
        """Geometry of a strided tensor. Cost: about 0.5 us once known."""
        key = (tensor.dtype, tensor.shape, tensor.stride())
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= self.LIMIT:
                self._known.clear()
            known = self._known[key] = Geometry(*key)
            merged = (known.kind, *known.merged())
            if merged != key:
                known.base = self._known.setdefault(merged, Geometry(*merged))
        return known
