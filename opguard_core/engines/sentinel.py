"""The state boundary of mode ``sentinel``: one digest for all parameters, one for all gradients, and so on.

Each digest is a sum over the tensors of a kind, so neither their order nor their names matter: code that was rewritten has
the same one, and a trace grows by some rows a step, however large the model is.

Cannot see: which tensor differs; that two tensors of one kind and shape were exchanged; state that belongs to no module and
no optimizer. The replay of the step that it finds sees all of that.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from opguard_core.engines.state import StateBoundary
from opguard_core.fingerprint.constants import MASK64, finish, mix_lane
from opguard_core.fingerprint.digest import Digests
from opguard_core.ids import Direction, Status
from opguard_core.probe.tensor import Unreadable, fingerprint
from opguard_core.trace.schema import SlotRow


class _Total:
    """Running sums over the tensors of one kind."""

    __slots__ = ("bag", "dtypes", "elements", "mix", "nbytes", "tensors", "value", "xor32")

    def __init__(self) -> None:
        self.tensors = self.elements = self.nbytes = 0
        self.mix = self.value = self.bag = self.xor32 = 0
        self.dtypes: set[str] = set()

    def add(self, tensor: torch.Tensor, digests: Digests) -> None:
        """Count one tensor in."""
        self.tensors += 1
        self.elements += tensor.numel()
        self.nbytes += digests.nbytes
        self.dtypes.add(str(tensor.dtype).removeprefix("torch."))
        self.mix += mix_lane(digests.mix64)
        self.value += mix_lane(digests.value64)
        self.bag += mix_lane(digests.bag64)
        self.xor32 ^= digests.xor32

    def row(self, seq: int, kind: str) -> SlotRow:
        """The slot of this kind; its shape is ``tensors,elements``."""
        dtype = self.dtypes.pop() if len(self.dtypes) == 1 else "mixed"
        mix64, value64, bag64 = (finish(total & MASK64, self.tensors) for total in (self.mix, self.value, self.bag))
        place = (None, 0, self.nbytes, None, self.nbytes)
        words = (mix64, value64, bag64, self.xor32, False)
        shape = f"{self.tensors},{self.elements}"
        return SlotRow(seq, kind, Direction.IN.value, Status.PROBED.value, dtype, shape, "", "", *place, *words, "")


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
