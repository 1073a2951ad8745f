"""Events without an operator: where the program stands now."""

from __future__ import annotations

import time
from types import FrameType

import torch

from opguard_core.engines.phases import phase_of
from opguard_core.engines.rank import RankContext
from opguard_core.ids import Phase
from opguard_core.trace.schema import EventRow


def event_here(context: RankContext, seq: int, kind: str, operator: str, args: str, phase: str | None, frame: FrameType | None) -> EventRow:
    """An event row for the calling thread.

    Args:
        context: The rank.
        seq: Its number.
        kind: One of ``ids.Kind``.
        operator: A marker's value, or the state boundary.
        args: Facts as canonical text.
        phase: Given, or None to take it from the stack.
        frame: Innermost frame; our own are skipped.
    """
    lane = context.lanes.current() or context.lanes.enter("main")
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
