"""The native engine: every ATen and custom operator as a boundary event, seen by C++ on the operator's own thread.

The same events as `dispatch`, from a kernel on an unused dispatch key instead of a Python dispatch mode (``observer/``). Python is
entered for what is new (an operator, a stack) and for rare kinds of operator, which the dispatch engine's own code observes on the same
bookkeeping (the slow path); each entry is counted by its reason. It cannot see what a dispatch mode cannot see, either, nor inside a
generated kernel: `compiled` says what becomes of compiled regions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from opguard_core.engines import cells, native_build
from opguard_core.engines.canonical import argument_text
from opguard_core.engines.collectives import Collectives
from opguard_core.engines.deferred import LOST_DIGESTS
from opguard_core.engines.dispatch import DispatchEngine
from opguard_core.engines.modes_off import ModesOff
from opguard_core.engines.native_build import Loaded
from opguard_core.engines.operators import OperatorPlan, OperatorPlans
from opguard_core.engines.protocol import EventSink
from opguard_core.engines.randomness import Generators
from opguard_core.engines.rank import RankContext
from opguard_core.engines.shims import in_place_of
from opguard_core.engines.streams import Streams
from opguard_core.engines.tables import UNINITIALISED_RESULTS
from opguard_core.engines.twin import hand_over, launch_cuda
from opguard_core.engines.weakly import weakly
from opguard_core.fingerprint import cpu
from opguard_core.fingerprint import native as twin
from opguard_core.ids import SENTINEL
from opguard_core.plan.config import AUTO, DISPATCH, NATIVE
from opguard_core.probe import backends
from opguard_core.probe.backends import COMPILED_KERNELS
from opguard_core.probe.promise import LOST, PATIENCE_S

_NoTorchFunction = torch._C.DisableTorchFunction
_set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame


def choose(wanted: str, mode: str, sink: Any) -> Loaded | str:
    """The compiled observer, or why the dispatch engine observes this rank.

    Args:
        wanted: One of ``plan.config.ENGINES``.
        mode: One of ``ids.MODES``.
        sink: Where events go.
    """
    if wanted == DISPATCH:
        return "the dispatch engine was asked for"
    if mode == SENTINEL:
        return "mode sentinel looks at no operator"
    if not hasattr(sink, "pull_from"):
        return "the sink takes rows, not columns"
    if wanted == AUTO and not native_build.card_here():
        return native_build.NO_CARD
    if isinstance(found := cpu.implementation(), twin.NoNative):
        return f"there is no compiled fingerprint: {found.reason}"
    loaded = native_build.load()
    return loaded.reason if isinstance(loaded, native_build.Missing) else loaded


class NativeMode:
    """What observes one thread: the lane and the dispatch key that its operators carry, and that autograd's threads inherit."""

    def __init__(self, module: ModuleType, lane: Any) -> None:
        self._module, self.lane = module, lane
        lane.mode = self

    def push(self) -> None:
        """Observe the calling thread from now on."""
        self._module.carry_lane(self.lane)
        self._module.set_included(True)

    def push_below(self) -> None:
        """As `push`: modes of the program come first anyway."""
        self.push()

    def pop(self) -> None:
        """Stop."""
        self._module.set_included(False)

    def on_top(self) -> bool:
        """Whether the next operator meets us before any mode of the program."""
        return bool(self._module.is_included()) and not torch._C._len_torch_dispatch_stack()


