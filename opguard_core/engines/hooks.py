"""What happens between operators: modules, backward calls, optimizers, batches, loaded state. Emits markers.

Each callback runs inside the user's step, so each is guarded: a failure of ours is a counted gap, never an exception.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from opguard_core.engines.aside import Aside
from opguard_core.engines.lanes import Lane
from opguard_core.engines.markers import event_here
from opguard_core.engines.names import Names
from opguard_core.engines.outside_lane import is_traced
from opguard_core.engines.places import NO_STACK
from opguard_core.engines.quiet import quiet
from opguard_core.engines.rank import RankContext
from opguard_core.engines.state import StateBoundary
from opguard_core.engines.updates import Updates
from opguard_core.engines.witness import Witness
from opguard_core.ids import Kind, Marker, Phase

_graph_task = torch._C._current_graph_task_id
_grad_enabled = torch.is_grad_enabled
_Callback = TypeVar("_Callback", bound=Callable[..., Any])


def guarded(callback: _Callback) -> _Callback:
    """Turn a failure of one of our callbacks into a counted gap; it then returns None."""

    @functools.wraps(callback)
    def call(self: Hooks, *args: Any) -> Any:
        if self.context.dead:
            return None
        try:
            return callback(self, *args)
        except Exception as error:  # noqa: BLE001  the step guard
            self.context.guard.caught(callback.__name__, error)
            return None

    call._torchdynamo_disable = True  # type: ignore[attr-defined]  # a compiled optimizer step calls it and does not trace it
    return call  # type: ignore[return-value]


class Hooks:
    """Callbacks of one rank, installed by ``patches``.

    Args:
        context: The rank's shared bookkeeping.
        names: Its modules and state.
        follow: Starts to observe the calling thread if that is possible; returns its lane or None.
        witness: Notes facts for the contract; None for none.
        before_first_update: Called once, when the facts of the first optimizer step are known.
        state: Emits the state at the end of a window; None records every tensor of it.
        settle: Told after each step whether the next one is near what is recorded.
    """

    def __init__(
        self,
        context: RankContext,
        names: Names,
        follow: Callable[[], Lane | None],
        witness: Witness | None = None,
        before_first_update: Callable[[], None] | None = None,
        state: StateBoundary | None = None,
        settle: Callable[[bool], None] | None = None,
    ) -> None:
        self.context, self.names, self._follow = context, names, follow
        self.witness, self._before_first_update = witness, before_first_update
        self._updated = False
        self._window_begun = context.storages.tick()
        self._begun: dict[int, int] = {}  # by optimizer, the moment its step began
        self.aside = Aside(context)
        self.updates = Updates(context.progress, names)
        names.book = context.book
        self.state = state or StateBoundary(context, names)
        self._settle = settle
        self._due = ""  # why the window is to end that an update has ended, while another optimizer's is awaited
        self._due_on = 0  # the thread of that update: what others do meanwhile is no next iteration

    def mark(self, marker: Marker, args: str = "", phase: str | None = None) -> None:
        """Emit a marker where the program stands; outside the capture window only the begin and the end of the run."""
        context = self.context
        if not context.progress.wants_state and marker not in (Marker.RUN_BEGIN, Marker.RUN_END):
            return
        if context.mark(marker.value, args, phase):
            return
        entry = context.outbox.open()
        event = event_here(context, entry.seq, Kind.MARKER.value, marker.value, args, phase, sys._getframe(1))
        context.outbox.close(entry, event, ())

    def _lane(self) -> Lane | None:
        return self.context.lanes.current() or self._follow()

    # Modules.

    @guarded
    def enter_module(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A module is called. Cost: about 1 us once its path is known."""
        lane = self._lane()
        if lane is None or not args:
            return None
        module, open_modules = args[0], lane.modules
        above = lane.path
        lane.path = self.names.path(module, open_modules[0] if open_modules else module, above)
        open_modules.append(module)
        if len(open_modules) == 1:
            lane.root_grad = _grad_enabled()
            if lane.root_grad and module.__dict__.get("training") and _graph_task() == -1:
                self.next_iteration()
                self.mark(Marker.TRAIN_FORWARD, f"class={type(module).__name__}")
        if not self._updated and self.witness is not None and lane.root_grad:
            self.witness.enter_module(module, root=len(open_modules) == 1 and bool(module.__dict__.get("training")))
        return lane, above

    @guarded
    def leave_module(self, token: Any, returned: bool) -> None:
        """The call is over, one way or the other."""
        if token is not None:
            lane, lane.path = token
            lane.modules.pop()

    def around_modules(self, original: Callable[..., Any]) -> Any:
        """``Module.__call__`` between `enter_module` and `leave_module`, or what does the same for most calls in C++."""
        return self.context.around_modules(original, self.enter_module, self.leave_module)

    # Backward.

    @guarded
    def enter_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The autograd engine is called with (outputs, gradients, keep_graph, create_graph, …)."""
        lane = self._lane()
        if lane is None or any(map(is_traced, args[0] if isinstance(args[0], (list, tuple)) else args[:1])):
            return None  # a compiler traces what its backward will be
        task = _graph_task()
        if task == -1:
            self.next_iteration()
        stack = self.context.places.of(sys._getframe(1)) if self.context.progress.recording else NO_STACK
        lane.backwards.begin(task, stack[:3])
        lane.create_graph.append(bool(args[3]) if len(args) > 3 else bool(kwargs.get("create_graph")))
        top_level = task == -1
        if top_level:
            self.mark(Marker.BACKWARD_BEGIN, phase=Phase.BACKWARD.value)
        return lane, top_level, self.aside.attach(lane, args[0])

    @guarded
    def leave_backward(self, token: Any, returned: bool) -> None:
        """The engine came back."""
        if token is None:
            return
        lane, top_level, handles = token
        lane.create_graph.pop()
        lane.backwards.end()
        lane.come_back()
        for handle in handles:
            handle.remove()
        if not top_level:
            return
        with quiet():
            self.names.refresh()
            self.context.poll()
        if returned:
            self.mark(Marker.BACKWARD_END, phase=Phase.BACKWARD.value)
            lane.count_microbatch(self.context.progress.window)

    # Optimizers.

    @guarded
    def optimizer_made(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An optimizer is being constructed; its parameters are not known yet."""
        if self._lane() is not None:
            self.updates.meet(args[0])
            self.mark(Marker.OPTIMIZER_INIT, f"class={type(args[0]).__name__}")
        return None

    @guarded
    def optimizer_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Pre-hook of every optimizer's step."""
        if self._lane() is None:
            return
        if _nested(sys._getframe(2)):
            self.updates.steps_inside_another(optimizer)
            return
        with quiet():
            self._first_update(optimizer)
            self.names.adopt_parameters(optimizer)
            self.names.refresh()
            self.names.refresh_optimizer(optimizer)
            self.updates.begin(optimizer)
            self._begun[self.names.optimizer(optimizer)] = self.context.storages.tick()
        if self.updates.has_stepped(optimizer):
            self.next_iteration()
        self.settle()
        self.mark(Marker.OPTIMIZER_BEGIN, f"class={type(optimizer).__name__}", Phase.OPTIMIZER.value)

    def _first_update(self, optimizer: Any) -> None:
        if self._updated:
            return
        self._updated = True
        self.names.settled()
        if self.witness is not None:
            self.witness.before_first_update(optimizer)
        if self._before_first_update is not None:
            self._before_first_update()

    @guarded
    def optimizer_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Post-hook of every optimizer's step."""
        if self._lane() is None or _nested(sys._getframe(2)):
            return
        self._update_ended(optimizer, skipped=False)

    def _update_ended(self, optimizer: Any, *, skipped: bool) -> None:
        with quiet():  # a subclass of the program's may be among the parameters
            if skipped:
                self.updates.weigh(optimizer)  # its step never began
            counted = self.updates.counts(optimizer)
        number, offset = self.names.optimizer(optimizer), self.context.progress.offset
        facts = f"class={type(optimizer).__name__};number={number};counted={counted};resumed={offset};skipped={skipped}"
        self.mark(Marker.SCALER_SKIP if skipped else Marker.OPTIMIZER_END, facts, Phase.OPTIMIZER.value)
        since = self._begun.pop(number, None)
        with quiet():
            if since is not None:
                self.names.forget_unseen(optimizer, since)
            self.names.refresh_optimizer(optimizer)
            if counted:
                self._due, self._due_on = "skipped" if skipped else "update", threading.get_ident()
            if self._due and not self.updates.awaits():
                self._end_window(in_vain=False)
        self.settle()

    def next_iteration(self, *, ends: bool = False) -> None:
        """What only a new iteration has, or the end of the run (``ends``): a window that is due ends here, and has waited in vain."""
        if self._due and (ends or self._due_on == threading.get_ident()):
            with quiet():
                self._end_window(in_vain=True)
            self.settle()

    def settle(self) -> None:
        """The step may have changed: observe operators again, or no more."""
        if self._settle is not None:
            self._settle(self.context.progress.wants_state)

    def _end_window(self, *, in_vain: bool) -> None:
        """Close the window that is due: state boundary, then the counters move. Call inside `quiet`."""
        context, why, self._due = self.context, self._due, ""
        # Code that tells nobody may have written what is only read (buffers, frozen weights): it is looked at once a window.
        since, self._window_begun = self._window_begun, context.storages.tick()
        context.storages.forget_older(since)
        if context.progress.wants_state:
            self.state.emit(why)
        context.storages.forget_gradients()
        context.progress.update_done()
        self.updates.window_ended(in_vain=in_vain)
        if context.launches is not None:
            context.launches.follow(context.progress.recording)
        context.poll()

    @guarded
    def enter_scaler(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``GradScaler.step(optimizer)``: it may leave the update out."""
        optimizer = args[1] if len(args) > 1 else kwargs.get("optimizer")
        return None if optimizer is None or self._lane() is None else (optimizer, self.updates.steps_of(optimizer))

    @guarded
    def leave_scaler(self, token: Any, returned: bool) -> None:
        """An update that did not happen still is a step."""
        if token is not None and returned and self.updates.steps_of(token[0]) == token[1]:
            self._update_ended(token[0], skipped=True)

    # Data and state.

    @guarded
    def enter_fetch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A batch is asked of a DataLoader iterator."""
        if self._lane() is not None:
            self.next_iteration()
            self.mark(Marker.DATA_FETCH, phase=Phase.DATA.value)
        return None

    @guarded
    def enter_loader(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A DataLoader makes an iterator."""
        if self.witness is not None and self._lane() is not None:
            self.witness.enter_loader(args, kwargs)

    @guarded
    def enter_compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A region is declared to be compiled."""
        if self.witness is not None and self._lane() is not None:
            self.witness.enter_compile(args, kwargs)

    @guarded
    def enter_file(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A checkpoint file is loaded."""
        if self.witness is not None and self._lane() is not None:
            self.witness.enter_file(args, kwargs)

    @guarded
    def enter_made(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``Module.__init__``: where calls are not observed, a model is met when it is made."""
        self.names.note(args[0])

    @guarded
    def enter_copy(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``Module.__setstate__``: a module is made by ``copy.deepcopy`` or unpickled."""
        self.names.note(args[0])

    @guarded
    def enter_load(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``load_state_dict`` of a module or an optimizer."""
        if isinstance(args[0], torch.nn.Module):
            self.names.note(args[0])
        if self._lane() is None:
            return None
        self.mark(Marker.LOAD_STATE, f"class={type(args[0]).__name__}", Phase.STATE.value)
        if self.witness is not None:
            self.witness.enter_load(args[0], args, kwargs)
        return args[0]

    @guarded
    def leave_load(self, token: Any, returned: bool) -> None:
        """An optimizer's loaded step count says where a resumed run began."""
        if returned and isinstance(token, torch.optim.Optimizer):
            with quiet():
                self.updates.has_loaded(token)
            self.context.progress.loaded |= not self.context.progress.completed
            self.settle()


def _nested(frame: Any) -> bool:
    """Whether this ``step`` runs inside another one (a wrapper around an optimizer); ``frame`` is the step's own."""
    code, outer = frame.f_code, frame.f_back
    while outer is not None:
        if outer.f_code is code:
            return True
        outer = outer.f_back
    return False


def ignore(token: Any, returned: bool) -> None:
    """Nothing to do when the call is over."""
