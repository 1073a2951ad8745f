"""The state boundary of mode ``sentinel``: one digest for all parameters, one for all gradients, and so on.

Each digest is a sum over the tensors of a kind, so neither their order nor their names matter: code that was rewritten has
the same one, and a trace grows by some rows a step, however large the model is.

Cannot see: which tensor differs; that two tensors of one kind and shape were exchanged; state that belongs to no module and
no optimizer. The replay of the step that it finds sees all of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from opguard_core.engines.deferred import words_of
from opguard_core.engines.state import StateBoundary
from opguard_core.fingerprint.constants import MASK64, finish, mix_lane
from opguard_core.fingerprint.digest import Digests
from opguard_core.ids import Direction, Status
from opguard_core.probe.promise import Derived, Known, Promise
from opguard_core.probe.tensor import Unreadable, fingerprint
from opguard_core.trace.schema import SlotRow


class _Total:
    """The tensors of one kind."""

    __slots__ = ("dtypes", "elements", "nbytes", "parts")

    def __init__(self) -> None:
        self.elements = self.nbytes = 0
        self.parts: list[Known] = []
        self.dtypes: set[str] = set()

    def add(self, tensor: torch.Tensor, digests: Known) -> None:
        """Count one tensor in."""
        self.elements += tensor.numel()
        self.nbytes += digests.nbytes
        self.dtypes.add(str(tensor.dtype).removeprefix("torch."))
        self.parts.append(digests)

    def row(self, seq: int, kind: str) -> SlotRow:
        """The slot of this kind; its shape is ``tensors,elements``."""
        dtype = self.dtypes.pop() if len(self.dtypes) == 1 else "mixed"
        place = (None, 0, self.nbytes, None, self.nbytes)
        known = [part for part in self.parts if not isinstance(part, Promise)]
        total: Known = (
            _sum(known) if len(known) == len(self.parts) else Derived(self.parts, _sum, partial(_unreadable_part, kind), self.nbytes)
        )
        shape = f"{len(self.parts)},{self.elements}"
        return SlotRow(seq, kind, Direction.IN.value, Status.PROBED.value, dtype, shape, "", "", *place, *words_of(total), "")


def _sum(parts: Sequence[Digests]) -> Digests:
    mix = value = bag = xor32 = nbytes = 0
    for part in parts:
        mix += mix_lane(part.mix64)
        value += mix_lane(part.value64)
        bag += mix_lane(part.bag64)
        xor32 ^= part.xor32
        nbytes += part.nbytes
    mix64, value64, bag64 = (finish(total & MASK64, len(parts)) for total in (mix, value, bag))
    return Digests(mix64, value64, bag64, xor32, False, nbytes)


def _unreadable_part(kind: str, part: Unreadable) -> Unreadable:
    return Unreadable(f"a tensor of kind {kind}: {part.reason}")


class SentinelState(StateBoundary):
    """Emits state events with one slot a kind of state, and the random states."""

    def _fill(self, rows: list[SlotRow], seq: int) -> None:
        """Sum up the state.

        Cost: a fingerprint of every parameter, gradient, buffer and piece of optimizer state; about 3 us a tensor beside.
        """
        totals: dict[str, _Total] = {}
        for kind, tensor in self._tensors():
            if tensor.is_meta:
                continue
            digests = fingerprint(tensor)
            if isinstance(digests, Unreadable):
                self._context.coverage.gap("unreadable-tensor", digests.reason, touches_state=True, seq=seq)
                continue
            totals.setdefault(kind, _Total()).add(tensor, digests)
        rows += [total.row(seq, kind) for kind, total in totals.items()]

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        names = self._names
        names.adopt_noted()
        for _, parameter in names.parameters():
            yield "param", parameter
            gradient = parameter.grad if parameter.is_leaf else None
            if gradient is not None:
                yield "grad", gradient
        for optimizer in names.optimizers():
            for _, value in names.optimizer_state(optimizer):
                if isinstance(value, torch.Tensor):
                    yield "optim", value
                elif isinstance(value, bool | int | float):
                    yield "optim", torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
        buffers = {id(buffer): buffer for _, buffer in names.buffers()}  # modules may share one
        for buffer in buffers.values():
            yield "buffer", buffer
