"""Puts the bytes of a kept file in place of one operator's results, as if the operator had computed them (or of what it reads).

Runs between the operator and everyone who reads its results: below autograd, which has not seen them yet, so what it saves for the
backward are the new bytes, and every version counter is what it would have been. All or nothing: everything is checked before the
first byte is written, and read back afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from opguard_core.engines.kinds import is_plain
from opguard_core.errors import TransplantFailed
from opguard_core.plan.keeping import ARGUMENTS, Transplant, slots_to_put
from opguard_core.probe.content import logical_bytes, overwrite, refusal
from opguard_core.trace.boundary import BoundaryKey
from opguard_core.trace.kept import Kept, read_kept


class Transplanter:
    """One transplant of one rank.

    Args:
        number: Which of the transplants of the run it is.
        asked: Where, and from which file.

    Raises:
        ConfigError: The kept file lacks a slot.
        TraceFormatError: The kept file is not intact.
    """

    def __init__(self, number: int, asked: Transplant) -> None:
        self.number = number
        self.key: BoundaryKey = asked.boundary
        self._kept: Kept = read_kept(asked.kept)
        self.slots: Mapping[str, str] = slots_to_put(asked, self._kept.slots)
        self.seq: int | None = None
        self._changed: list[str] = []

    @property
    def done(self) -> bool:
        """Whether the bytes are where they belong."""
        return self.seq is not None

    @property
    def wants_results(self) -> bool:
        """Whether a result or an argument written in place is replaced."""
        return not all(name.startswith(ARGUMENTS) for name in self.slots)

    def put(self, seq: int, tensors: Mapping[str, torch.Tensor], *, arguments: bool) -> bool:
        """Write all slots of one kind, or none.

        Args:
            seq: The event.
            tensors: By slot path: the arguments before the call, else results and arguments written in place.
            arguments: Which of the two they are.

        Returns:
            Whether there was anything to write.

        Raises:
            TransplantFailed: A slot is not there, of another dtype or shape, or not plain memory that can be written; or what was
                written does not read back.
        """
        wanted = {name: source for name, source in self.slots.items() if name.startswith(ARGUMENTS) is arguments}
        for name, source in wanted.items():
            self._check(name, source, tensors.get(name))
        before = {name: logical_bytes(tensors[name]) for name in wanted}
        for name, source in wanted.items():
            overwrite(tensors[name], self._kept.slots[source].data)
        # They may be views of each other: read back once everything is written.
        for name, source in wanted.items():
            if logical_bytes(tensors[name]) != self._kept.slots[source].data:
                raise TransplantFailed(f"{name} of {self.key.shown()} does not read back as written: another slot shares its memory.")
        self._changed += [name for name, source in wanted.items() if before[name] != self._kept.slots[source].data]
        if not arguments:
            self.seq = seq
        return bool(wanted)

    def _check(self, name: str, source: str, tensor: torch.Tensor | None) -> None:
        block, what = self._kept.slots[source], f"{name} of {self.key.shown()}"
        if tensor is None:
            raise TransplantFailed(f"{what} is not a tensor that this call has.")
        if not is_plain(tensor):
            raise TransplantFailed(f"{what} is not plain memory.")
        dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        if (dtype, shape) != (block.dtype, block.shape):
            raise TransplantFailed(f"{what} is {dtype} {list(shape)}; the kept bytes are {block.dtype} {list(block.shape)}.")
        if len(block.data) != tensor.numel() * tensor.itemsize:
            raise TransplantFailed(f"{what} has {tensor.numel() * tensor.itemsize} bytes; {len(block.data)} were kept.")
        problem = refusal(tensor)
        if problem:
            raise TransplantFailed(f"{what} cannot be written: {problem}.")

    def report(self) -> dict[str, Any]:
        """What goes into the rank's manifest."""
        reason = "" if self.done else "the boundary did not occur"
        return {
            "done": self.done,
            "seq": self.seq,
            "reason": reason,
            "slots": dict(self.slots),
            "changed": self._changed,
            "kept": self._kept.seal,
            "boundary": self.key.as_dict(),
        }
