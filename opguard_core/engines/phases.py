"""The phase of an event, from what its stack says and what gradients are doing."""

from __future__ import annotations

from opguard_core.engines.contexts import Situation
from opguard_core.engines.lanes import Lane
from opguard_core.ids import Phase

_FIXED = {
    Situation.OPTIMIZER: Phase.OPTIMIZER.value,
    Situation.DATA: Phase.DATA.value,
    Situation.STATE: Phase.STATE.value,
    Situation.SEEDING: Phase.BACKWARD.value,
    Situation.RECOMPUTE: Phase.RECOMPUTE.value,
}
_WITHIN_ENGINE = (Situation.NONE, Situation.FUNCTION)
_FORWARD, _BACKWARD, _RECOMPUTE, _EVAL = Phase.FORWARD.value, Phase.BACKWARD.value, Phase.RECOMPUTE.value, Phase.EVAL.value


def phase_of(situation: Situation, lane: Lane, *, grad_enabled: bool, in_graph_task: bool) -> str | None:
    """Phase of an operator, or None if only the tensors it touches can tell.

    Args:
        situation: From the stack.
        lane: The thread.
        grad_enabled: Whether gradients are on.
        in_graph_task: Whether the autograd engine is running on this thread. The engine's own threads, one a card, have no frame of
            ``backward()`` on their stack, so what is innermost there is as if the engine were around it.
    """
    fixed = _FIXED.get(situation)
    if fixed is not None:
        return fixed
    if situation is Situation.MODULE:
        if in_graph_task:
            return _RECOMPUTE
        return _FORWARD if grad_enabled or lane.root_grad else _EVAL
    if situation is Situation.ENGINE or (in_graph_task and situation in _WITHIN_ENGINE):
        # With gradients on and no graph of the backward asked for, someone re-runs a forward by hand.
        return _RECOMPUTE if grad_enabled and not (lane.create_graph and lane.create_graph[-1]) else _BACKWARD
    if situation is Situation.FUNCTION:
        return _FORWARD
    return None
