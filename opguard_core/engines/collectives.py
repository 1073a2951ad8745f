"""Collectives: their results exist only after a wait that may happen in C++, so they are looked at by the first consumer.

Never blocks: a result that nobody reads is recorded by shape.
"""

from __future__ import annotations

import torch

from opguard_core.engines.coverage import Coverage
from opguard_core.engines.geometry import Geometry
from opguard_core.engines.kinds import is_plain
from opguard_core.engines.outbox import Entry, Outbox
from opguard_core.engines.storages import Storage, Storages
from opguard_core.fingerprint.digest import Digests
from opguard_core.ids import Status
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

    def defer(self, entry: Entry, event: EventRow, slots: list[SlotRow], places: list[tuple[int, Storage, Geometry, int]]) -> None:
        """Hold an event back until one of its results is read."""
        pending = Pending(entry, event, slots, places)
        for _, record, _, _ in places:
            record.pending = pending
        entry.unblock = lambda: self._release(pending)

    def consume(self, record: Storage) -> None:
        """Look at the results of the collective that wrote ``record``: someone is about to read one, so they are there."""
        pending = record.pending
        if pending is None:
            return
        # One storage may hold several results (views of a flat buffer); one that another collective took over is left out.
        ready = [item for item in pending.places if item[1].pending is pending]
        for _, place, _, _ in ready:
            place.pending = None
        for row, place, geometry, offset in ready:
            digests = _read(place, geometry, offset)
            if digests is None or isinstance(digests, Unreadable):
                continue
            place.wrote(offset, geometry, None, None)
            pending.slots[row] = pending.slots[row]._replace(
                status=Status.PROBED.value,
                mix64=digests.mix64,
                value64=digests.value64,
                bag64=digests.bag64,
                xor32=digests.xor32,
                trivial=digests.trivial,
            )
        pending.entry.unblock = None
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
        pending.entry.unblock = None
        self._outbox.close(pending.entry, pending.event, pending.slots)


def _read(record: Storage, geometry: Geometry, offset: int) -> Digests | Unreadable | None:
    """Fingerprint bytes by storage, without the tensor that showed them; None if they are gone."""
    if torch.UntypedStorage._expired(record.address):
        return None
    storage = torch.UntypedStorage._new_with_weak_ptr(record.address)
    if storage is None:
        return None
    view = torch.empty(0, dtype=geometry.kind, device=storage.device)
    view.set_(storage, offset // geometry.itemsize, geometry.sizes, geometry.steps)
    return fingerprint(view)