class NativeContext(RankContext):
    """Shared bookkeeping of a rank, its busy parts in C++.

    Args:
        loaded: The compiled observer.
        sink: Where frames, stacks and lifetimes go; pulls events as columns.
        user_root: As `RankContext`; so are the others.
        buffer_bytes: Bound on events that wait for the writer.
    """

    def __init__(
        self,
        loaded: Loaded,
        sink: EventSink,
        user_root: Path,
        *,
        buffer_bytes: int,
        mode: str = "full",
        trusted: frozenset[str] = frozenset(),
        steps: tuple[int, int] | None = None,
        step_offset: int | None = None,
    ) -> None:
        super().__init__(sink, user_root, mode=mode, trusted=trusted, steps=steps, step_offset=step_offset)
        module: Any = loaded.module
        self.loaded = loaded
        self.texts = module.Texts()
        outbox: Any = module.Outbox(self.texts, buffer_bytes, True)
        self.outbox = outbox
        # What Python asked for: results of collectives, tensors taken apart.
        outbox.collect_with(backends.collect, weakly(self._failed_to_collect))
        self.storages = module.Storages(self.outbox)
        self.collectives = Collectives(self.outbox, self.coverage)
        self.fingerprints = _fingerprints(module)
        self.launcher = launch_cuda(self.fingerprints)
        self.probes = module.Probes(
            self.storages,
            self.coverage,
            self.fingerprints,
            carry=not self.verify,
            consume=weakly(self.collectives.consume),
            entered=weakly(self._entered),
            outbox=self.outbox,
        )
        self.progress = module.Progress(steps, step_offset)
        self.lanes = module.Lanes()
        self.native_places = module.Places(self.places)
        self.book = module.StateNames(self.probes)
        self.observer: Any = None  # set by the engine
        self.generators = _Generators(self)
        cells.wait_with(self._wait_for)

    def let_go(self) -> None:
        """At the end: nobody waits for a cell of ours any more, nor needs what Python was asked for."""
        outbox: Any = self.outbox
        outbox.collect_with(None, None)
        cells.wait_with(None)

    def _entered(self, reason: str) -> None:
        self.observer.entered(reason)

    def _failed_to_collect(self, error: BaseException, seq: int | None) -> None:
        self.guard.caught("collect", error, seq)

    def _wait_for(self, cell: Any, timeout_s: float) -> None:
        """Wait a while for a cell, whoever fills it."""
        outbox: Any = self.outbox
        if not outbox.wait_for_promise(cell, timeout_s):
            self.fingerprints.wait(cell.ticket, timeout_s)

    def abandon_in_child(self) -> None:
        """After a fork, in the child: be dead. Operators pass by before they reach any lock of ours."""
        if self.observer is not None:
            self.observer.dead = True
        self.book.settled = False
        super().abandon_in_child()
        self.native_places.new_lock()

    def poll(self) -> None:
        """As `RankContext.poll`: hundreds of storages are freed in a step."""
        if rows := self.storages.poll_packed(self.outbox.next_seq):  # type: ignore[attr-defined]
            self.sink.packed_lifetimes(rows)  # type: ignore[attr-defined]

    def around_modules(self, original: Callable[..., Any], enter: Callable[..., Any], leave: Callable[..., Any]) -> Any:
        """As `RankContext.around_modules`, without Python for a module whose path is known, called inside another."""
        return in_place_of(original, self.loaded.module.ModuleCalls(self.lanes, self.book, enter, leave).around(original))

    def mark(self, operator: str, args: str, phase: str | None) -> bool:
        """As `RankContext.mark`."""
        return bool(self.observer.mark(operator, args, phase or ""))

    @property
    def nodes_to_leave_alone(self) -> bool:
        """Set once a forward made a node whose backward must run without us, see `aside`."""
        return self.observer is not None and bool(self.observer.nodes_to_leave_alone)

    @nodes_to_leave_alone.setter
    def nodes_to_leave_alone(self, there: bool) -> None:
        if getattr(self, "observer", None) is not None:
            self.observer.nodes_to_leave_alone = there


class _Generators(Generators):
    """As `Generators`; C++ reads the states, and takes the digest of one that has not changed from before."""

    def __init__(self, context: NativeContext) -> None:
        super().__init__()
        self._context = context

    def digest(self, generator: Any) -> int | None:
        """As `Generators.digest`."""
        try:
            found: int | None = self._context.observer.digest_of_generator(generator)
        except RuntimeError:  # C++ has nothing that reads memory
            return super().digest(generator)
        return found


def _fingerprints(module: Any) -> Any:
    """What reads the host's memory for C++: the compiled CPU twin."""
    made = module.Fingerprints(module.Cells())
    hand_over(made)
    return made


class _SlowPath(DispatchEngine):
    """The dispatch engine's code for single operators, counted together with those that C++ observes."""

    def __init__(self, context: NativeContext, plans: OperatorPlans) -> None:
        super().__init__(context)
        self._plans = plans

    def _emitted(self) -> None:
        assert isinstance(self.context, NativeContext)
        self.context.observer.emitted()


