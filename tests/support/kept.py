"""Kept boundaries of made-up calls, as capture would write them."""

from __future__ import annotations

from typing import Any

import numpy as np

from opguard_core.fingerprint.cpu import digests_of_bytes
from opguard_core.trace.boundary import BoundaryKey
from opguard_core.trace.kept import Block, Kept, KeptSlot


def kept(
    operator: str = "aten.mul.Tensor",
    args: str = "",
    *,
    phase: str = "forward",
    seq: int = 7,
    stream: str = "",
    left_out: Any = (),
    **slots: Any,
) -> Kept:
    """A boundary whose slots are numpy arrays; names have ``_`` for a dot (``in_0``)."""
    blocks, known = {}, {}
    for written, array in slots.items():
        name = written.replace("_", ".")
        values = np.asarray(array)
        data = values.tobytes()
        strides = tuple(step // values.itemsize for step in np.ascontiguousarray(values).strides)[: values.ndim]
        digest = f"{digests_of_bytes(data).mix64:016x}"
        direction = {"in": "in", "kw": "in", "mut": "mut"}.get(name.split(".")[0], "out")
        if name in left_out:
            known[name] = KeptSlot(
                name, direction, "probed", values.dtype.name, values.shape, strides, "cpu", len(data), digest, reason="no room"
            )
            continue
        blocks[name] = Block(values.dtype.name, values.shape, data)
        known[name] = KeptSlot(name, direction, "probed", values.dtype.name, values.shape, strides, "cpu", len(data), digest, digest)
    return Kept(BoundaryKey(0, 1, phase, operator, "", "f", "x"), seq, args, stream, "", blocks, known, "0" * 64)


def digests(one: Kept) -> dict[str, int]:
    """What a trace would have of its slots."""
    return {name: int(slot.mix64, 16) for name, slot in one.known.items()}
