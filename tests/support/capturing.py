"""Runs code under a capture session in this process and keeps what it emitted in memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from opguard_core.capture.session import Session, start
from opguard_core.engines.lanes import role_of
from opguard_core.engines.threads import _ours
from opguard_core.plan.config import RunConfig
from opguard_core.trace.schema import EventRow, FrameRow, LifetimeRow, SlotRow

ROOT = Path(__file__).resolve().parents[2]
NOT_FOLLOWED = "thread-not-followed"


def left_over() -> list[str]:
    """Threads that earlier tests have left in this process (pools, progress bars), by role: a capture that starts now counts them."""
    found = [thread for thread in threading.enumerate() if thread is not threading.current_thread() and not _ours(thread)]
    return sorted(map(role_of, found))


def own_gaps(gaps: dict, left: list[str]) -> dict:
    """Gaps of a capture in this process, without the threads that were left over when it began; one may have ended just then."""
    gap = gaps.get(NOT_FOLLOWED)
    if gap is None or gap["count"] > len(left) or not {*gap["examples"]} <= {*left}:
        return gaps
    return {name: found for name, found in gaps.items() if name != NOT_FOLLOWED}


class MemorySink:
    """An EventSink that keeps rows and checks the promises of the protocol."""

    def __init__(self) -> None:
        self.events: list[EventRow] = []
        self.slots: dict[int, list[SlotRow]] = {}
        self.frames: list[FrameRow] = []
        self.stacks: list[tuple[int, ...]] = []
        self.lifetimes: list[LifetimeRow] = []
        self.sources: dict[str, str] = {}

    def emit(self, event: EventRow, slots: Sequence[SlotRow]) -> None:
        assert event.seq == len(self.events), "events come densely, in order"
        self.events.append(event)
        self.slots[event.seq] = list(slots)
        assert all(slot.seq == event.seq for slot in slots)
        assert event.stack is None or event.stack < len(self.stacks), "a stack comes before the event that uses it"

    def frame(self, row: FrameRow) -> None:
        assert row.frame == len(self.frames)
        self.frames.append(row)

    def stack(self, stack: int, frames: Sequence[int]) -> None:
        assert stack == len(self.stacks)
        assert all(frame < len(self.frames) for frame in frames)
        self.stacks.append(tuple(frames))

    def lifetime(self, row: LifetimeRow) -> None:
        self.lifetimes.append(row)

    def source(self, digest: str, text: str) -> None:
        self.sources[digest] = text


class Captured:
    """What one captured block emitted."""

    def __init__(self, sink: MemorySink) -> None:
        self.sink = sink
        self.left = left_over()
        self.session: Session | None = None

    @property
    def events(self) -> list[EventRow]:
        """Operators, collectives and reads, in order."""
        return [event for event in self.sink.events if event.kind in ("operator", "collective", "read")]

    @property
    def markers(self) -> list[EventRow]:
        return [event for event in self.sink.events if event.kind == "marker"]

    @property
    def gaps(self) -> list[EventRow]:
        return [event for event in self.sink.events if event.kind == "gap"]

    @property
    def states(self) -> list[EventRow]:
        return [event for event in self.sink.events if event.kind == "state"]

    @property
    def coverage(self) -> dict:
        """As the manifest has it, without the threads that other tests have left in this process."""
        assert self.session is not None
        found = self.session.coverage
        return {**found, "gaps": own_gaps(found["gaps"], self.left)}

    def operators(self) -> list[str]:
        """Short names: "add.Tensor"."""
        return [event.operator.partition(".")[2] for event in self.events]

    def of(self, operator: str, nth: int = 0) -> EventRow:
        """The nth event of an operator given by base name ("addmm")."""
        found = [event for event in self.sink.events if operator in (event.operator, event.operator.split(".")[1])]
        assert len(found) > nth, f"{operator} not among {self.operators()}"
        return found[nth]

    def slots(self, event: EventRow, direction: str | None = None) -> dict[str, SlotRow]:
        return {slot.slot: slot for slot in self.sink.slots[event.seq] if direction in (None, slot.direction)}

    def text(self, event: EventRow) -> str:
        """Expression of the innermost user frame."""
        return "" if event.user_frame is None else self.sink.frames[event.user_frame].text

    def frame(self, event: EventRow) -> FrameRow:
        assert event.user_frame is not None
        return self.sink.frames[event.user_frame]

    def digests(self) -> list[tuple]:
        """Everything that must be equal between two runs of one program."""
        return [
            (
                event.operator,
                event.args,
                event.phase,
                event.window,
                event.rng_before,
                slot.slot,
                slot.status,
                slot.dtype,
                slot.shape,
                slot.mix64,
            )
            for event in self.sink.events
            for slot in self.sink.slots[event.seq]
        ]


@contextlib.contextmanager
def capturing(mode: str = "verify", **options: object) -> Iterator[Captured]:
    """Capture the block; the result is complete once the block has ended."""
    captured = Captured(MemorySink())
    config = RunConfig(run_dir=ROOT, user_root=options.pop("user_root", ROOT), mode=mode, **options)
    captured.session = start(config, sink=captured.sink)
    try:
        yield captured
    finally:
        captured.session.stop("exit")


def first_difference(one: Captured, other: Captured) -> tuple[EventRow, str]:
    """The first event, and the first slot in it, with other bytes; both sides must have run the same operators."""
    names = [[event.operator for event in side.sink.events] for side in (one, other)]
    assert names[0] == names[1], names
    for left, right in zip(one.sink.events, other.sink.events, strict=True):
        for a, b in zip(one.sink.slots[left.seq], other.sink.slots[right.seq], strict=True):
            assert a.slot == b.slot
            if (a.status, a.mix64) != (b.status, b.mix64):
                return left, a.slot
    raise AssertionError("no difference")


def step_on_ones(optimizer: torch.optim.Optimizer, *parameters: torch.Tensor) -> None:
    """One update whose gradients are all ones."""
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
