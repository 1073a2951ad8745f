"""Keeps single boundaries in full: what they read before the call, what they returned and wrote after it.

Bytes are copied where the probe looks, on the thread and stream of the operator, and written when the boundary is complete. For a tensor on
a device that waits for the operator: only here, for the few boundaries that a run was asked to keep. Nothing here
is the program's business: a slot that cannot be kept has a reason instead of bytes, and a file that cannot be written is a gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from opguard_core.engines.coverage import Coverage
from opguard_core.engines.deferred import settled
from opguard_core.fingerprint.cpu import digests_of_bytes
from opguard_core.ids import Direction, Status
from opguard_core.plan.keeping import Keep, kept_file
from opguard_core.probe.content import logical_bytes
from opguard_core.probe.tensor import Unreadable
from opguard_core.trace.boundary import BoundaryKey
from opguard_core.trace.kept import Block, Kept, KeptSlot, write_kept
from opguard_core.trace.schema import SlotRow

if TYPE_CHECKING:
    from opguard_core.engines.calls import Call

RNG_SLOT = "rng"
_DETAIL = 300  # characters of a reason
_KNOWN = (Status.PROBED.value, Status.CARRIED.value)
_WHY = {
    Status.UNINITIALISED.value: "memory that nobody has written",
    Status.METADATA.value: "the operator does not read it, or its mode does not look",
    Status.UNREADABLE.value: "a kind of tensor that cannot be read",
}
_NOT_READ = "nobody read the result of the collective, so it may not be there yet"


class _Open:
    """One boundary that is being kept."""

    __slots__ = ("index", "key", "known", "notes", "slots")

    def __init__(self, index: int, key: BoundaryKey) -> None:
        self.index, self.key = index, key
        self.known: dict[str, KeptSlot] = {}
        self.slots: dict[str, Block] = {}
        self.notes: dict[str, str] = {}


class Keeper:
    """Keeps what one rank was asked for.

    Args:
        keep: The request; boundaries of other ranks are not looked for.
        rank: Global rank.
        folder: Folder of the rank's trace.
        coverage: Told of files that could not be written.
    """

    def __init__(self, keep: Keep, rank: int, folder: Path, coverage: Coverage) -> None:
        self.keys = [key for key in keep.boundaries if key.rank == rank]
        self._indexes = {(key.place, key.occurrence): index for index, key in enumerate(keep.boundaries) if key.rank == rank}
        self._all = keep.boundaries
        self._left = self._limit = keep.limit_bytes
        self._folder, self._coverage = folder, coverage
        self._open: dict[int, _Open] = {}
        self._texts: dict[int, tuple[str, str, int | None]] = {}
        self._files: dict[int, dict[str, Any]] = {}

    def begins(self, call: Call, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Keep what an operator is about to read, if it is one of ours."""
        index = self._indexes.get(call.closeup)
        if index is None:
            return
        kept = self._open[call.entry.seq] = _Open(index, self._all[index])
        self._take(kept, call.slots, dict(tensors))
        if call.generator is not None:
            state, seen = call.generator.get_state(), "" if call.rng_before is None else _word(call.rng_before)
            row = KeptSlot(RNG_SLOT, "", "", "uint8", (state.numel(),), (1,), str(call.generator.device), state.numel(), seen)
            self._content(kept, row, state)

    def renumber(self, before: int, seq: int | None) -> None:
        """A boundary that had begun without a number has got one, or turned out to be none."""
        kept = self._open.pop(before, None)
        if kept is not None and seq is not None:
            self._open[seq] = kept

    def ended(self, call: Call, tensors: Iterator[tuple[str, torch.Tensor]], *, later: bool, transplanted: Mapping[str, str]) -> None:
        """Keep what an operator returned and wrote."""
        kept = self._open.get(call.entry.seq)
        if kept is None:
            return
        self._take(kept, call.slots, dict(tensors), later=later)
        if not call.rng_stream:
            kept.known.pop(RNG_SLOT, None)
            self._left += len(dropped.data) if (dropped := kept.slots.pop(RNG_SLOT, None)) is not None else 0
        if transplanted:
            kept.notes["transplanted"] = ",".join(sorted(transplanted))
        self._texts[call.entry.seq] = (call.args_text, call.rng_stream, call.rng_before)
        if not later:
            self.close(call.entry.seq)

    def give_up(self, call: Call, why: str) -> None:
        """We failed in the middle of it: no file, and a gap that says so."""
        kept = self._open.pop(call.entry.seq, None)
        if kept is not None:
            self._no_file(kept.index, call.entry.seq, why)

    def failed(self, call: Call, why: str) -> None:
        """The operator raised, or could not be observed: what it read is kept all the same."""
        kept = self._open.get(call.entry.seq)
        if kept is None:
            return
        kept.notes["raised"] = why
        self._texts[call.entry.seq] = (call.args_text, call.rng_stream, call.rng_before)
        self.close(call.entry.seq)

    def arrived(self, seq: int, row: SlotRow, tensor: torch.Tensor) -> None:
        """The result of a collective is about to be read for the first time: keep it."""
        kept = self._open.get(seq)
        if kept is None:
            return
        for ready in settled([row]):
            try:
                self._content(kept, _slot(ready), tensor)
            except Exception as error:  # noqa: BLE001  the step guard: the collective's own event must still be completed
                self._reason(kept, _slot(ready), f"{type(error).__name__}: {error}")

    def _take(self, kept: _Open, rows: list[SlotRow], tensors: Mapping[str, torch.Tensor], *, later: bool = False) -> None:
        for row in settled([row for row in rows if row.slot not in kept.known]):
            slot = _slot(row)
            tensor = tensors.get(row.slot)
            if later and row.direction != Direction.IN.value:
                self._reason(kept, slot, _NOT_READ)
            elif row.status not in _KNOWN:
                self._reason(kept, slot, _WHY.get(row.status, row.status))
            elif tensor is None:
                self._reason(kept, slot, "a copy made for the probe only")
            else:
                self._content(kept, slot, tensor)

    def _content(self, kept: _Open, slot: KeptSlot, tensor: torch.Tensor) -> None:
        """Copy the bytes of one slot, if there is room."""
        nbytes = tensor.numel() * tensor.itemsize
        if nbytes > self._left:
            self._reason(kept, slot, f"{nbytes} bytes do not fit into what is left of {self._limit}")
            return
        data = logical_bytes(tensor)
        if isinstance(data, Unreadable):
            self._reason(kept, slot, data.reason)
            return
        self._left -= len(data)
        kept.slots[slot.name] = Block(slot.dtype, slot.shape, data)
        kept.known[slot.name] = KeptSlot(**{**slot.__dict__, "kept_mix64": _word(digests_of_bytes(data).mix64), "nbytes": len(data)})

    def _reason(self, kept: _Open, slot: KeptSlot, why: str) -> None:
        kept.known[slot.name] = KeptSlot(**{**slot.__dict__, "reason": why})

    def close(self, seq: int) -> None:
        """The boundary is complete: write it. A boundary that is not ours is passed over."""
        kept = self._open.pop(seq, None)
        if kept is None:
            return
        args, stream, before = self._texts.pop(seq, ("", "", None))
        digest = "" if before is None else _word(before)
        boundary = Kept(kept.key, seq, args, stream, digest, kept.slots, kept.known, notes=kept.notes)
        try:
            seal = write_kept(self._folder / kept_file(kept.index), boundary)
        except (OSError, ValueError) as error:
            self._no_file(kept.index, seq, f"{type(error).__name__}: {error}")
            return
        self._files[kept.index] = {"seq": seq, "seal": seal, "left_out": sorted(boundary.left_out)}

    def _no_file(self, index: int, seq: int, why: str) -> None:
        self._coverage.gap("kept-file", f"{kept_file(index)} cannot be written: {why}"[:_DETAIL], touches_state=False, seq=seq)
        self._files[index] = {"seq": seq, "reason": why[:_DETAIL]}

    def finish(self) -> dict[str, Any]:
        """Write what is still open, and say what came of every boundary of this rank, by file name."""
        for seq in list(self._open):
            self.close(seq)
        missing = {"reason": "the boundary did not occur"}
        return {kept_file(index): self._files.get(index, missing) for index in sorted(self._indexes.values())}


def _slot(row: SlotRow) -> KeptSlot:
    shape, strides = _numbers(row.shape), _numbers(row.strides)
    seen = _word(row.mix64) if row.status in _KNOWN else ""
    itemsize = row.nbytes // max(1, _product(shape))
    shift = row.extent_lo // itemsize if itemsize else 0
    return KeptSlot(row.slot, row.direction, row.status, row.dtype, shape, strides, row.device, row.nbytes, seen, shift=shift)


def _numbers(text: str) -> tuple[int, ...]:
    """A shape or strides as a slot row has them; a ragged or symbolic one is none."""
    try:
        return tuple(int(number) for number in text.split(",")) if text else ()
    except ValueError:
        return ()


def _product(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _word(number: int) -> str:
    return f"{number:016x}"
