"""Close a rank's session however its process ends, without changing how it ends.

exit, sys.exit, exception  ``atexit``; an uncaught exception is known by ``sys.last_type``
os._exit                   the function is replaced; it closes the session and goes on to the real one
SIGTERM                    see ``Termination``
fork                       the child forgets the session and tells the launcher who it is
kill -9, a crash           nothing can run; the trace keeps what was written

What it cannot do: close the session when a signal handler of the program calls ``os._exit`` while it interrupts our own
code, whose locks the interrupted thread still holds. The trace is torn then, as after kill -9.
"""

from __future__ import annotations

import _thread
import atexit
import functools
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn, Protocol

from opguard_core.launch.termination import Termination

MAX_FORKS_TOLD = 256
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120 - compared with code file names


class Stoppable(Protocol):
    """What of a capture session is needed here."""

    def stop(self, reason: str) -> object:
        """End capture; reason is one of the rank manifest's ``ended`` words."""


def inside_ours(frame: FrameType | None) -> bool:
    """Whether code of ours is on the stack that ends in ``frame``."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_OURS):
            return True
        frame = frame.f_back
    return False


class Ending:
    """Watches one process for its end.

    Args:
        session: Stopped once.
        ended: Called after the stop with how the program ended and what went wrong with stopping ("" if nothing).
        forked: Called in every forked child (the first ``MAX_FORKS_TOLD``).
    """

    def __init__(self, session: Stoppable, *, ended: Callable[[str, str], None], forked: Callable[[], None]) -> None:
        self._session = session
        self._ended = ended
        self._forked = forked
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._closed = False
        self._armed = True  # in the watched process, not in its children
        self._num_forks = 0
        self._last_type = getattr(sys, "last_type", None)
        self._termination = Termination(self._stop_for_signal, may_stop=lambda frame: not inside_ours(frame))

    def watch(self) -> None:
        """Install everything; once, after the session has started."""
        atexit.register(self._at_exit)
        real = os._exit

        @functools.wraps(real)
        def _exit(status: int) -> NoReturn:
            self._at_os_exit(sys._getframe(1))
            real(status)

        os._exit = _exit
        self._termination.arm()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before_fork, after_in_parent=self._after_fork_in_parent, after_in_child=self._after_fork_in_child
            )

    def _stop(self, reason: str) -> None:
        with self._lock:
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
            problem = ""
            try:
                self._session.stop(reason)
            except Exception as error:  # noqa: BLE001 - the tool's edge: the program has ended and must end as it would have
                problem = f"{type(error).__name__}: {error}"
            self._ended(reason, problem)

    def finish_recording(self) -> None:
        """Close the session although the program goes on; what it does from now on is not observed."""
        self._stop("exit")

    def _at_exit(self) -> None:
        self._stop(self._reason())
        self._termination.finish()

    def _reason(self) -> str:
        """How the interpreter came to its end, as far as it can be known when exit handlers run."""
        last = getattr(sys, "last_type", None)
        if last is None or last is self._last_type:
            return "exit"
        return "signal" if issubclass(last, KeyboardInterrupt) else "exception"

    def _at_os_exit(self, frame: FrameType) -> None:
        on_main = _thread.get_ident() == threading.main_thread().ident
        if os.getpid() == self._pid and not (on_main and inside_ours(frame)):
            self._stop("exit")

    def _stop_for_signal(self) -> None:
        self._stop("signal")

    def _before_fork(self) -> None:
        if os.getpid() == self._pid:
            self._num_forks += 1
            self._termination.pause()

    def _after_fork_in_parent(self) -> None:
        if os.getpid() == self._pid:
            self._termination.resume()

    def _after_fork_in_child(self) -> None:
        if not self._armed:  # a child of a child
            return
        self._armed = False
        self._lock = threading.RLock()
        self._termination.forget()
        if self._num_forks <= MAX_FORKS_TOLD:
            self._forked()
