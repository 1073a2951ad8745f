"""Who owns which bytes: storages by serial number, what was last written where, what nobody has written yet.

A storage is known by the address of its C++ object. The address may be reused, so each record holds a *weak* C++
reference: the memory of the tensor is freed as always, only the small header waits until the record is polled and let go of.
No tensor is kept alive.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from opguard_core.engines.geometry import Geometry
from opguard_core.engines.kinds import is_plain
from opguard_core.probe.promise import Known
from opguard_core.trace.schema import LifetimeRow

_address_of = torch._C._storage_address

CARRIED_VIEWS = 64  # digests kept per storage before all are forgotten
MASK_LIMIT_BYTES = 1 << 28  # a bitmap of written elements is kept only below this
_ticks = itertools.count(1)  # of observed writes, over all storages


class Seen(NamedTuple):
    """What is known of a view's bytes.

    Attributes:
        version: Version counter of the tensor then; None for one that has none.
        digests: Of its logical bytes, or the promise of them.
        expected: The counter had not been raised yet, and some operators never do (torch's fused optimizers).
    """

    version: int | None
    digests: Known
    expected: bool = False

    def holds(self, version: int | None) -> bool:
        """Whether a counter that reads so has not moved since: it never goes back, so one below what was expected was not raised."""
        return self.version == version or (self.expected and version is not None and self.version == version + 1)


class Storage:
    """One storage of this rank.

    Attributes:
        serial: Never reused.
        address: Address of the C++ StorageImpl, weakly held.
        nbytes: Size when first seen (grows with ``resize_``).
        born_seq: Event that first showed it.
        name: "param:layer.weight", "grad:…", "buffer:…", "optim:…" or "".
        gaps: Byte ranges nobody has written, None when all is written.
        foreign: Bytes can change unseen (numpy, files, other processes share them): digests are never carried.
        gradient: A gradient, or computed from gradients outside the graph since the last update.
        written: What was seen written, or read since, by (offset, base of the geometry) since the last overlapping write.
        pending: The collective whose result will land here, not observed yet.
        tick: When it was last seen written, see `Storages.tick`; 0 for never.
    """

    __slots__ = (
        "address",
        "born_seq",
        "foreign",
        "gaps",
        "gradient",
        "mask",
        "name",
        "nbytes",
        "pending",
        "serial",
        "tick",
        "written",
    )

    def __init__(self, serial: int, address: int, nbytes: int, born_seq: int) -> None:
        self.serial, self.address, self.nbytes, self.born_seq = serial, address, nbytes, born_seq
        self.name = ""
        self.gaps: list[tuple[int, int]] | None = None
        self.mask: torch.Tensor | None = None
        self.foreign = False
        self.gradient = False
        self.written: dict[tuple[int, Geometry], Seen] = {}
        self.pending: Any = None
        self.tick = 0

    def __del__(self, free: Callable[[int], None] = torch.UntypedStorage._free_weak_ref) -> None:
        # Whoever still has this record may ask whether the storage lives, also after it was polled.
        free(self.address)

    def never_written(self) -> None:
        """Mark all bytes as not written yet."""
        self.gaps, self.mask = ([(0, self.nbytes)] if self.nbytes else None), None
        self.written.clear()

    def grew(self, nbytes: int) -> None:
        """Account for ``resize_``: the part beyond the old end is unwritten."""
        if nbytes > self.nbytes:
            self.gaps = [*(self.gaps or []), (self.nbytes, nbytes)]
        self.nbytes = nbytes
        self.mask = None
        self.written.clear()

    def is_written(self, offset: int, geometry: Geometry) -> bool:
        """Whether every byte of this view has been written."""
        if self.gaps is None or geometry.nbytes == 0:
            return True
        low, high = offset, offset + geometry.span
        if not any(start < high and low < end for start, end in self.gaps):
            return True
        if self.mask is None:
            return False
        return bool(self._elements(offset, geometry, self.mask).all())

    def carried(self, offset: int, geometry: Geometry, version: int | None) -> Known | None:
        """Digests of this view, or of one with the same logical bytes, if nobody is known to have written there since they were taken.

        Who cannot be known: native code that writes by an address that no Python asked for, and raises no counter. What is known of
        it ends with the window (`Storages.forget_older`).
        """
        seen = self.written.get((offset, geometry.base))
        return seen.digests if seen is not None and seen.holds(version) else None

    def saw(self, offset: int, geometry: Geometry, version: int | None, digests: Known, before: int) -> None:
        """Record what a view was read as, if nobody was seen writing here since ``before``, the tick when reading began.

        Nothing where so many are known already.
        """
        if self.tick == before and len(self.written) <= CARRIED_VIEWS:
            self.written[offset, geometry.base] = Seen(version, digests)

    def wrote(self, offset: int, geometry: Geometry, version: int | None, digests: Known | None, *, expected: bool = False) -> None:
        """Record one observed write of a view; ``digests`` None when its content was not read, ``expected`` as in `Seen`."""
        self.tick = next(_ticks)
        low, high = offset, offset + geometry.span
        known = self.written
        if known:
            if len(known) > CARRIED_VIEWS:
                known.clear()
            else:
                # Of a snapshot: threads that work on other parts of the same storage add to it and take from it meanwhile.
                for key in [k for k in tuple(known) if k[0] < high and low < k[0] + k[1].span]:
                    known.pop(key, None)
        if digests is not None:
            known[offset, geometry.base] = Seen(version, digests, expected)
        if self.gaps is not None:
            self._fill(offset, geometry)

    def _fill(self, offset: int, geometry: Geometry) -> None:
        low, high = offset, offset + geometry.span
        gaps = self.gaps or []
        if geometry.span == geometry.nbytes:
            left = []
            for start, end in gaps:
                if low <= start and end <= high:
                    continue
                if high <= start or end <= low:
                    left.append((start, end))
                    continue
                if start < low:
                    left.append((start, low))
                if high < end:
                    left.append((high, end))
            self.gaps = left or None
            if self.mask is not None and self.gaps is not None:
                self._elements(offset, geometry, self.mask).fill_(True)
        elif self.nbytes <= MASK_LIMIT_BYTES and offset % geometry.itemsize == 0:
            if self.mask is None or self.mask.numel() < self.nbytes:
                self.mask = torch.ones(self.nbytes, dtype=torch.bool)
                for start, end in gaps:
                    self.mask[start:end] = False
            self._elements(offset, geometry, self.mask).fill_(True)
            if bool(self.mask.all()):
                self.gaps = self.mask = None
        if self.gaps is None:
            self.mask = None

    @staticmethod
    def _elements(offset: int, geometry: Geometry, mask: torch.Tensor) -> torch.Tensor:
        size = geometry.itemsize
        return mask.as_strided((*geometry.sizes, size), (*[step * size for step in geometry.steps], 1), offset)


class Storages:
    """All storages this rank has met.

    Args:
        next_seq: Number the next event will get.
    """

    def __init__(self, next_seq: Callable[[], int]) -> None:
        self._seq_now = next_seq
        self._by_address: dict[int, Storage] = {}
        self._next_serial = 0
        self._looked_at = 0
        self.foreign_on_device = False  # whether the memory of any storage on a device is not torch's own
        self._lock = threading.RLock()  # a finaliser may run operators while we hold it

    def of(self, tensor: torch.Tensor, seq: int) -> Storage:
        """The record of a strided tensor's storage. Cost: about 0.3 us once known."""
        address = _address_of(tensor)
        record = self._by_address.get(address)
        return self._meet(tensor, address, seq) if record is None else record

    def _meet(self, tensor: torch.Tensor, address: int, seq: int) -> Storage:
        with self._lock:
            record = self._by_address.get(address)
            if record is None:
                storage = tensor.untyped_storage()
                record = Storage(self._next_serial, storage._weak_ref(), storage.nbytes(), seq)
                # Memory that is not torch's own, or that other processes map, can change without any operator.
                # (torch calls every CUDA storage shared; one that came from another process is not resizable.)
                record.foreign = not storage.resizable() or (storage.is_shared() and storage.device.type != "cuda")
                self.foreign_on_device |= record.foreign and storage.device.type != "cpu"
                self._next_serial += 1
                self._by_address[address] = record
        return record

    def tick(self) -> int:
        """A moment: storages with a higher ``tick`` have been seen written since."""
        return next(_ticks)

    @property
    def seq(self) -> int:
        """Number the next event will get: the birth of a storage first met between events."""
        return self._seq_now()

    def known(self, tensor: torch.Tensor) -> Storage | None:
        """As `of`, None for a storage never seen."""
        return self._by_address.get(_address_of(tensor))

    def resized(self, storage: torch.UntypedStorage) -> None:
        """A storage has another size, set on itself: what it grew by, from nothing all of it, is unwritten."""
        record = self._by_address.get(storage._cdata)
        if record is not None:
            record.grew(storage.nbytes())

    def __len__(self) -> int:
        return len(self._by_address)

    def poll(self, seq: int) -> Iterator[LifetimeRow]:
        """Forget freed storages and yield what is known of each.

        Cost: about 0.1 us a living storage.
        """
        expired = torch.UntypedStorage._expired
        self._looked_at = seq
        # A snapshot: another thread may meet a new storage while this one looks.
        for address, record in list(self._by_address.items()):
            # Several threads may poll: who takes the record out tells of it.
            if expired(address) and self._by_address.pop(address, None) is not None:
                yield LifetimeRow(record.serial, record.nbytes, record.born_seq, seq)

    def living(self) -> Iterator[Storage]:
        """Records that have not been found freed."""
        return iter(list(self._by_address.values()))

    def forget_written(self) -> None:
        """Memory may have been written unseen, and nobody says where: no digest from before is carried."""
        for record in self.living():
            record.written.clear()

    def forget_unseen(self, tensors: Iterable[torch.Tensor], since: int) -> None:
        """Carry nothing of those that nobody was seen writing since a tick, though they should have been. Tensors of any kind.

        Cost: about 1 us a tensor.
        """
        for tensor in tensors:
            record = self.known(tensor) if is_plain(tensor) else None
            if record is not None and record.tick < since:
                record.written.clear()

    def forget_older(self, since: int) -> None:
        """Carry nothing of what nobody was seen writing since a tick, but for gradients.

        Cost: about 0.1 us a living storage.
        """
        for record in self.living():
            if record.tick < since and not record.gradient:
                record.written.clear()

    def shared(self, storage: torch.UntypedStorage) -> None:
        """A storage is in memory that other processes can map, from now on."""
        record = self._by_address.get(storage._cdata)
        if record is not None:
            record.foreign = True

    def forget_gradients(self) -> None:
        """The update has used them up: no storage is a gradient any more."""
        for record in self.living():
            record.gradient = False

    def close(self) -> Iterator[LifetimeRow]:
        """Yield every storage not yet reported and let go of all weak references.

        What was alive at the last look counts as alive at the end: a model that lives in a function is freed when that
        function returns, just before exit. Only what came and went since that look is dead.
        """
        expired, now = torch.UntypedStorage._expired, self.seq
        for address, record in list(self._by_address.items()):
            gone = record.born_seq > self._looked_at and expired(address)
            self._by_address.pop(address, None)
            yield LifetimeRow(record.serial, record.nbytes, record.born_seq, now if gone else None)
