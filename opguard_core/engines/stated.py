"""Slots of a call outside the dispatcher that says what it makes and changes: each is told, also where the bytes are what they were.

C++ does the same for most launches of generated kernels (``observer/launches.h``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from opguard_core.engines.kinds import is_plain
from opguard_core.ids import Direction, Status

if TYPE_CHECKING:
    from opguard_core.engines.outside_rows import Open, Tensors
    from opguard_core.engines.rank import RankContext


class _Views:
    """Views that have been told; tensors that are no plain memory are always told."""

    def __init__(self, context: RankContext) -> None:
        self._context = context
        self._told: set[tuple[object, ...]] = set()

    def add(self, tensor: torch.Tensor) -> bool:
        """Whether a view had not been told; it is now."""
        if not is_plain(tensor):
            return True
        geometry, offset, record = self._context.probes.locate(tensor, self._context.outbox.next_seq)
        view = (record.serial, offset, geometry.dtype, geometry.shape, geometry.strides)
        if view in self._told:
            return False
        self._told.add(view)
        return True

    def forget_beside(self, tensor: torch.Tensor) -> None:
        """It may have been written beside the view that was given: carry nothing there."""
        if is_plain(tensor):
            geometry, _, record = self._context.probes.locate(tensor, self._context.outbox.next_seq)
            if geometry.span < record.nbytes:
                record.written.clear()


def left_as_stated(context: RankContext, call: Open, results: Tensors, written: Tensors) -> None:
    """Add the slots of what a call made and changed.

    Args:
        context: The rank.
        call: From before it ran.
        results: With paths "out.0".
        written: With paths "mut.0".

    Cost: the fingerprints; in mode verify those of all that it read, too.
    """
    seq, views = context.outbox.next_seq, _Views(context)
    for path, tensor in written:
        if views.add(tensor):
            views.forget_beside(tensor)
            context.probes.mutated(call.rows, seq, path, tensor, declared=False)
            call.made.append(tensor)
    if context.verify:
        _look_again(context, call, seq, views)
    for path, tensor in results:
        if views.add(tensor):
            context.probes.output(call.rows, seq, path, tensor)
            call.made.append(tensor)


def _look_again(context: RankContext, call: Open, seq: int, views: _Views) -> None:
    """What it says it leaves alone."""
    before = {row.slot: row for row in call.rows if row.direction == Direction.IN.value and row.status == Status.PROBED.value}
    for path, tensor in call.tensors:
        row = before.get(path)
        if row is not None and views.add(tensor) and context.look_again(call.rows, seq, row, path, tensor):
            call.made.append(tensor)
