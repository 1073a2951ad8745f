"""Events without an operator: where the program stands now."""

from __future__ import annotations

import time
from types import FrameType

import torch

from opguard_core.engines.lanes import Lane
from opguard_core.engines.phases import phase_of
from opguard_core.engines.rank import RankContext
from opguard_core.ids import Kind, Phase
from opguard_core.trace.schema import EventRow


def gap(context: RankContext, seq: int, operator: str, why: str, lane: Lane | None) -> EventRow:
    """The event of something that happened but could not be recorded.

    Args:
        context: The rank.
        seq: Its number.
        operator: What it was.
        why: Text for people.
        lane: The thread it ran on, None if unknown.
    """
    progress = context.progress
    role, index, microbatch, path = "main", 0, 0, ""
    if lane is not None:
        role, index, microbatch, path = lane.role, lane.index or 0, lane.microbatch(progress.window), lane.path
    place = (progress.collectives, progress.window, microbatch, Phase.DATA.value, path, "", None, None, None, None)
    return EventRow(seq, Kind.GAP.value, operator, time.monotonic_ns(), None, None, role, index, *place, why, "", None, False)


def event_here(
    context: RankContext,
    seq: int,
    kind: str,
    operator: str,
    args: str,
    phase: str | None,
    frame: FrameType | None,
    lane: Lane | None = None,
) -> EventRow:
    """An event row for the calling thread.

    Args:
        context: The rank.
        seq: Its number.
        kind: One of ``ids.Kind``.
        operator: A marker's value, or the state boundary.
        args: Facts as canonical text.
        phase: Given, or None to take it from the stack.
        frame: Innermost frame; our own are skipped.
        lane: Whose work this is; None: the calling thread's own.
    """
    lane = lane or context.lanes.current() or context.lanes.enter("main")
    stack = context.places.of(frame)
    grad_enabled = torch.is_grad_enabled()
    if phase is None:
        in_graph_task = torch._C._current_graph_task_id() != -1
        phase = phase_of(stack.situation, lane, grad_enabled=grad_enabled, in_graph_task=in_graph_task) or Phase.DATA.value
    progress = context.progress
    return EventRow(
        seq,
        kind,
        operator,
        time.monotonic_ns(),
        None,
        None,
        lane.role,
        context.lanes.number(lane),
        progress.collectives,
        progress.window,
        lane.microbatch(progress.window),
        phase,
        lane.path,
        "",
        None,
        stack.stack,
        stack.user_frame,
        stack.library_frame,
        args,
        "",
        None,
        grad_enabled,
    )
