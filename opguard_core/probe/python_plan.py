"""Views to the parameter of one launch, in Python, for machines without a compiler.

A valid plan, not the one of ``cuda/plan.h``: eight views a launch, and what does not lie densely is gathered, never turned in tiles.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from opguard_core.fingerprint.layout import merge_dimensions

MOST_VIEWS, _POOL = 8, 25  # OG_FEW_SEGMENTS and OG_FEW_POOL of probe_api.h
THREADS = 256
_BLOCKS_PER_SM, _DENSE_BLOCK_BYTES, _GATHER_BLOCK_BYTES = 4, 16384, 4096
_DENSE, _GATHER = 0, 1
_MASK64 = (1 << 64) - 1
_VIEW = struct.Struct("<Qq4i2Q24q24q")
VIEW_BYTES = _VIEW.size
_HEADER = struct.Struct("<5Q6I")
_SEGMENT = struct.Struct("<3Q2I4BH2B")
_DIM, _FLIP = struct.Struct("<qQQ"), struct.Struct("<QQQ")


class Planned(NamedTuple):
    """One launch: ``body`` is the parameter behind its header."""

    num_views: int
    grid: int
    flipped: int
    body: bytes

    def parameter(self, ring: int, entries: int, scratch: int, occurrence: int, ticket: int, capacity: int) -> bytes:
        """The kernel's one parameter, an ``og_launch_few``."""
        header = _HEADER.pack(ring, entries, scratch, occurrence, ticket, capacity, self.num_views, self.grid, self.flipped, 0, 0)
        return header + self.body


class _Form(NamedTuple):
    numel: int
    widening: int
    item_bytes: int
    dims: tuple[bytes, ...]
    num_dims: int
    flips: bool

    @property
    def path(self) -> int:
        return _GATHER if self.dims else _DENSE


def plan(views: Sequence[tuple[int, bytes]], num_sms: int) -> Planned:
    """The next launch for the front of ``views``.

    Args:
        views: (address, ``og_view`` whose own address is not looked at).
        num_sms: Multiprocessors of the device.
    """
    forms: list[_Form] = []
    num_dims = 0
    for _, view in views[:MOST_VIEWS]:
        form = _form(view)
        if num_dims + len(form.dims) > _POOL:
            break
        num_dims += len(form.dims)
        forms.append(form)
    pieces = [-(-form.numel * form.item_bytes // (_GATHER_BLOCK_BYTES if form.dims else _DENSE_BLOCK_BYTES)) for form in forms]
    total, segments, pool = sum(pieces), b"", b""
    wanted, flipped = min(total, num_sms * _BLOCKS_PER_SM), 0
    grid = int(len(forms) > 1 or wanted > 1)  # block 0 claims the records, unless there is no other
    for place, (form, share) in enumerate(zip(forms, pieces, strict=True)):
        blocks = max(-(-share * wanted // total), 1) if total else 1
        first_dim = len(pool) // _DIM.size + form.flips
        how = form.widening, form.item_bytes, form.path, form.num_dims
        segments += _SEGMENT.pack(views[place][0], form.numel, 0, grid, blocks, *how, first_dim, 0, place)
        pool += b"".join(form.dims)
        grid += blocks
        flipped |= form.flips << place
    return Planned(len(forms), grid, flipped, segments.ljust(MOST_VIEWS * _SEGMENT.size, b"\0") + pool.ljust(_POOL * _DIM.size, b"\0"))


@lru_cache(maxsize=8192)
def _form(view: bytes) -> _Form:
    _, numel, widening, item_bytes, _, num_dims, flip0, flip1, *rest = _VIEW.unpack(view)
    if not numel:
        return _Form(0, widening, item_bytes, (), 0, False)
    sizes, strides = merge_dimensions(tuple(rest[:num_dims]), tuple(rest[24 : 24 + num_dims]))
    flips = (flip0 | flip1) != 0
    if not flips and (not sizes or (len(sizes) == 1 and strides[0] == item_bytes)):
        return _Form(numel, widening, item_bytes, (), 0, False)
    dims = [_DIM.pack(stride, size, (_MASK64 // size + 1) & _MASK64) for size, stride in zip(sizes, strides, strict=True)]
    return _Form(numel, widening, item_bytes, (_FLIP.pack(flip0, flip1, 0), *dims) if flips else tuple(dims), len(dims), flips)
