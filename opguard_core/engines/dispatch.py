"""The dispatch engine: every ATen and custom operator as a boundary event (eager default).

`mode` hands it each operator call of a thread. Everything here runs inside the user's step: it reads, never writes a tensor,
never draws a random number, never raises.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import torch

from opguard_core.engines.calls import Bookkeeping, Call, event_of
from opguard_core.engines.lanes import Lane
from opguard_core.engines.markers import gap
from opguard_core.engines.mode import BoundaryMode
from opguard_core.engines.operators import Handling, OperatorPlan, OperatorPlans
from opguard_core.engines.phases import phase_of
from opguard_core.engines.places import NO_STACK
from opguard_core.engines.rank import RankContext
from opguard_core.ids import Kind, Phase
from opguard_core.probe.promise import TOGETHER

_sequence_number = torch.autograd._get_sequence_nr
_graph_task = torch._C._current_graph_task_id
_grad_enabled = torch.is_grad_enabled
_now_ns = time.monotonic_ns
_DISABLED = torch._C._disabled_torch_dispatch_impl
_OPTIMIZER, _FORWARD, _DATA, _COLLECTIVE = Phase.OPTIMIZER.value, Phase.FORWARD.value, Phase.DATA.value, Phase.COLLECTIVE.value
_BACKWARD = Phase.BACKWARD.value
POLL_EVENTS = 512


class DispatchEngine:
    """Turns operator calls into events.

    Args:
        context: The rank's shared bookkeeping.
    """

    name = "dispatch"

    def __init__(self, context: RankContext) -> None:
        self.context = context
        self._plans = OperatorPlans(context.trusted)
        self._since_poll = 0
        self._num_events = 0
        self._num_delegated = 0
        self.streams = context.streams
        self.set_boundary: Callable[[int], int] | None = None  # says to the launch shim which event is in flight on this thread

    @property
    def num_events(self) -> int:
        """Events emitted so far."""
        return self._num_events

    def start(self) -> None:
        """Nothing to do before the first mode is in place."""

    def stop(self) -> None:
        """Modes that are still in place pass everything through."""

    def tell_boundaries(self, shim: Any) -> None:
        """Say to the launch shim which event is in flight while an operator's own kernel runs; None: no more.

        Cost: 0.5 us an operator.
        """
        self.set_boundary = self.context.collectives.set_boundary = None if shim is None else shim.set_boundary

    def mode(self, lane: Lane) -> BoundaryMode:
        """What will observe a thread."""
        return BoundaryMode(self, lane)

    def observed_here(self) -> bool:
        """Whether the calling thread has a dispatch mode, ours or the program's, that would be on top of a new one of ours."""
        return bool(torch._C._len_torch_dispatch_stack())

    def plan_of(self, func: Any) -> OperatorPlan | None:
        """Plan of an operator, None for a higher-order one. Never raises: a schema beyond us is run unobserved."""
        try:
            return self._plans.of(func)
        except Exception as error:  # noqa: BLE001  the step guard
            self.context.guard.caught(f"schema of {func._name}", error)
            return self._plans.unreadable(func)

    def delegates(self, types: Any) -> bool:
        """Whether a tensor subclass takes this call apart itself; the operators it calls come back to us."""
        for cls in types:
            if cls.__torch_dispatch__ is not _DISABLED:
                self._num_delegated += 1
                return True
        return False

    def before(self, lane: Lane, plan: OperatorPlan, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None) -> Any:
        """Observe what an operator is about to read.

        Returns:
            A Call, a Bookkeeping, or None if nothing is to be done afterwards.

        Cost: about 10 us and the fingerprints of the inputs.
        """
        handling = plan.handling
        if handling is Handling.DROP:
            return None
        if handling is Handling.VIEW:
            # A view's own node must not pass for the next operator's. Without gradients it has none: then the newest node is
            # that of the custom function whose forward this is.
            if _grad_enabled():
                lane.last_node = _sequence_number()
            return None
        if handling is Handling.METADATA:
            return Bookkeeping(plan) if plan.resizes else None
        context = self.context
        if plan.makes_nodes_to_leave_alone and _grad_enabled():
            context.nodes_to_leave_alone = True
        if not context.progress.recording:
            return Bookkeeping(plan) if plan.written or plan.uninitialised else None
        call = Call(plan, context.outbox.open(plan.operator, lane))
        call.entry.slots = call.slots
        try:
            if context.streams is None:
                self._look(call, lane, args, kwargs, frame)
            else:
                with TOGETHER:
                    self._look(call, lane, args, kwargs, frame)
        except Exception as error:  # noqa: BLE001  the step guard
            call.failed = context.guard.caught(f"before {plan.operator}", error, call.entry.seq)
        except BaseException:
            self._finish(lane, call, "interrupted")
            raise
        if self.set_boundary is not None:
            call.outer = self.set_boundary(call.entry.seq)
            if plan.handling is Handling.COLLECTIVE:
                self.context.collectives.began(call.entry.seq)
        return call

    def _look(self, call: Call, lane: Lane, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None) -> None:
        context, plan, seq = self.context, call.plan, call.entry.seq
        now_ns = _now_ns()
        stack = context.places.of(frame)
        grad_enabled = _grad_enabled()
        in_graph_task = _graph_task() != -1
        collective = plan.handling is Handling.COLLECTIVE or plan.handling is Handling.WAIT
        if in_graph_task and stack.user_frame is None:
            stack = stack.called_from(lane.backwards.place(_graph_task()))
        phase = _COLLECTIVE if collective else phase_of(stack.situation, lane, grad_enabled=grad_enabled, in_graph_task=in_graph_task)
        node, forward_seq = "", None
        if in_graph_task and (phase == _BACKWARD or collective):
            node, forward_seq = context.forward_of_current_node(lane)
        counter = _sequence_number()
        if counter != lane.last_node:
            lane.last_node = counter
            lane.link(counter - 1, seq, plan.qualified)
        unread = plan.trusted or plan.shape_only or plan.handling is Handling.WAIT
        waits = plan.handling is not Handling.WAIT and not plan.shape_only and not plan.is_asynchronous(args, kwargs)
        probes, rows, touched, device = context.probes, call.slots, False, None
        for argument in plan.tensors:
            value = plan.value(argument, args, kwargs)
            if value is None:
                continue
            reads = argument.reads and not unread
            # Only who reads or overwrites a result that is on its way may take it for complete.
            consume = waits and (argument.reads or not collective)
            for path, tensor in argument.each(value):
                probes.input(rows, seq, path, tensor, reads=reads, consume=consume, carried=plan.trusted and argument.reads)
                if device is None:
                    device = tensor.device
                if phase is None:
                    touched = touched or context.touches_training(tensor, grad_enabled=grad_enabled)
        if phase is None:
            phase = (_FORWARD if grad_enabled else _OPTIMIZER) if touched else _DATA
        call.phase, call.touches_gradient = phase, touched and not grad_enabled
        call.args_text = plan.arguments(args, kwargs)
        if plan.random:
            context.before_random(call, args, kwargs, device)
        progress = context.progress
        if plan.handling is Handling.COLLECTIVE:
            clock = progress.collectives
            progress.collectives += 1
        else:
            clock = progress.collectives
        window = progress.window
        call.header = (now_ns, clock, window, lane.microbatch(window), phase, lane.path, node, forward_seq, stack, grad_enabled)
        closeup = context.closeup
        if closeup is not None and closeup.wants(plan.operator):
            again = partial(self._look_again, call, args, kwargs)
            closeup.begins(call, stack.user_frame, partial(plan.arguments_read, args, kwargs), again)

    def _look_again(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], changed: dict[str, torch.Tensor]) -> None:
        """Other bytes were put into what an operator is about to read: its inputs are these."""
        context, plan = self.context, call.plan
        context.forget(changed.values())
        call.slots.clear()
        for argument in plan.tensors:
            value = plan.value(argument, args, kwargs)
            for path, tensor in () if value is None else argument.each(value):
                reads = argument.reads and not plan.trusted and not plan.shape_only
                context.probes.input(call.slots, call.entry.seq, path, tensor, reads=reads, carried=plan.trusted and argument.reads)

    def after(self, lane: Lane, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Observe what an operator returned and wrote, and emit its event. Never raises."""
        context = self.context
        self._landed(call)
        if context.dead:
            return
        if type(call) is Bookkeeping:
            try:
                context.keep_book(call.plan, args, kwargs, result)
            except Exception as error:  # noqa: BLE001  the step guard
                context.guard.caught(f"book {call.plan.operator}", error)
            return
        places: list[Any] = []
        try:
            if not call.failed and context.streams is None:
                places = self._results(call, args, kwargs, result)
            elif not call.failed:
                with TOGETHER:
                    places = self._results(call, args, kwargs, result)
        except Exception as error:  # noqa: BLE001  the step guard
            call.failed = context.guard.caught(f"after {call.plan.operator}", error, call.entry.seq)
        if call.failed:
            self._forget(call, args, kwargs)
            self._not_kept(call, call.failed)
        self._finish(lane, call, call.failed, places)

    def _results(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[Any]:
        context, plan, seq, rows = self.context, call.plan, call.entry.seq, call.slots
        probes, reads = context.probes, not plan.trusted
        later = plan.handling is Handling.COLLECTIVE
        copied = not plan.trusted and plan.reaches_host_later(args, kwargs)  # nobody waits for it here, either
        places = []
        context.forget_read(plan, args, kwargs)
        if call.rng_stream:
            context.after_random(call)
        if call.closeup is not None:
            context.closeup.returned(call, partial(plan.made, args, kwargs, result), later=later or copied)
        if plan.handling is Handling.WAIT:
            context.collectives.consume_tensor(context.storages, result)
        for position, path, tensor in plan.results(result):
            if later or (copied and tensor.is_cpu):
                place = probes.later(rows, seq, path, tensor, "out")
                if place is not None:
                    places.append((len(rows) - 1, *place))
            else:
                written = not plan.uninitialised and position not in plan.garbage
                probes.output(rows, seq, path, tensor, written=written, reads=reads)
            if call.touches_gradient:
                context.mark_gradient(tensor)
        for declared, path, tensor in plan.writes(args, kwargs):
            if later or (copied and tensor.is_cpu):
                place = probes.later(rows, seq, path, tensor, "mut")
                if place is not None:
                    places.append((len(rows) - 1, *place))
            else:
                probes.mutated(rows, seq, path, tensor, declared=declared, reads=reads)
            if call.touches_gradient:
                context.mark_gradient(tensor)
        if context.verify and not later:
            context.find_undeclared_writes(call, args, kwargs)
        if call.closeup is not None:
            context.closeup.ended(call, plan.left(args, kwargs, result), later=later or copied)
        return places

    def raised(self, lane: Lane, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: BaseException) -> None:
        """An operator raised: its event says so. Never raises."""
        self._landed(call)
        if type(call) is Bookkeeping or self.context.dead:
            return
        call.args_text += f";raised={type(error).__name__}"
        self._forget(call, args, kwargs)
        self._not_kept(call, type(error).__name__)
        self._finish(lane, call, call.failed)

    def _landed(self, call: Any) -> None:
        """Device work of this thread belongs to the event of before again."""
        if type(call) is Call and call.outer is not None and self.set_boundary is not None:
            self.set_boundary(call.outer)

    def _forget(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Carry no digest of what an operator may have written unseen."""
        try:
            self.context.forget_written(call.plan, args, kwargs)
            self.context.forget_read(call.plan, args, kwargs)
        except Exception as error:  # noqa: BLE001  the step guard
            call.failed = self.context.guard.caught(f"forget {call.plan.operator}", error, call.entry.seq)

    def _not_kept(self, call: Call, why: str) -> None:
        """Keep what there is of a boundary that did not come to its end."""
        if call.closeup is None:
            return
        try:
            self.context.closeup.failed(call, why)
        except Exception as error:  # noqa: BLE001  the step guard
            self.context.guard.caught(f"keep {call.plan.operator}", error, call.entry.seq)

    def _finish(self, lane: Lane, call: Call, failed: str, places: list[Any] | None = None) -> None:
        """Emit the event of a call; never raises, and never leaves the events behind it waiting."""
        try:
            self._emit(lane, call, failed, places)
        except Exception as error:  # noqa: BLE001  the step guard
            context, entry = self.context, call.entry
            text = context.guard.caught(f"event of {call.plan.operator}", error, entry.seq)
            if entry.event is None:
                entry.unblock = None
                context.outbox.close(entry, gap(context, entry.seq, call.plan.operator, text, lane), ())

    def _emit(self, lane: Lane, call: Call, failed: str, places: list[Any] | None) -> None:
        context, plan, seq = self.context, call.plan, call.entry.seq
        if not call.header:
            progress = context.progress
            counts = (progress.collectives, progress.window, lane.microbatch(progress.window))
            call.header = (_now_ns(), *counts, call.phase, lane.path, "", None, NO_STACK, False)
        kind = Kind.GAP.value if failed else plan.kind
        event = event_of(context, lane, call, kind, plan.operator, call.slots, seq, failed or call.args_text)
        self._num_events += 1
        if places and not failed:
            context.collectives.defer(call.entry, event, call.slots, places)
        else:
            context.outbox.close(call.entry, event, () if failed else call.slots)
        self._emitted()

    def _emitted(self) -> None:
        """One more event: now and then look for freed storages."""
        context = self.context
        self._since_poll += 1
        if self._since_poll >= POLL_EVENTS:
            self._since_poll = 0
            try:
                context.poll()
            except Exception as error:  # noqa: BLE001  the step guard
                context.guard.caught("lifetimes", error)

    def report(self) -> dict[str, Any]:
        """What goes into the rank manifest's ``engines``."""
        return {"active": True, "events": self._num_events, "delegated_to_subclasses": self._num_delegated}
