"""One rank's capture, from the moment torch is imported to the end of the process.

The only place that wires engines, names, hooks and the trace writer together.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from opguard_core.capture import device_work
from opguard_core.determinism.facts import RankFacts
from opguard_core.engines.callsites import Callsites
from opguard_core.engines.closeup import Closeup
from opguard_core.engines.compiled import CompiledRegions, choose_level
from opguard_core.engines.deferred import DeferredSink
from opguard_core.engines.dispatch import DispatchEngine
from opguard_core.engines.hooks import Hooks
from opguard_core.engines.keeper import Keeper
from opguard_core.engines.kernels import Kernels
from opguard_core.engines.markers import gap
from opguard_core.engines.names import Names
from opguard_core.engines.native import NativeContext, NativeEngine, choose
from opguard_core.engines.outside import OutsideCalls
from opguard_core.engines.patches import Patches
from opguard_core.engines.places import Places
from opguard_core.engines.protocol import EventSink
from opguard_core.engines.quiet import quiet
from opguard_core.engines.rank import RankContext
from opguard_core.engines.reads import Reads
from opguard_core.engines.semantic import Semantic
from opguard_core.engines.sentinel import SentinelState
from opguard_core.engines.shims import hide_from_compiler
from opguard_core.engines.threads import Threads
from opguard_core.engines.transplanter import Transplanter
from opguard_core.engines.witness import Witness
from opguard_core.engines.written_unseen import WrittenUnseen
from opguard_core.errors import CaptureError, OpGuardError
from opguard_core.fingerprint.constants import DEFINITION
from opguard_core.ids import SENTINEL, Marker
from opguard_core.intercept import cupti
from opguard_core.intercept.launches import Collector
from opguard_core.plan.allowlist import TRUSTED
from opguard_core.plan.config import RunConfig
from opguard_core.probe import backends, ending
from opguard_core.trace.writer import TraceWriter

_active: list[Session] = []


class Session:
    """Capture of one rank; made by `start`, ended by `stop` or at exit.

    Args:
        config: What to capture.
        sink: Where rows go; a `TraceWriter` in real runs.
        facts: The comparability contract being gathered.
    """

    def __init__(self, config: RunConfig, sink: EventSink, facts: RankFacts) -> None:
        self.config, self._sink, self._facts = config, sink, facts
        orders: dict[str, Any] = {
            "mode": config.mode,
            "trusted": frozenset(TRUSTED),
            "steps": config.steps,
            "step_offset": config.step_offset,
        }
        observer = choose(config.engine, config.mode, sink)
        self._why_not_native = observer if isinstance(observer, str) else ""
        self._deferred: DeferredSink | None = None
        self.context: RankContext
        self.engine: DispatchEngine | NativeEngine
        if not isinstance(observer, str):
            self.context = NativeContext(observer, sink, config.user_root, buffer_bytes=config.buffer_bytes, **orders)
            self.engine = NativeEngine(self.context)
        else:
            # Where every tensor answers at once, rows go straight to the writer.
            self._deferred = DeferredSink(sink) if backends.any_expected() else None
            self.context = RankContext(self._deferred or sink, config.user_root, **orders)
            if self._deferred is not None:
                self._deferred.count_in(self.context.coverage)
            self.engine = DispatchEngine(self.context)
        # One that falls back must not pass for the other.
        facts.note({"run.observer": SENTINEL if config.mode == SENTINEL else self.engine.name})
        self.outside = OutsideCalls(self.context)
        self.kernels = Kernels(self.outside)
        self.closeup = _closeup(config, self.context)
        self._launches = device_work.watch(self.context, sink, self.engine.streams)
        self._cupti = cupti.obtain(os.environ)
        # A sentinel looks at no operator: no dispatch mode, no names of storages, nothing around a module's call.
        self._watch = config.mode != SENTINEL
        self.names = Names(self.context.storages, label=self._watch)
        self.threads = Threads(self.engine, self.context.lanes, self.context.coverage, watch=self._watch)
        self.hooks = Hooks(
            self.context,
            self.names,
            self.threads.follow,
            witness=Witness(facts),
            before_first_update=self._tell_contract,
            state=None if self._watch else SentinelState(self.context, self.names),
            settle=self.threads.settle if self._watch else None,
        )
        level = choose_level(config.compiled, config.mode, self.engine.name)
        native = self.context.loaded.module if isinstance(self.context, NativeContext) else None
        self.compiled = CompiledRegions(self.context, self.outside, *level, native)
        self.semantic = Semantic(self.context, config.semantic) if self._watch else None
        self.callsites = Callsites(config.callsites if self._watch else (), self.outside, config.user_root)
        self._patches = Patches()
        self._pid = os.getpid()
        self._running = False
        self.engines: dict[str, Any] = {}
        self.coverage: dict[str, Any] = {}

    def begin(self) -> None:
        """Start observing the calling thread and all that follow."""
        hide_from_compiler("opguard_core.")
        if self._watch:
            assert self.semantic is not None
            self.semantic.install(self._patches)
            unseen = WrittenUnseen(self.context, self.outside)
            self._patches.install(self.hooks, Reads(self.context, unseen), unseen, self.compiled)
            self.kernels.install(self._patches)
            self.compiled.start()
        else:
            self._patches.install_for_state(self.hooks)
        self.engine.start()
        if isinstance(self._launches, Collector):
            self._launches.follow(self.context.progress.recording)
            self._launches.start()
            self.context.launches = self._launches
            device_work.tell(self.engine, self._launches)
            self.context.collectives.watch_groups(self._patches)
            self.outside.tell_boundaries(self._launches.shim, self._launches)
        if isinstance(self._cupti, cupti.Subscriber):
            self._cupti.begin_with_the_card()
        self.threads.start(self._patches)
        self.callsites.install()
        self.hooks.settle()
        self._running = True
        config = self.config
        self.hooks.mark(Marker.RUN_BEGIN, f"rank={config.rank};world_size={config.world_size};mode={config.mode}")

    def stop(self, reason: str) -> None:
        """End the capture; a second call does nothing.

        Args:
            reason: "exit", "exception", "signal" or "unknown".
        """
        if not self._running:
            return
        self._running = False
        if os.getpid() != self._pid:
            return  # a forked child: the trace is its parent's
        with contextlib.suppress(ValueError):
            _active.remove(self)
        context = self.context
        try:
            self._wind_up(reason)
        except Exception as error:  # noqa: BLE001  the step guard: the trace is closed whatever happened
            context.guard.caught("end of capture", error)
        if context.outbox.num_late:
            context.coverage.note("operators_ended_after_the_end", context.outbox.num_late)
        if self._deferred is not None:
            self._deferred.close()
        self.engine.stop()
        if self.semantic is not None:
            self.semantic.remove()
        device_work.stop(self.engine, self._launches, self._cupti)
        self.engines = self._reports()
        closer = {} if self.closeup is None else self.closeup.report()
        self.coverage = context.coverage.report()
        if isinstance(self._sink, TraceWriter):
            self._sink.close(
                ended=reason,
                engines=self.engines,
                coverage=self.coverage,
                contract=self._facts.finish(),
                extra={"plan_hash": self.config.plan_hash, "fingerprint_definition": DEFINITION, "start": context.progress.start, **closer},
            )
        atexit.unregister(self._at_exit)

    def _reports(self) -> dict[str, Any]:
        """The manifest's ``engines``: who observed, and what each could not see."""
        engines: dict[str, Any] = {self.engine.name: self.engine.report()} if self._watch else {SENTINEL: {"active": True}}
        if self._watch and self._why_not_native:
            engines[self.engine.name]["why_not_native"] = self._why_not_native
        if self._deferred is not None and (digested := backends.report()):
            for one in engines.values():
                one["fingerprint"] = {**digested, **self._deferred.report()}
        if self._watch and (called := self.outside.report()):
            engines["outside"] = {**called, **self.kernels.report()}
            self._facts.note(self.outside.binaries.facts())
        if rewritten := self.callsites.report():
            engines["callsites"] = rewritten
        if self.semantic is not None and (named := self.semantic.report()):
            engines["semantic"] = named
        if self._watch and (regions := self.compiled.report()):
            engines["compiled"] = regions
            self._facts.note(self.compiled.facts())
        engines.update(device_work.report(self._launches, self._cupti))
        return engines

    def ends_by(self, end: Callable[[OpGuardError], NoReturn]) -> None:
        """Say how the run is ended when what it is for cannot be done."""
        if self.closeup is not None:
            self.closeup.end = end

    @property
    def not_transplanted(self) -> list[int]:
        """Numbers of the transplants asked of this rank that have not been done."""
        return [] if self.closeup is None else [one.number for one in self.closeup.transplanters if not one.done]

    def _wind_up(self, reason: str) -> None:
        context = self.context
        self.callsites.remove()
        self.outside.stop()
        self.threads.stop()
        self.hooks.next_iteration(ends=True)
        with quiet():
            self.names.refresh()
            if context.progress.wants_state:
                self.hooks.state.emit("end")
        self.hooks.mark(Marker.RUN_END, f"reason={reason}")
        # Last: operators that still run on other threads, or below us, would hold back everything that began after them.
        unfinished = context.outbox.finish(lambda entry: gap(context, entry.seq, entry.operator, "still running at the end", entry.lane))
        for entry, touches_state in unfinished:
            context.coverage.gap("still-running-operator", entry.operator, touches_state=touches_state, seq=entry.seq)
        self.kernels.remove()
        self._patches.remove()
        self.compiled.stop()
        for row in context.storages.close():
            self._sink.lifetime(row)

    def _tell_contract(self) -> None:
        """All facts are known: let whoever watches the run compare them while it goes on."""
        backends.collect()
        self._facts.settle()
        if isinstance(self._sink, TraceWriter):
            self._sink.tell_contract(self._facts.contract)

    def _at_exit(self) -> None:
        self.stop("exception" if getattr(sys, "last_value", None) is not None else "exit")

    def abandon_in_child(self) -> None:
        """After a fork, in the child: observe nothing, write nothing, and be out of the way."""
        self.context.abandon_in_child()
        self._running = False
        self.callsites.remove()
        if self.semantic is not None:
            self.semantic.remove()
        self.threads.stop()
        self.kernels.remove()
        self._patches.remove()
        self.compiled.stop()


