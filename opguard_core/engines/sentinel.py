"""The state boundary of mode ``sentinel``: one digest for all parameters, one for all gradients, and so on.

Each digest is a sum over the tensors of a kind, so neither their order nor their names matter: code that was rewritten has
the same one, and a trace grows by some rows a step, however large the model is.

Cannot see: which tensor differs; that two tensors of one kind and shape were exchanged; state that belongs to no module and
no optimizer. The replay of the step that it finds sees all of that.
"""

from __future__ import annotations

from functools import partial

import torch

from opguard_core.engines.deferred import words_of
from opguard_core.engines.names import Names
from opguard_core.engines.rank import RankContext
from opguard_core.engines.state import StateBoundary
from opguard_core.ids import Direction, Status
from opguard_core.probe.kinds import Unreadable
from opguard_core.probe.sums import Group, Sums, Value
from opguard_core.trace.schema import SlotRow

_STATE = (torch.Tensor, bool, int, float)


def _row(seq: int, kind: str, group: Group) -> SlotRow:
    """The slot of a kind; its shape is ``tensors,elements``."""
    total = group.sum
    dtype = next(iter(group.dtypes)) if len(group.dtypes) == 1 else "mixed"
    place = (None, 0, total.nbytes, None, total.nbytes)
    shape = f"{total.number},{group.elements}"
    words = words_of(total.known(partial(_unreadable_part, kind)))
    return SlotRow(seq, kind, Direction.IN.value, Status.PROBED.value, dtype, shape, "", "", *place, *words, "")


def _unreadable_part(kind: str, part: Unreadable) -> Unreadable:
    return Unreadable(f"a tensor of kind {kind}: {part.reason}")


class SentinelState(StateBoundary):
    """Emits state events with one slot a kind of state, and the random states."""

    def __init__(self, context: RankContext, names: Names) -> None:
        super().__init__(context, names)
        self._sums = Sums()

    def _fill(self, rows: list[SlotRow], seq: int) -> None:
        """Sum up the state.

        Cost: a fingerprint of every parameter, gradient, buffer and piece of optimizer state, asked for together; about 1 us of the
        host for each beside, as long as none is replaced by one that lies otherwise (`Sums`).
        """
        found = self._sums.read(*self._values())
        for problem in found.unreadable:
            self._context.coverage.gap("unreadable-tensor", problem.reason, touches_state=True, seq=seq)
        rows += [_row(seq, kind, group) for kind, group in found.groups.items()]

    def _values(self) -> tuple[list[Value], list[str]]:
        """All state as it is now, and the kind of each piece: nothing is kept of where it was found before."""
        names, values, kinds = self._names, list[Value](), list[str]()
        names.adopt_noted()
        for parameter in names.living_parameters():
            values.append(parameter)
            kinds.append("param")
            gradient = parameter.grad if parameter.is_leaf else None
            if gradient is not None:
                values.append(gradient)
                kinds.append("grad")
        for optimizer in names.optimizers():
            values += [value for value in names.optimizer_values(optimizer) if isinstance(value, _STATE)]
        kinds += ["optim"] * (len(values) - len(kinds))
        values += {id(buffer): buffer for _, buffer in names.buffers()}.values()  # modules may share one
        kinds += ["buffer"] * (len(values) - len(kinds))
        return values, kinds
