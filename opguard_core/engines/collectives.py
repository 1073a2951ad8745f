"""Collectives: their results exist only after a wait that may happen in C++, so they are looked at by the first consumer.

Never blocks: a result that nobody reads is recorded by shape.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from opguard_core.engines.coverage import Coverage
from opguard_core.engines.deferred import words_of
from opguard_core.engines.geometry import Geometry
from opguard_core.engines.kinds import is_plain
from opguard_core.engines.outbox import Entry, Outbox
from opguard_core.engines.storages import Storage, Storages
from opguard_core.ids import Status
from opguard_core.probe.promise import submit_asked
from opguard_core.probe.tensor import Unreadable, fingerprint
from opguard_core.trace.schema import EventRow, SlotRow


class Pending:
    """One collective whose results nobody has looked at yet."""

    __slots__ = ("entry", "event", "places", "slots")

    def __init__(self, entry: Entry, event: EventRow, slots: list[SlotRow], places: list[tuple[int, Storage, Geometry, int]]) -> None:
        self.entry, self.event, self.slots = entry, event, slots
        # (row in slots, storage, geometry, byte offset) of each result.
        self.places = places


class Collectives:
    """Results that are on their way."""

    def __init__(self, outbox: Outbox, coverage: Coverage) -> None:
        self._outbox, self._coverage = outbox, coverage
        self.keeper: Any = None  # keeps results that are read for the first time; set by the session
        self.set_boundary: Callable[[int], int] | None = None  # of the launch shim, while it records
        self._newest = threading.local()

    def began(self, seq: int) -> None:
        """A collective's own call begins on this thread; asked only while device work is recorded."""
        self._newest.seq = seq

    def watch_groups(self, patches: Any) -> None:
        """Give the device work of coalesced collectives, which is submitted when their group ends, to the last one of the group.

        Nothing of the dispatcher is running by then, so no operator is in flight. The other end, that of one operator for a whole list,
        is an operator itself.
        """
        c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
        if c10d is not None and hasattr(c10d.ProcessGroup, "_end_coalescing"):
            patches.add(c10d.ProcessGroup, "_end_coalescing", self._enter_end, self._leave_end)

    def _enter_end(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        seq = getattr(self._newest, "seq", None)
        return None if seq is None or self.set_boundary is None else self.set_boundary(seq)

    def _leave_end(self, before: int | None, returned: bool) -> None:
        if before is not None and self.set_boundary is not None:
            self.set_boundary(before)

    def defer(self, entry: Entry, event: EventRow, slots: list[SlotRow], places: list[tuple[int, Storage, Geometry, int]]) -> None:
        """Hold an event back until one of its results is read."""
        pending = Pending(entry, event, slots, places)
        for _, record, _, _ in places:
            record.pending = pending
        entry.unblock = lambda: self._release(pending)

    def consume(self, record: Storage, read: bool = True) -> None:
        """Look at the results of the collective that wrote ``record``: someone is about to read one, so they are there.

        Args:
            record: Of the storage.
            read: False if it is about to be overwritten: nobody reads the results then, and they need not be there.
        """
        pending = record.pending
        if pending is None:
            return
        if not read:
            self._release(pending)
            return
        # One storage may hold several results (views of a flat buffer); one that another collective took over is left out.
        ready = [item for item in pending.places if item[1].pending is pending]
        for _, place, _, _ in ready:
            place.pending = None
        for row, place, geometry, offset in ready:
            view = _view(place, geometry, offset)
            digests = None if view is None else fingerprint(view)
            if digests is None or isinstance(digests, Unreadable):
                continue
            place.wrote(offset, geometry, None, None)
            words = dict(zip(("mix64", "value64", "bag64", "xor32", "trivial"), words_of(digests), strict=True))
            pending.slots[row] = pending.slots[row]._replace(status=Status.PROBED.value, **words)
            if self.keeper is not None:
                self.keeper.arrived(pending.entry.seq, pending.slots[row], view)
        if self.keeper is not None:
            self.keeper.close(pending.entry.seq)
        pending.entry.unblock = None
        submit_asked()
        self._outbox.close(pending.entry, pending.event, pending.slots)

    def consume_tensor(self, storages: Storages, tensor: torch.Tensor) -> None:
        """As `consume`, for a tensor that has just been waited for."""
        if is_plain(tensor):
            record = storages.known(tensor)
            if record is not None:
                self.consume(record)

    def _release(self, pending: Pending) -> None:
        for _, record, _, _ in pending.places:
            if record.pending is pending:
                record.pending = None
        self._coverage.count("collective_results_never_read")
        if self.keeper is not None:
            self.keeper.close(pending.entry.seq)
        pending.entry.unblock = None
        self._outbox.close(pending.entry, pending.event, pending.slots)


def _view(record: Storage, geometry: Geometry, offset: int) -> torch.Tensor | None:
    """Bytes by storage, without the tensor that showed them; None if they are gone."""
    if torch.UntypedStorage._expired(record.address):
        return None
    storage = torch.UntypedStorage._new_with_weak_ptr(record.address)
    if storage is None:
        return None
    view = torch.empty(0, dtype=geometry.kind, device=storage.device)
    view.set_(storage, offset // geometry.itemsize, geometry.sizes, geometry.steps)
    return view
