"""Semantic boundaries: calls and values that the program or an order names (``marks``, ``plan.semantic``).

Emits ``Kind.SEMANTIC`` events: one at the entry of a call, one at its exit, one for a named value, and one for each gradient that comes
back to a tensor of these. Their slots are read, never written: no such event is a producer or a consumer of anything, so the operators
between are judged as if it were not there. A gradient is that of the whole tensor, from everything that read it.

Cannot see: gradients of leaves, tensors inside objects that are no list, tuple or dict, what runs inside a compiled graph (see
``semantic_op``), and modules whose path no hook has told (mode sentinel).
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch

from opguard_core import marks
from opguard_core.engines import semantic_op
from opguard_core.engines.imports import WhenImported
from opguard_core.engines.kinds import is_plain, parts_of
from opguard_core.engines.lanes import Lane
from opguard_core.engines.markers import event_here, gap
from opguard_core.engines.patches import Patches
from opguard_core.engines.phases import phase_of
from opguard_core.engines.quiet import quiet
from opguard_core.engines.rank import RankContext
from opguard_core.engines.shims import Patch, telling
from opguard_core.ids import Kind, Phase
from opguard_core.plan.semantic import FunctionPattern, ModulePattern, identifier, parse_all
from opguard_core.probe.promise import TOGETHER
from opguard_core.probe.tensor import Unreadable
from opguard_core.trace.schema import SlotRow

GRAPH_CALLS = 256  # calls of a name inside compiled graphs whose gradients may still come
MAX_TENSORS = 64  # of one entry or exit
_MAX_VALUES = 512  # looked at in search of them
_graph_task = torch._C._current_graph_task_id
Tensors = list[tuple[str, torch.Tensor]]


class Token(NamedTuple):
    """An open call: the event of its entry, its name, the thread, the module around it, the phase; whether it is a module's own call."""

    seq: int
    name: str
    lane: Lane
    module: str
    phase: str
    of_module: bool = False


