"""Traces with named calls and values, written by hand: `script.Script` with a line for each entry, exit, value and gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from opguard_core.certify.semantic.walk import Found, walk
from opguard_core.trace.reader import Run
from tests.support.script import Script, Tensor


class Named(Script):
    """Records one rank; contents are small numbers, as of `Script`."""

    def enter(self, name: str, *tensors: Tensor, kw: dict[str, Tensor] | None = None, **facts: Any) -> int:
        """A named call begins; returns the number of its event."""
        slots = [(f"in.{at}", tensor) for at, tensor in enumerate(tensors)] + [(f"kw.{key}", tensor) for key, tensor in (kw or {}).items()]
        return self._tell(name, "at=enter", slots, None, facts)

    def leave(self, call: int, name: str, *tensors: Tensor, raised: str = "", **facts: Any) -> None:
        """It ends."""
        args = f"at=exit;raised={raised}" if raised else "at=exit"
        self._tell(name, args, [(f"out.{at}", tensor) for at, tensor in enumerate(tensors)], call, facts)

    def call(self, name: str, got: int, gives: int, **facts: Any) -> int:
        """A call that gets one tensor and gives another."""
        call = self.enter(name, self.given((4, 4), got), **facts)
        self.leave(call, name, self.given((4, 4), gives), **facts)
        return call

    def value(self, name: str, tensor: Tensor, **facts: Any) -> int:
        """A named value."""
        return self._tell(name, "at=probe", [("in.0", tensor)], None, facts)

    def gradient(self, call: int, name: str, slot: str, tensor: Tensor, **facts: Any) -> None:
        """A gradient comes back to a tensor of a call."""
        self._tell(name, "at=grad", [(f"grad_{slot}", tensor)], call, {"phase": "backward", **facts})

    def _tell(self, name: str, args: str, slots: list[tuple[str, Tensor]], call: int | None, facts: dict[str, Any]) -> int:
        seq = self.seq
        rows = [self._slot(slot, "in", tensor) for slot, tensor in slots]
        self.event(name, rows, **{"kind": "semantic", "at": f"{name}()", **facts, "args": args, "forward": call})
        return seq

    def close(self, *, ended: str = "exit", **closing: Any) -> Run:
        """As of `Script`; the manifest says that there are named calls."""
        return super().close(ended=ended, **{"engines": {"semantic": {"active": True, "patterns": {}}}, **closing})


def found(reference: Run, suspect: Run) -> Found:
    """Compare rank 0 of both."""
    told = walk(reference.ranks[0], suspect.ranks[0], 0, 0)
    assert told is not None
    return told


def in_memory(tensor: Tensor, storage: int) -> Tensor:
    """The tensor in other memory."""
    return replace(tensor, storage=storage)
