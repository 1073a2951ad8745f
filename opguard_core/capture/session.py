"""One rank's capture, from the moment torch is imported to the end of the process.

The only place that wires engines, names, hooks and the trace writer together.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref
from typing import Any

from opguard_core.determinism.facts import RankFacts
from opguard_core.engines.compiled import CompiledRegions
from opguard_core.engines.dispatch import DispatchEngine
from opguard_core.engines.hooks import Hooks
from opguard_core.engines.markers import gap
from opguard_core.engines.names import Names
from opguard_core.engines.patches import Patches
from opguard_core.engines.protocol import EventSink
from opguard_core.engines.quiet import quiet
from opguard_core.engines.rank import RankContext
from opguard_core.engines.reads import Reads
from opguard_core.engines.sentinel import SentinelState
from opguard_core.engines.shims import hide_from_compiler
from opguard_core.engines.threads import Threads
from opguard_core.engines.witness import Witness
from opguard_core.errors import CaptureError
from opguard_core.fingerprint.constants import DEFINITION
from opguard_core.ids import SENTINEL, Marker
from opguard_core.plan.allowlist import TRUSTED
from opguard_core.plan.config import RunConfig
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
        self.context = RankContext(
            sink,
            config.user_root,
            mode=config.mode,
            trusted=frozenset(TRUSTED),
            steps=config.steps,
            step_offset=config.step_offset,
        )
        self.engine = DispatchEngine(self.context)
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
        self.compiled = CompiledRegions(self.context.coverage)
        self._patches = Patches()
        self._pid = os.getpid()
        self._running = False
        self.engines: dict[str, Any] = {}
        self.coverage: dict[str, Any] = {}

    def begin(self) -> None:
        """Start observing the calling thread and all that follow."""
        hide_from_compiler("opguard_core.")
        if self._watch:
            self._patches.install(self.hooks, Reads(self.context), self.compiled)
        else:
            self._patches.install_for_state(self.hooks)
        self.threads.start(self._patches)
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
        self.engines = {self.engine.name: self.engine.report()} if self._watch else {SENTINEL: {"active": True}}
        self.coverage = context.coverage.report()
        if isinstance(self._sink, TraceWriter):
            self._sink.close(
                ended=reason,
                engines=self.engines,
                coverage=self.coverage,
                contract=self._facts.finish(),
                extra={"plan_hash": self.config.plan_hash, "fingerprint_definition": DEFINITION, "start": context.progress.start},
            )
        atexit.unregister(self._at_exit)

    def _wind_up(self, reason: str) -> None:
        context = self.context
        self.threads.stop()
        with quiet():
            self.names.refresh()
            if context.progress.wants_state:
                self.hooks.state.emit("end")
        self.hooks.mark(Marker.RUN_END, f"reason={reason}")
        # Last: operators that still run on other threads, or below us, would hold back everything that began after them.
        unfinished = context.outbox.finish(lambda entry: gap(context, entry.seq, entry.operator, "still running at the end", entry.lane))
        for entry, touches_state in unfinished:
            context.coverage.gap("still-running-operator", entry.operator, touches_state=touches_state, seq=entry.seq)
        self._patches.remove()
        self.compiled.stop()
        for row in context.storages.close():
            self._sink.lifetime(row)

    def _tell_contract(self) -> None:
        """All facts are known: let whoever watches the run compare them while it goes on."""
        if isinstance(self._sink, TraceWriter):
            self._sink.tell_contract(self._facts.contract)

    def _at_exit(self) -> None:
        self.stop("exception" if getattr(sys, "last_value", None) is not None else "exit")

    def abandon_in_child(self) -> None:
        """After a fork, in the child: observe nothing, write nothing, and be out of the way."""
        self.context.abandon_in_child()
        self._running = False
        self.threads.stop()
        self._patches.remove()
        self.compiled.stop()


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
    _leave_children_alone(session)
    return session


def _leave_children_alone(session: Session) -> None:
    reference = weakref.ref(session)

    def after_in_child() -> None:
        ours = reference()
        if ours is not None and ours._running:
            ours.abandon_in_child()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=after_in_child)