class Semantic:
    """Semantic boundaries of one rank; the observer of ``marks``.

    Args:
        context: The rank's shared bookkeeping.
        orders: Patterns of ``plan.semantic``.
    """

    def __init__(self, context: RankContext, orders: Iterable[str] = ()) -> None:
        self._context = context
        patterns = parse_all(orders)
        self._modules = [one for one in patterns if isinstance(one, ModulePattern)]
        self._functions = [one for one in patterns if isinstance(one, FunctionPattern)]
        self._names: dict[str, str] = {}  # by module path, "" where no pattern fits
        self._matched: Counter[str] = Counter({one.text: 0 for one in patterns})
        self._by_path: dict[str, str] = {}  # the pattern that named a path
        self._calls: Counter[str] = Counter()
        self._problems: dict[str, str] = {}
        self._waiting: list[WhenImported] = []
        self._local = threading.local()  # `paths` of the named modules that are being called on a thread
        self._in_graphs: dict[str, deque[tuple[Token, set[str]]]] = {}  # by name, calls inside compiled graphs, and what was told of them
        self.num_events = 0

    # What is observed.

    def install(self, patches: Patches) -> None:
        """Observe what is named, and put shims around what the orders name.

        Before anything else is put around a module's call, so that its path is known by then.
        """
        semantic_op.tell(self.in_graph)
        marks.observe(self, semantic_op.InGraph, torch.compiler.is_compiling)
        if self._modules:
            patches.keep(Patch(torch.nn.Module, "__call__", functools.partial(self._around, enter=self._enter_module)))
        for pattern in self._functions:
            waiting = WhenImported(pattern.module, functools.partial(self._add_function, patches, pattern))
            self._waiting.append(waiting)
            waiting.watch()

    def remove(self) -> None:
        """Observe no more; the shims go with the patches."""
        semantic_op.tell(None)
        marks.observe(None)
        for waiting in self._waiting:
            waiting.stop()

    def _add_function(self, patches: Patches, pattern: FunctionPattern, module: ModuleType) -> None:
        owner: Any = module
        *path, name = pattern.qualname.split(".")
        for part in path:
            owner = getattr(owner, part, None)
        found = vars(owner).get(name) if owner is not None and hasattr(owner, "__dict__") else None
        if not isinstance(found, FunctionType):
            self._problems[pattern.text] = f"{pattern.module} has no function {pattern.qualname}"
            return
        patches.keep(Patch(owner, name, functools.partial(self._around, enter=functools.partial(self._enter_function, pattern))))

    def _around(self, original: Callable[..., Any], *, enter: Callable[[tuple[Any, ...], dict[str, Any]], Token | None]) -> Any:
        def ended(token: Token | None, result: Any, error: BaseException | None) -> None:
            if error is None:
                self.leave(token, result)
            else:
                self.raised(token, error)

        return telling(original, enter, ended)

    def _enter_module(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Token | None:
        """A module is called. Cost: about 0.3 us where no pattern fits its path."""
        lane = self._context.lanes.current()
        if lane is None:
            return None
        path = lane.path
        name = self._names.get(path)
        if name is None:
            name = self._names[path] = self._name_of(path)
        if not name:
            return None
        paths: list[str] = self._local.__dict__.setdefault("paths", [])
        if paths and paths[-1] == path:
            return None  # a wrapper has the name of what it wraps: one call
        token = self.enter(name, args, kwargs)
        if token is None:
            return None
        self._matched[self._by_path[path]] += 1
        paths.append(path)
        return token._replace(of_module=True)

    def _name_of(self, path: str) -> str:
        for pattern in self._modules:
            name = pattern.named(path)
            if name is not None:
                self._by_path[path] = pattern.text
                return name
        return ""

    def _enter_function(self, pattern: FunctionPattern, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Token | None:
        self._matched[pattern.text] += 1
        return self.enter(pattern.name, args, kwargs)

    # Called by `marks` and by the shims; nothing raises.

    def enter(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Token | None:
        """A named call begins. Cost: as of an operator that reads its tensors, and a hook for each that has a gradient."""
        if isinstance(args[0], torch.nn.Module) if args else False:
            args = args[1:]
        token = self._event(name, "at=enter", lambda: [*_walk("in", args), *_walk("kw", kwargs)])
        if token is not None:
            self._calls[name] += 1
        return token

    def leave(self, token: Token | None, result: Any) -> None:
        """It has returned."""
        if token is not None:
            self._over(token)
            self._event(token.name, "at=exit", lambda: list(_walk("out", result if _is_container(result) else (result,))), token)

    def raised(self, token: Token | None, error: BaseException) -> None:
        """It has raised."""
        if token is not None:
            self._over(token)
            self._event(token.name, f"at=exit;raised={type(error).__name__}", list, token)

    def _over(self, token: Token) -> None:
        if token.of_module and (paths := self._local.__dict__.get("paths")):
            paths.pop()

    def probe(self, name: str, value: Any) -> None:
        """A value is named."""
        name = identifier(name if isinstance(name, str) else type(name).__name__)
        if self._event(name, "at=probe", lambda: list(_walk("in", value if _is_container(value) else (value,)))) is not None:
            self._calls[name] += 1

    def in_graph(self, name: str, at: str, slot: str, tensor: torch.Tensor) -> None:
        """A compiled graph passes one tensor of a named call, see ``semantic_op``; its tensors come one by one, in order.

        A call begins with an entry, or a value, whose slot the newest call of that name has had; a gradient belongs to the newest
        call that lacks it.
        """
        calls = self._in_graphs.setdefault(name, deque(maxlen=GRAPH_CALLS))
        mark = f"{at} {slot}"
        token = None
        if at in ("enter", "probe"):
            newest = calls[-1] if calls else None
            if newest is not None and not any(told == mark or told.startswith(("exit", "grad")) for told in newest[1]):
                token = newest[0]
        else:
            token = next((one for one, told in reversed(calls) if mark not in told), None)
        made = self._event(name, f"at={at};compiled", lambda: [(slot, tensor)], token, follow=False)
        if made is not None and token is None:
            calls.append((made, {mark}))
            self._calls[name] += 1
        elif made is not None:
            next(told for one, told in reversed(calls) if one is token).add(mark)

    # Events.

    def _event(self, name: str, args: str, find: Callable[[], Tensors], token: Token | None = None, *, follow: bool = True) -> Token | None:
        context, lane = self._context, self._context.lanes.current()
        if context.dead or lane is None or lane.muted or not context.progress.recording:
            return None
        try:
            with torch._C.DisableTorchFunction():
                tensors = find()
                phase = self._phase(lane, tensors, sys._getframe(1)) if token is None else token.phase
                if args.startswith("at=grad"):
                    phase = Phase.BACKWARD.value
        except Exception as error:  # noqa: BLE001  the step guard
            context.guard.caught(f"semantic boundary {name}", error)
            return None
        opened = self._emit(name, args, tensors, lane, phase, None if token is None else token.seq)
        if opened is None:
            return None
        made = token or Token(opened, name, lane, lane.path, phase)
        if follow:
            self._follow(made, tensors)
        return made

    def _emit(
        self,
        name: str,
        args: str,
        tensors: Tensors,
        lane: Lane,
        phase: str,
        call: int | None,
        module: str | None = None,
    ) -> int | None:
        """One event; returns its number, None if it could not be made."""
        context = self._context
        entry = context.outbox.open(name, lane)
        rows: list[SlotRow] = []
        try:
            with quiet():
                with TOGETHER:
                    for path, tensor in tensors:
                        if is_plain(tensor) or not isinstance(parts_of(tensor), Unreadable):  # no gap: an operator would have it
                            context.probes.input(rows, entry.seq, path, tensor, consume=False)
                event = event_here(context, entry.seq, Kind.SEMANTIC.value, name, args, phase, sys._getframe(1), lane)
            task = _graph_task()
            if event.user_frame is None and task != -1 and (place := lane.backwards.place(task)) is not None:
                stack, user, library = place
                event = event._replace(
                    stack=stack if event.stack is None else event.stack,
                    user_frame=user,
                    library_frame=library if event.stack is None else event.library_frame,
                )
            event = event._replace(forward_seq=call, module=event.module if module is None else module)
            context.outbox.close(entry, event, rows)
        except Exception as error:  # noqa: BLE001  the step guard
            text = context.guard.caught(f"semantic boundary {name}", error, entry.seq)
            if entry.event is None:
                context.outbox.close(entry, gap(context, entry.seq, name, text, lane), ())
            return None
        self.num_events += 1
        return int(entry.seq)

    def _phase(self, lane: Lane, tensors: Tensors, frame: FrameType | None) -> str:
        """As of an operator that reads these tensors."""
        context, grad_enabled = self._context, torch.is_grad_enabled()
        situation = context.places.of(frame).situation
        phase = phase_of(situation, lane, grad_enabled=grad_enabled, in_graph_task=_graph_task() != -1)
        if phase is not None:
            return phase
        touches = any(context.touches_training(tensor, grad_enabled=grad_enabled) for _, tensor in tensors if is_plain(tensor))
        return (Phase.FORWARD.value if grad_enabled else Phase.OPTIMIZER.value) if touches else Phase.DATA.value

    # Gradients.

    def _follow(self, token: Token, tensors: Tensors) -> None:
        """Look at the gradient of each tensor when it comes; nothing is kept alive by that, and no tensor shows it."""
        try:
            with torch._C.DisableTorchFunction():
                for path, tensor in tensors:
                    node = tensor.grad_fn if tensor.requires_grad and is_plain(tensor) else None
                    if node is not None:
                        look = functools.partial(self._gradient, token, f"grad_{path}", tensor.output_nr)
                        self._context.gradient_hooks.append(node.register_prehook(look))
        except Exception as error:  # noqa: BLE001  the step guard
            self._context.guard.caught(f"gradients of {token.name}", error)

    def _gradient(self, token: Token, path: str, position: int, gradients: tuple[Any, ...]) -> None:
        """Pre-hook of the node that made a tensor: its gradient is complete."""
        context = self._context
        try:
            gradient = gradients[position] if position < len(gradients) else None
            if gradient is None or context.dead or token.lane.muted or not context.progress.recording:
                return
            self._emit(token.name, "at=grad", [(path, gradient)], token.lane, Phase.BACKWARD.value, token.seq, token.module)
        except Exception as error:  # noqa: BLE001  the step guard
            context.guard.caught(f"gradient of {token.name}", error)

    def report(self) -> dict[str, Any]:
        """What goes into the rank manifest's ``engines``; empty if nothing was named and nothing asked for."""
        if not self.num_events and not self._matched:
            return {}
        patterns: dict[str, Any] = {text: {"calls": count} for text, count in self._matched.items()}
        for text, why in self._problems.items():
            patterns[text]["why"] = why
        return {"active": True, "events": self.num_events, "names": len(self._calls), "calls": self._calls.total(), "patterns": patterns}


def _is_container(value: object) -> bool:
    return isinstance(value, list | tuple | dict)


def _walk(prefix: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of plain containers in their order; no method that a program may have overridden is called."""
    found = looked = 0
    open_values: list[tuple[str, Any]] = [(prefix, value)]
    while open_values and found < MAX_TENSORS and looked < _MAX_VALUES:
        path, one = open_values.pop()
        looked += 1
        if isinstance(one, torch.Tensor):
            found += 1
            yield path, one
        elif isinstance(one, dict):
            inner = [(key, item) for key, item in dict.items(one) if isinstance(key, str | int)]
            open_values += [(f"{path}.{key}", item) for key, item in reversed(inner)]
        elif isinstance(one, list | tuple):
            items = list.__iter__(one) if isinstance(one, list) else tuple.__iter__(one)
            open_values += [(f"{path}.{index}", item) for index, item in reversed(list(enumerate(items)))]
