"""The state boundary: parameters, gradients, optimizer state, buffers and random states at the end of a window.

Gives ``identical`` its meaning, and shows a last update that nothing reads any more.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from opguard_core.engines.markers import event_here
from opguard_core.engines.names import Names
from opguard_core.engines.randomness import host_states
from opguard_core.engines.rank import RankContext
from opguard_core.ids import Direction, Kind, Phase, Status
from opguard_core.probe.numbers import digests_of_number, dtype_of
from opguard_core.trace.schema import SlotRow

STATE_OPERATOR = "opguard.state"


class StateBoundary:
    """Emits state events."""

    def __init__(self, context: RankContext, names: Names) -> None:
        self._context, self._names = context, names

    def emit(self, why: str) -> None:
        """Emit one state event. Call inside `quiet`.

        Args:
            why: "update", "skipped", "end": goes into the event's args.

        Cost: a fingerprint of what changed since it was last probed (mode verify: of everything).
        """
        context = self._context
        entry = context.outbox.open()
        seq = entry.seq
        rows: Any = [] if context.book is None else context.book.rows(seq)
        failed = ""
        try:
            if context.book is None:
                with context.probes.together():
                    self._fill(rows, seq)
            else:
                self._names.fill(rows, _number)
            self._generators(rows, seq)
        except Exception as error:  # noqa: BLE001  the step guard
            failed = context.guard.caught("state boundary", error)
        event = event_here(
            context,
            seq,
            Kind.GAP.value if failed else Kind.STATE.value,
            STATE_OPERATOR,
            failed or f"why={why}",
            Phase.STATE.value,
            sys._getframe(1),
        )
        if failed or context.book is None:
            context.outbox.close(entry, event, () if failed else rows)
        else:
            rows.close(context.outbox, entry, event)

    def _fill(self, rows: list[SlotRow], seq: int) -> None:
        probes, names = self._context.probes, self._names
        names.adopt_noted()
        gradients: list[tuple[str, torch.Tensor]] = []
        for name, parameter in names.parameters():
            probes.state(rows, seq, f"param:{name}", parameter)
            gradient = parameter.grad if parameter.is_leaf else None
            if gradient is not None:
                gradients.append((name, gradient))
        for name, gradient in gradients:
            probes.state(rows, seq, f"grad:{name}", gradient)
        for optimizer in names.optimizers():
            for name, value in names.optimizer_state(optimizer):
                if isinstance(value, torch.Tensor):
                    probes.state(rows, seq, f"optim:{name}", value)
                elif isinstance(value, bool | int | float):
                    rows.append(_number(seq, f"optim:{name}", value))
        for name, buffer in names.buffers():
            probes.state(rows, seq, f"buffer:{name}", buffer)

    def _generators(self, rows: list[SlotRow], seq: int) -> None:
        generators = self._context.generators
        for generator in generators.known():
            digest = generators.digest(generator)
            if digest is not None:
                rows.append(_word(seq, f"rng:{generators.name(generator)}", digest))
        for name, digest in host_states().items():
            rows.append(_word(seq, f"rng:{name}", digest))


def _row(seq: int, slot: str, dtype: str, digests: Any) -> SlotRow:
    mix64, value64, bag64, xor32, trivial, nbytes = digests
    found = (None, 0, nbytes, None, nbytes, mix64, value64, bag64, xor32, trivial, "")
    shape, strides = (str(nbytes), "1") if dtype == "uint8" else ("", "")
    return SlotRow(seq, slot, Direction.IN.value, Status.PROBED.value, dtype, shape, strides, "cpu", *found)


def _number(seq: int, slot: str, value: float) -> SlotRow:
    return _row(seq, slot, dtype_of(value), digests_of_number(value))


def _word(seq: int, slot: str, digest: int) -> SlotRow:
    """A generator's state as one 64-bit word: its digest."""
    return _row(seq, slot, "uint64", (digest, digest, digest, (digest ^ digest >> 32) & 0xFFFFFFFF, True, 8))
