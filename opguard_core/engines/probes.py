"""Slots: one row for every tensor an operator reads, returns or writes.

Decides for each what is known of its bytes (probed here, carried from the write that made them, never written, unreadable)
and takes awkward kinds of tensor apart into readable ones.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from opguard_core.engines.coverage import Coverage
from opguard_core.engines.deferred import words_of
from opguard_core.engines.geometry import Geometries, Geometry
from opguard_core.engines.kinds import Part, is_plain, parts_of
from opguard_core.engines.storages import Storage, Storages
from opguard_core.fingerprint.digest import Digests
from opguard_core.ids import Direction, Status
from opguard_core.probe.promise import TOGETHER, Difference, Known
from opguard_core.probe.tensor import Unreadable, fingerprint
from opguard_core.trace.schema import SlotRow

_IN, _OUT, _MUT = Direction.IN.value, Direction.OUT.value, Direction.MUT.value
_PROBED, _CARRIED = Status.PROBED.value, Status.CARRIED.value
_UNINITIALISED, _METADATA, _UNREADABLE = Status.UNINITIALISED.value, Status.METADATA.value, Status.UNREADABLE.value
_NOTHING = Digests(0, 0, 0, 0, False, 0)


class Probes:
    """Makes slot rows.

    Args:
        storages: Shared bookkeeping of the rank.
        coverage: Where unreadable tensors are counted.
        carry: Whether an input may take over the digests of the write that produced it.
        consume: Called with a storage whose collective result is about to be looked at for the first time, and whether it is read:
            what is only overwritten may not be there yet (gloo writes some results itself, in the wait for them).
    """

    def __init__(self, storages: Storages, coverage: Coverage, *, carry: bool, consume: Callable[[Storage, bool], None]) -> None:
        self._storages, self._coverage, self._carry, self._consume = storages, coverage, carry, consume
        self._geometries = Geometries()
        self._devices: dict[Any, str] = {}

    def device(self, tensor: torch.Tensor) -> str:
        """Text of a tensor's device."""
        if tensor.is_cpu:
            return "cpu"
        device = tensor.device
        known = self._devices.get(device)
        if known is None:
            known = self._devices[device] = str(device)
        return known

    def input(
        self,
        rows: list[SlotRow],
        seq: int,
        path: str,
        tensor: torch.Tensor,
        *,
        reads: bool = True,
        consume: bool = True,
        carried: bool = False,
    ) -> None:
        """Add the slot of a tensor about to be read.

        Args:
            rows: Slots of the event so far.
            seq: The event.
            path: "in.0".
            tensor: Any tensor; not kept.
            reads: False if only its shape matters to the operator.
            consume: False if a result that is on its way may not be there yet (the operator is the wait for it, or reads it in the
                order of a device's stream): then it is recorded by shape.
            carried: Without ``reads``: take over what is known from the write that made it (the mode trusts the operator).

        Cost: about 4 us and the fingerprint.
        """
        if not is_plain(tensor):
            self._apart(rows, seq, path, tensor, _IN, reads)
            return
        geometry, offset, record = self.locate(tensor, seq)
        if record.pending is not None:
            if consume:
                self._consume(record, reads or carried)
            else:
                reads = carried = False
        version = version_of(tensor)
        status: str = _METADATA
        digests: Known = _NOTHING
        if reads:
            status, digests = self._content(tensor, record, offset, geometry, version, seq)
        elif carried and not record.foreign and as_stored(tensor):
            known = record.carried(offset, geometry, version)
            if known is not None:
                status, digests = _CARRIED, known
        rows.append(self._row(seq, path, _IN, status, geometry, self.device(tensor), record, offset, version, digests))

    def _content(
        self, tensor: torch.Tensor, record: Storage, offset: int, geometry: Geometry, version: int | None, seq: int
    ) -> tuple[str, Known]:
        if record.gaps is not None and not record.is_written(offset, geometry):
            return _UNINITIALISED, _NOTHING
        if not self._carry or record.foreign or not as_stored(tensor):
            return self._probe(tensor, record, seq)
        known = record.carried(offset, geometry, version)
        if known is not None:
            return _CARRIED, known
        before = record.tick
        status, digests = self._probe(tensor, record, seq)
        if status is _PROBED:
            record.saw(offset, geometry, version, digests, before)
        return status, digests

    def _probe(self, tensor: torch.Tensor, record: Storage | None, seq: int) -> tuple[str, Known]:
        digests = fingerprint(tensor)
        if isinstance(digests, Unreadable):
            self._coverage.gap("unreadable-tensor", digests.reason, touches_state=record is None or bool(record.name), seq=seq)
            return _UNREADABLE, _NOTHING
        return _PROBED, digests

    def output(self, rows: list[SlotRow], seq: int, path: str, tensor: torch.Tensor, *, written: bool = True, reads: bool = True) -> None:
        """Add the slot of a returned tensor.

        Args:
            rows: Slots of the event so far.
            seq: The event.
            path: "out.0".
            tensor: Any tensor; not kept.
            written: False if the operator left its bytes undefined.
            reads: False if the mode does not look at this operator's content.
        """
        if not is_plain(tensor):
            self._apart(rows, seq, path, tensor, _OUT, written and reads)
            return
        geometry, offset, record = self.locate(tensor, seq)
        version = version_of(tensor)
        if not written:
            if record.born_seq == seq:  # else the memory of an argument, of which others know better what is written
                record.never_written()
            rows.append(self._row(seq, path, _OUT, _UNINITIALISED, geometry, self.device(tensor), record, offset, version, _NOTHING))
            return
        self._written(rows, seq, path, tensor, _OUT, (geometry, offset, record), version, reads)

    def mutated(self, rows: list[SlotRow], seq: int, path: str, tensor: torch.Tensor, *, declared: bool = True, reads: bool = True) -> None:
        """Add the slot of an argument the operator wrote in place.

        Args:
            rows: Slots of the event so far.
            seq: The event.
            path: "mut.0".
            tensor: Any tensor; not kept.
            declared: Whether autograd will bump its version counter once this call has returned.
            reads: False if the mode does not look at this operator's content.
        """
        if not is_plain(tensor):
            self._apart(rows, seq, path, tensor, _MUT, reads)
            return
        place = self.locate(tensor, seq)
        version = version_of(tensor)
        expected = declared and version is not None
        if version is not None and expected:
            version += 1
        self._written(rows, seq, path, tensor, _MUT, place, version, reads, expected=expected)

    def _written(
        self,
        rows: list[SlotRow],
        seq: int,
        path: str,
        tensor: torch.Tensor,
        direction: str,
        place: tuple[Geometry, int, Storage],
        version: int | None,
        reads: bool,
        *,
        expected: bool = False,
    ) -> None:
        geometry, offset, record = place
        status, digests = self._probe(tensor, record, seq) if reads else (_METADATA, _NOTHING)
        known = digests if status is _PROBED and as_stored(tensor) else None
        record.wrote(offset, geometry, version, known, expected=expected)
        rows.append(self._row(seq, path, direction, status, geometry, self.device(tensor), record, offset, version, digests))

    def perhaps_mutated(self, rows: list[SlotRow], seq: int, path: str, tensor: torch.Tensor, difference: Difference) -> None:
        """As `mutated` for an argument that was not declared, if its digests turn out to differ; else the slot disappears."""
        geometry, offset, record = self.locate(tensor, seq)
        version = version_of(tensor)
        rows.append(self._row(seq, path, _MUT, _PROBED, geometry, self.device(tensor), record, offset, version, difference))

    def later(self, rows: list[SlotRow], seq: int, path: str, tensor: torch.Tensor, direction: str) -> tuple[Storage, Geometry, int] | None:
        """Add the slot of a tensor whose content is not there yet; returns where it will be, None if it cannot be found again."""
        if not is_plain(tensor):
            self._apart(rows, seq, path, tensor, direction, reads=False)
            return None
        geometry, offset, record = self.locate(tensor, seq)
        version = version_of(tensor)
        record.wrote(offset, geometry, None, None)
        rows.append(self._row(seq, path, direction, _METADATA, geometry, self.device(tensor), record, offset, version, _NOTHING))
        return record, geometry, offset

    def state(self, rows: list[SlotRow], seq: int, path: str, tensor: torch.Tensor) -> None:
        """Add a slot of the state boundary; its path is a name such as "param:layer.weight"."""
        self.input(rows, seq, path, tensor)

    def together(self) -> AbstractContextManager[None]:
        """For many tensors between operators: what is asked in here may be digested in fewer launches."""
        return TOGETHER

    def locate(self, tensor: torch.Tensor, seq: int) -> tuple[Geometry, int, Storage]:
        """Geometry, byte offset and storage of a plain tensor."""
        geometry = self._geometries.of(tensor)
        return geometry, tensor.storage_offset() * geometry.itemsize, self._storages.of(tensor, seq)

    def _row(
        self,
        seq: int,
        path: str,
        direction: str,
        status: str,
        geometry: Geometry,
        device: str,
        record: Storage | None,
        offset: int,
        version: int | None,
        digests: Known,
    ) -> SlotRow:
        return SlotRow(
            seq,
            path,
            direction,
            status,
            geometry.dtype,
            geometry.shape,
            geometry.strides,
            device,
            None if record is None else record.serial,
            offset,
            offset + geometry.span,
            version,
            geometry.nbytes,
            *words_of(digests),
            "" if record is None else record.name,
        )

    def _apart(self, rows: list[SlotRow], seq: int, path: str, tensor: torch.Tensor, direction: str, reads: bool) -> None:
        """Add slots for a tensor that is not plain memory: its readable parts, or one that says why there are none."""
        parts = parts_of(tensor)
        if isinstance(parts, Unreadable):
            if reads:
                self._coverage.gap("unreadable-tensor", parts.reason, touches_state=True, seq=seq)
            rows.append(self._bare(seq, path, direction, _UNREADABLE if reads else _METADATA, tensor))
            return
        if not parts:
            rows.append(self._bare(seq, path, direction, _METADATA, tensor))
        for part in parts:
            self._part(rows, seq, f"{path}.{part.name}" if part.name else path, part, direction, reads)

    def _part(self, rows: list[SlotRow], seq: int, path: str, part: Part, direction: str, reads: bool) -> None:
        tensor = part.tensor
        if not is_plain(tensor):
            self._apart(rows, seq, path, tensor, direction, reads)
            return
        if part.copied:
            # Made for us just now: it has no storage of the program's.
            status, digests = self._probe(tensor, None, seq) if reads else (_METADATA, _NOTHING)
            geometry = self._geometries.of(tensor)
            rows.append(self._row(seq, path, direction, status, geometry, self.device(tensor), None, 0, None, digests))
        elif direction == _IN:
            self.input(rows, seq, path, tensor, reads=reads)
        elif direction == _OUT:
            self.output(rows, seq, path, tensor, reads=reads)
        else:
            self.mutated(rows, seq, path, tensor, reads=reads, declared=False)

    def _bare(self, seq: int, path: str, direction: str, status: str, tensor: torch.Tensor) -> SlotRow:
        dtype = str(tensor.dtype).removeprefix("torch.")
        try:
            shape = ",".join([str(int(size)) for size in tensor.shape])
        except (RuntimeError, TypeError):
            shape = "?"  # ragged (a nested tensor has no one shape) or symbolic
        return SlotRow(seq, path, direction, status, dtype, shape, "", self.device(tensor), None, 0, 0, None, 0, 0, 0, 0, 0, False, "")


def as_stored(tensor: torch.Tensor) -> bool:
    """Whether its logical bytes are those in memory: a lazy conjugate or negative view shares its geometry with what it shows."""
    return not (tensor.is_conj() or tensor.is_neg())


def version_of(tensor: torch.Tensor) -> int | None:
    """Version counter, None for tensors made in inference mode, which have none."""
    try:
        return tensor._version
    except RuntimeError:
        return None