class NativeEngine:
    """Turns operator calls into events.

    Args:
        context: The rank's shared bookkeeping.
    """

    name = NATIVE

    def __init__(self, context: NativeContext) -> None:
        self.context = context
        self._module: Any = context.loaded.module
        self._plans = OperatorPlans(context.trusted)
        self._slow = _SlowPath(context, self._plans)
        self.streams = context.streams or Streams()
        self._modes_off = ModesOff(self._module, context.coverage)
        self.observer = context.observer = self._module.Observer(
            {
                "texts": context.texts,
                "outbox": context.outbox,
                "storages": context.storages,
                "fingerprints": context.fingerprints,
                "probes": context.probes,
                "places": context.native_places,
                "progress": context.progress,
                "lanes": context.lanes,
                "verify": context.verify,
                "unwritten": sorted(UNINITIALISED_RESULTS),
                "engine": self,
            }
        )

    def start(self) -> None:
        """Operators of observed threads come to us from now on, and events go to the writer as columns."""
        self.context.sink.pull_from(self.context.outbox)  # type: ignore[attr-defined]
        self.observer.start()
        self._modes_off.install()

    def stop(self) -> None:
        """Operators pass through; events that still wait for a device get their digests, or are told to have lost them."""
        self._modes_off.remove()
        self.observer.stop()
        outbox: Any = self.context.outbox
        outbox.wait_for_digests(PATIENCE_S)
        for seq, touches_state in outbox.take_lost_slots():
            self.context.coverage.gap(LOST_DIGESTS, LOST, touches_state=touches_state, seq=seq)
        for _ in range(outbox.num_undeclared_writes):
            self.context.coverage.count("undeclared_writes")
        self.context.let_go()

    def tell_boundaries(self, shim: Any) -> None:
        """Say to the launch shim which event is in flight (None: no more); see `DispatchEngine.tell_boundaries`."""
        self._slow.tell_boundaries(shim)
        self._module.set_boundary_function(0 if shim is None else shim.address("opguard_shim_boundary"))

    def mode(self, lane: Any) -> NativeMode:
        """What will observe a thread."""
        return NativeMode(self._module, lane)

    def observed_here(self) -> bool:
        """Whether the calling thread is observed already, or a mode of the program is in the way."""
        return bool(self._module.is_included()) or torch._C._len_torch_dispatch_stack() > 0

    # Called by C++, with the GIL.

    def make_plan(self, name: str, overload: str) -> OperatorPlan:
        """The plan of an operator; one that we cannot read runs unobserved."""
        try:
            plan = self._slow.plan_of(_overload(name, overload))
            assert plan is not None
            return plan
        except Exception as error:  # noqa: BLE001  the step guard
            self.context.guard.caught(f"schema of {name}", error)
            return self._plans.unreadable(name)

    def wants(self, operator: str) -> bool:
        """Whether this run looks at an operator more closely, which takes the slow path."""
        closeup = self.context.closeup
        return closeup is not None and bool(closeup.wants(operator))

    def argument_text(self, name: str, value: object) -> str:
        """As `canonical.argument_text`."""
        with _NoTorchFunction():
            return argument_text(name, value)

    def name_of_generator(self, generator: Any) -> str:
        """As `randomness.Generators.name`."""
        return self.context.generators.name(generator)

    def number_of_stream(self, device: int, handle: int) -> int:
        """As `streams.Streams.number`."""
        return self.streams.number(device, handle)

    def caught(self, where: str, kind: str, text: str, seq: int | None) -> str:
        """A failure of ours in C++ becomes a counted gap."""
        return self.context.guard.caught(where, type(kind, (Exception,), {})(text), seq)

    def poll(self) -> None:
        """Report storages found freed."""
        self.context.poll()

    def before(self, lane: Any, plan: OperatorPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The slow path, see `DispatchEngine.before`."""
        compiler = _set_eval_frame(None)
        try:
            with _NoTorchFunction():
                return self._slow.before(lane, plan, args, kwargs, sys._getframe().f_back)
        finally:
            if compiler is not None:
                _set_eval_frame(compiler)

    def after(self, lane: Any, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """The slow path, see `DispatchEngine.after`."""
        compiler = _set_eval_frame(None)
        try:
            with _NoTorchFunction():
                self._slow.after(lane, call, args, kwargs, result)
        finally:
            if compiler is not None:
                _set_eval_frame(compiler)

    def raised(self, lane: Any, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any], kind: str) -> None:
        """The slow path, see `DispatchEngine.raised`."""
        with _NoTorchFunction():
            self._slow.raised(lane, call, args, kwargs, type(kind, (Exception,), {})())

    def report(self) -> dict[str, Any]:
        """What goes into the rank manifest's ``engines``."""
        observer, loaded, digested = self.observer, self.context.loaded, self._digested()
        return {
            "active": True,
            "events": observer.num_events + self._slow.num_events,
            "slow_events": self._slow.num_events,
            "delegated_to_subclasses": observer.num_delegated,
            "python": observer.entries(),
            "failures_not_counted": observer.num_uncounted,
            "reads_frames": self._module.Places.reads_frames or self._module.Places.why,
            "build": {"compiler": loaded.compiler, "flags": list(loaded.flags)},
            **({"fingerprint": digested} if digested else {}),
        }

    def _digested(self) -> dict[str, Any]:
        """By kind of device, who digested its tensors later; empty if all were on the host."""
        found = backends.report()
        launcher = self.context.launcher
        if launcher is not None and "cuda" not in found:  # nobody has asked for anything from Python
            told = launcher.report()
            if any(told.values()):
                found["cuda"] = {"backend": launcher.name, "reason": launcher.reason or COMPILED_KERNELS, **told}
        return found


def _overload(name: str, overload: str) -> Any:
    """The Python object of an operator."""
    namespace, _, base = name.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