def _closeup(config: RunConfig, context: RankContext) -> Closeup | None:
    """What this rank was asked about single boundaries; None if nothing.

    Raises:
        ConfigError: The kept file of a transplant lacks a slot.
        TraceFormatError: It is not intact.
    """
    keeper = None if config.keep is None else Keeper(config.keep, config.rank, config.rank_dir, context.coverage)
    transplanters = [Transplanter(number, one) for number, one in enumerate(config.transplants) if one.boundary.rank == config.rank]
    if (keeper is None or not keeper.keys) and not transplanters:
        return None
    if isinstance(context.places, Places):
        context.places.remember_words()
    context.closeup = Closeup(keeper, transplanters, context.places.words)
    context.collectives.keeper = keeper
    return context.closeup


def start(config: RunConfig, *, sink: EventSink | None = None) -> Session:
    """Start capturing this process as one rank.

    Args:
        config: Orders of this rank.
        sink: For tests; None makes the rank's trace writer.

    Raises:
        CaptureError: A capture is running already.
        FlushFailed: The trace folder cannot be written.
    """
    if _active:
        raise CaptureError("A capture is already running in this process.", hint="Stop it before starting another.")
    ending.arm()  # before any exit handler of this capture: devices are closed after it has ended
    facts = RankFacts(config)
    if sink is None:
        sink = TraceWriter(
            config.rank_dir,
            rank=config.rank,
            world_size=config.world_size,
            mode=config.mode,
            buffer_bytes=config.buffer_bytes,
            contract=facts.contract,
        )
    session = Session(config, sink, facts)
    _active.append(session)
    atexit.register(session._at_exit)
    session.begin()
    return session


def _leave_children_alone() -> None:
    """After a fork, in the child."""
    for session in [one for one in _active if one._running]:
        session.abandon_in_child()


if hasattr(os, "register_at_fork"):  # once a process: what is registered there is kept for good
    os.register_at_fork(after_in_child=_leave_children_alone)
