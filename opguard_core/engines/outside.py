"""Calls that the dispatcher never sees: extension functions, Triton and CuPy kernels, generated kernels, as boundary events.

    extensions / triton / compiled -> `OutsideCalls.before` ... the call ... `after` or `raised` -> outbox

Works with both engines, on the same bookkeeping. Everything here runs inside the user's step: it reads, never writes a tensor, never
raises, never waits for a device.

A call from which operators of torch run is a boundary only for what they leave unexplained: they keep their own events, and the call
reports results and writes of memory whose bytes no operator inside has left as they are (`outside_rows`); if there are none, there is
no event (and no gap; ``composite`` counts). An event takes its number when the call ends, so that it stands after those of the
operators inside; what the launch shim has in flight until then is a token, which the collector of launches exchanges for the number.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from opguard_core.engines.addresses import Addresses
from opguard_core.engines.binaries import Binaries
from opguard_core.engines.calls import event_of
from opguard_core.engines.kinds import pieces
from opguard_core.engines.markers import gap
from opguard_core.engines.outside_lane import is_fake, lane_of
from opguard_core.engines.outside_rows import Habits, Open, Tensors, left_by, look
from opguard_core.engines.phases import phase_of
from opguard_core.engines.quiet import quiet
from opguard_core.engines.stated import left_as_stated
from opguard_core.engines.tables import UNINITIALISED_RESULTS
from opguard_core.ids import Kind, Phase
from opguard_core.intercept.shim import TOKENS

if TYPE_CHECKING:
    from opguard_core.engines.rank import RankContext

__all__ = ["Open", "OutsideCalls", "Tensors"]

_sequence_number = torch.autograd._get_sequence_nr
_graph_task = torch._C._current_graph_task_id
_grad_enabled = torch.is_grad_enabled
_set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame
_BACKWARD, _FORWARD = Phase.BACKWARD.value, Phase.FORWARD.value
_DATA, _OPTIMIZER = Phase.DATA.value, Phase.OPTIMIZER.value
_EXTENSION = "extension."


class _Here(threading.local):
    """What the calling thread is doing."""

    def __init__(self) -> None:
        self.busy = False  # our own code works
        self.known = 0  # calls that write nothing but what they say, see `addresses_are_known`


class OutsideCalls:
    """Turns calls outside the dispatcher into events; one per rank, made by the session.

    Args:
        context: The rank's shared bookkeeping.

    Attributes:
        addresses: Memory that the program has shown by its address.
        binaries: What the observed functions of extensions are made of.
    """

    def __init__(self, context: RankContext) -> None:
        self.context = context
        self.addresses = Addresses(context.storages)
        self.binaries = Binaries()
        loaded = getattr(context, "loaded", None)
        self._here: Any = _Here() if loaded is None else loaded.module.Here()  # C++ asks it, too
        self._tokens = itertools.count(TOKENS)
        self._in_flight: dict[int, str] = {}
        self._habits: dict[str, Habits] = {}
        self._set_boundary: Any = None
        self._launches: Any = None
        self._stopped = False
        self._num_events = self._num_composite = 0

    def watches(self) -> bool:
        """Whether a call on this thread would be looked at: ask before working anything out. Cost: 0.2 us."""
        context = self.context
        return not (context.dead or self._stopped or self._here.busy) and lane_of(context) is not None

    def know_addresses(self, change: int) -> None:
        """Addresses that this thread asks for are for an observed call from now on, so nobody else writes there (1); no more (-1)."""
        self._here.known += change

    def knows_addresses(self) -> bool:
        """Whether the calling thread is in such a call."""
        return self._here.known > 0 or self._here.busy

    def mute(self) -> Any:
        """Let operators of this thread pass by unobserved: they are part of a call that is. To be handed to `unmute`."""
        lane = lane_of(self.context)
        if lane is not None:
            lane.muted = True
        return lane

    def unmute(self, lane: Any) -> None:
        """Observe operators again."""
        if lane is not None and not self._stopped:
            lane.muted = False

    def before(self, operator: str, tensors: Tensors, args_text: str, frame: FrameType | None, *, stated: bool = False) -> Open | None:
        """Observe what a call is about to read.

        Args:
            operator: "extension.<module>.<function>", "triton.<kernel>", "cupy.<kernel>", "inductor.<generated kernel>".
            tensors: Every tensor that it gets, with paths "in.0" or "kw.mask"; numpy or CuPy arrays and addresses as the tensors that
                they are views of (`extensions.tensors_in`).
            args_text: Canonical text of its other arguments (`extensions.arguments_text`); grid and constants of a kernel belong here.
            frame: Innermost frame of the program; frames of ours are left out anyway.
            stated: What it makes and changes is known and will all be said to `after`: each such tensor is told, whatever was there before.

        Returns:
            To be handed to `after` or `raised`, exactly once, on the same thread; None: nothing is to be done afterwards.

        Never raises. Cost: about 15 us and the fingerprints of the inputs.
        """
        if not self.watches():
            return None
        context, given = self.context, list(tensors)
        if any(is_fake(tensor) for _, tensor in given):
            return None  # nothing is computed: a graph is traced
        call = Open(operator, lane_of(context), args_text, given)
        call.stated = stated
        call.recorded = context.progress.recording
        if call.recorded:
            call.token = call.seq = next(self._tokens)
            with self._working():
                try:
                    with context.probes.together():
                        self._look(call, frame)
                    self._look_closer(call)
                except Exception as error:  # noqa: BLE001  the step guard
                    call.failed = context.guard.caught(f"before {operator}", error, context.outbox.next_seq)
            self._in_flight[call.token] = operator
            if self._set_boundary is not None:
                call.outer = self._set_boundary(call.token)
        return call

    def _look(self, call: Open, frame: FrameType | None) -> None:
        """What `DispatchEngine._look` works out, of a call without a schema."""
        context, lane = self.context, call.lane
        now_ns = time.monotonic_ns()
        stack = context.places.of(frame)
        grad_enabled = _grad_enabled()
        in_graph_task = _graph_task() != -1
        if in_graph_task and stack.user_frame is None:
            stack = stack.called_from(lane.backwards.place(_graph_task()))
        phase = phase_of(stack.situation, lane, grad_enabled=grad_enabled, in_graph_task=in_graph_task)
        node, forward_seq = "", None
        if in_graph_task and phase == _BACKWARD:
            node, forward_seq = context.forward_of_current_node(lane)
        counter = _sequence_number()
        maker = lane.forward_of.get(counter - 1) if counter == lane.last_node else None
        # A function that first makes the memory for its result is better known by the call that fills it.
        call.node = counter - 1 if counter != lane.last_node or (maker is not None and maker[1] in UNINITIALISED_RESULTS) else None
        call.num_events, call.tick = lane.num_events, context.storages.tick()
        touched = look(context, call, partial(context.touches_training, grad_enabled=grad_enabled) if phase is None else None)
        if phase is None:
            phase = (_FORWARD if grad_enabled else _OPTIMIZER) if touched else _DATA
        call.touches_gradient = touched and not grad_enabled
        if call.operator.startswith(_EXTENSION):
            device = next((tensor.device for _, tensor in call.tensors), None)
            context.before_random(call, (), {}, device)
        progress = context.progress
        counts = (progress.collectives, progress.window, lane.microbatch(progress.window))
        call.header = (now_ns, *counts, phase, lane.path, node, forward_seq, stack, grad_enabled)

    def _look_closer(self, call: Open) -> None:
        """Keep what the call is about to read, or give it other bytes, if this run was asked to."""
        context, closeup = self.context, self.context.closeup
        if closeup is not None and closeup.wants(call.operator):

            def again(changed: dict[str, torch.Tensor]) -> None:
                context.forget(changed.values())
                call.rows.clear()
                look(context, call, None)

            closeup.begins(call, call.header[-2].user_frame, lambda: iter(call.tensors), again)

    def after(self, call: Open | None, results: Tensors = (), written: Tensors | None = None, *, tells: bool = False) -> None:
        """Observe what a call returned and wrote, and emit its event.

        Args:
            call: From `before`.
            results: Tensors that it returned, with paths "out.0"; those that are arguments, or views of them, may be among them.
            written: Arguments that it wrote, with paths "mut.0"; None: not known, so every argument is compared with what it was.
            tells: It returned numbers to Python: if it has made nothing else, its event is a read.

        Never raises.
        """
        if call is None or self._landed(call):
            return
        call.tells = tells
        with self._working():
            self._ended(call, results, written)

    def _ended(self, call: Open, results: Tensors, written: Tensors | None, error: BaseException | None = None) -> None:
        context = self.context
        try:
            if call.failed or not call.recorded:
                self._forget(call, results)
            else:
                if call.rng_stream:
                    context.after_random(call)
                results = list(results)
                if call.closeup is not None:
                    context.closeup.returned(call, lambda: call.left(results), later=False)
                with context.probes.together():
                    if call.stated and error is None:
                        left_as_stated(context, call, results, written or ())
                    else:
                        left_by(context, call, results, written, self._habits.setdefault(call.operator, Habits()))
                if call.touches_gradient:
                    for tensor in call.made:
                        context.mark_gradient(tensor)
        except Exception as failure:  # noqa: BLE001  the step guard
            call.failed = context.guard.caught(f"after {call.operator}", failure, context.outbox.next_seq)
            self._forget(call, ())
        self._finish(call, list(results), error)

    def raised(self, call: Open | None, error: BaseException) -> None:
        """A call raised: its event says so, and what it has written by then. Never raises."""
        if call is None or self._landed(call):
            return
        call.args_text += f"{';' if call.args_text else ''}raised={type(error).__name__}"
        with self._working():
            self._ended(call, (), None, error)

    def _landed(self, call: Open) -> bool:
        """Device work of this thread belongs to the event of before again; returns whether this process is none of ours any more."""
        if call.outer is not None and self._set_boundary is not None:
            self._set_boundary(call.outer)
        self._in_flight.pop(call.token, None)
        return self.context.dead

    def _forget(self, call: Open, results: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Carry no digest of what a call may have written unseen; what it was given to fill counts as filled."""
        context = self.context
        try:
            for _, plain in pieces([*call.tensors, *results], copied=False):
                record = context.storages.known(plain)
                if record is not None:
                    record.written.clear()
                    if not call.recorded:
                        geometry, offset, record = context.probes.locate(plain, context.outbox.next_seq)
                        record.wrote(offset, geometry, None, None)
        except Exception as error:  # noqa: BLE001  the step guard
            call.failed = context.guard.caught(f"forget {call.operator}", error, context.outbox.next_seq)

    def _finish(self, call: Open, results: list[tuple[str, torch.Tensor]], error: BaseException | None) -> None:
        """Emit the event of a call, unless operators inside explain it all. Never raises."""
        context = self.context
        if not call.recorded:
            return
        entry: Any = None
        try:
            composite = call.is_nested() and not call.failed and not call.made
            if composite or not (call.rows or call.failed):  # or no tensor went in or came out
                self._num_composite += composite
                if call.closeup is not None:
                    context.closeup.takes_back(call)
                return
            entry = context.outbox.open(call.operator, call.lane)
            if call.closeup is not None:
                context.closeup.renumber(call, entry.seq)
                if call.failed or error is not None:
                    context.closeup.failed(call, call.failed or type(error).__name__)
                else:
                    context.closeup.ended(call, call.left(results), later=False)
            self._emit(call, entry)
        except Exception as error:  # noqa: BLE001  the step guard
            entry = entry or context.outbox.open(call.operator, call.lane)
            text = context.guard.caught(f"event of {call.operator}", error, entry.seq)
            if entry.event is None:
                context.outbox.close(entry, gap(context, entry.seq, call.operator, text, call.lane), ())
        finally:
            if self._launches is not None:
                self._launches.became(call.token, None if entry is None else entry.seq, context.outbox.next_seq - 1)

    def _emit(self, call: Open, entry: Any) -> None:
        context, lane, seq = self.context, call.lane, entry.seq
        if not call.header:
            context.outbox.close(entry, gap(context, seq, call.operator, call.failed, lane), ())
            return
        if call.node is not None:
            lane.link(call.node, seq, call.operator)
            lane.last_node = max(call.node + 1, lane.last_node)
        rows = () if call.failed else [row._replace(seq=seq) for row in call.rows]
        kind = Kind.GAP.value if call.failed else Kind.READ.value if call.tells and not call.made else Kind.OPERATOR.value
        event = event_of(context, lane, call, kind, call.operator, rows, seq, call.failed or call.args_text)
        self._num_events += 1
        context.outbox.close(entry, event, rows)

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """Our own torch code runs in here: unseen by the program's modes and compilers, and by ourselves."""
        here = self._here
        before, here.busy = here.busy, True
        compiler = _set_eval_frame(None)
        try:
            with quiet():
                yield
        finally:
            here.busy = before
            if compiler is not None:
                _set_eval_frame(compiler)

    def tell_boundaries(self, shim: Any, launches: Any) -> None:
        """Say to the launch shim which call is in flight (None: no more), and to the collector of launches which event that became."""
        self._set_boundary, self._launches = None if shim is None else shim.set_boundary, launches

    def stop(self) -> None:
        """Calls pass by from now on; those that still run are gaps."""
        self._stopped = True
        observer = getattr(self.context, "observer", None)
        if observer is not None:
            observer.outside_stopped = True
        self.tell_boundaries(None, None)
        for operator in list(self._in_flight.values()):
            self.context.coverage.gap("still-running-operator", operator, touches_state=True, seq=self.context.outbox.next_seq)

    def report(self) -> dict[str, Any]:
        """What the manifest's ``engines.outside`` says: events, and calls that the operators inside explain; empty without any."""
        observer = getattr(self.context, "observer", None)
        num_launches = 0 if observer is None else observer.num_launches  # of generated kernels, that C++ has observed
        counts = {"events": self._num_events + num_launches, "composite": self._num_composite}
        return {"active": True, **counts} if any(counts.values()) else {}
