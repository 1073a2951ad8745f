"""Observes every Python thread from its first instruction: what observes operators (a dispatch mode, a dispatch key) is thread-local."""

from __future__ import annotations

import _thread
import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from opguard_core.engines.coverage import Coverage
from opguard_core.engines.dispatch import DispatchEngine
from opguard_core.engines.guard import Guard
from opguard_core.engines.lanes import Lane, Lanes, role_of
from opguard_core.engines.mode import BoundaryMode
from opguard_core.engines.native import NativeEngine, NativeMode
from opguard_core.engines.patches import Patches
from opguard_core.engines.shims import Patch, own


class Threads:
    """Gives each thread its lane and its mode.

    Args:
        engine: What looks at operators.
        lanes: The threads.
        coverage: Where threads that cannot be followed are counted.
        watch: False if operators are not looked at: then a thread gets a lane when a hook meets it, and nothing is replaced.
    """

    def __init__(self, engine: DispatchEngine | NativeEngine, lanes: Lanes, coverage: Coverage, *, watch: bool = True) -> None:
        self._engine, self._lanes, self._coverage, self._watch = engine, lanes, coverage, watch
        self._guard = Guard(coverage)
        self._modes: dict[int, BoundaryMode | NativeMode] = {}
        self.active = False

    def start(self, patches: Patches) -> None:
        """Observe the calling thread, and each thread that starts from now on."""
        self.active = True
        current = threading.current_thread()
        if not self._watch:
            self.observe(role_of(current))
            return
        for thread in threading.enumerate():
            if thread is not current and not _ours(thread):
                self._coverage.gap("thread-not-followed", role_of(thread), touches_state=False)
        self.observe(role_of(current))
        patches.add(threading.Thread, "_bootstrap_inner", self._begins, self._ends)
        patches.keep(Patch(_thread, "start_new_thread", self._raw))
        for name in ("then", "add_done_callback"):
            patches.keep(Patch(torch._C.Future, name, self._callback))

    def observe(self, role: str) -> Lane:
        """Give the calling thread a lane and, if operators are looked at, a mode."""
        lane = self._lanes.enter(role)
        if not self._watch:
            return lane
        mode = self._engine.mode(lane)
        mode.push()
        self._modes[threading.get_ident()] = mode
        return lane

    def follow(self) -> Lane | None:
        """Observe a thread that started before us, if no other mode would be on top of ours in its way."""
        if not self.active or (self._watch and self._engine.observed_here()):
            return None
        thread = threading.current_thread()
        return None if _ours(thread) else self.observe(role_of(thread))

    def settle(self, wanted: bool) -> None:
        """Take the calling thread's mode off while nothing of a capture window is near, and put it back in time.

        Args:
            wanted: Whether the current step, or the next one, is recorded.

        Cost: nothing unless that has just changed. While the mode is off, operators run as they do alone; what they wrote is
        not known, so no digest is carried into the window. Threads that the program started keep theirs.
        """
        mode = self._modes.get(threading.get_ident())
        if mode is None or not self.active or wanted != mode.lane.away:
            return
        if wanted:
            mode.lane.away = False
            self._engine.context.forget_all(mode.lane)
            mode.push_below()
        elif mode.on_top():
            mode.pop()
            mode.lane.away = True

    def stop(self) -> None:
        """Take the calling thread's mode off; the others' pass everything through."""
        self.active = False
        mode = self._modes.pop(threading.get_ident(), None)
        if mode is not None:
            mode.pop()
            mode.lane.muted = True  # inside an operator torch puts the mode back when it is over
        for other in self._modes.values():
            other.lane.muted = True

    def _begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        thread = args[0]
        self._begin(lambda: None if _ours(thread) else role_of(thread))
        return None

    def _begin(self, role: Callable[[], str | None]) -> bool:
        """Observe a thread before the program's function runs on it, unless its role is None. Never raises."""
        try:
            name = role() if self.active else None
            return name is not None and self.observe(name) is not None
        except Exception as error:  # noqa: BLE001  the step guard
            self._guard.caught("start of a thread", error)
            return False

    def _ends(self, token: Any, returned: bool) -> None:
        mode = self._modes.pop(threading.get_ident(), None)
        if mode is not None:
            mode.pop()

    def _callback(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``Future.then`` and its like: the callback may run on a thread that C++ started (a communication hook's)."""

        @functools.wraps(original)
        def register(future: Any, callback: Any) -> Any:
            @functools.wraps(callback)
            def observed(*args: Any) -> Any:
                joined = self._begin(lambda: None if self._lanes.current() else "Thread:Future.then")
                try:
                    return callback(*args)
                finally:
                    if joined:
                        self._ends(None, True)
                        self._lanes.leave()

            return original(future, own(observed) if callable(callback) else callback)

        return own(register)

    def _raw(self, original: Callable[..., int]) -> Callable[..., int]:
        """``_thread.start_new_thread``, which some programs call without ``threading``."""

        @functools.wraps(original)
        def start_new_thread(function: Any, args: Any, *rest: Any) -> int:
            @functools.wraps(function)
            def observed(*inner: Any, **named: Any) -> Any:
                self._begin(lambda: f"Thread:{getattr(function, '__qualname__', type(function).__qualname__)}")
                try:
                    return function(*inner, **named)
                finally:
                    self._ends(None, True)

            return original(own(observed) if callable(function) else function, args, *rest)

        return own(start_new_thread)


def _ours(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)
    return str(getattr(target, "__module__", "")).startswith("opguard_core.")
