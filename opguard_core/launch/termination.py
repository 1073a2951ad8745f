"""Close the trace on SIGTERM in a program that leaves SIGTERM alone, without the program being able to tell.

A Python handler would show in ``signal.getsignal`` and change programs that chain or probe handlers. ``faulthandler``
has handlers of its own, below Python's table: one of these writes a stack dump into a pipe of ours. Whoever reads the
pipe stops the session, takes the handler away and sends SIGTERM again, which then kills as it always would.

Two readers, the first one wins:
- a thread, which also works while the main thread is inside a long C call;
- on Linux the kernel answers the write with a real-time signal (``F_SETSIG``) whose Python handler runs on the main thread
  before its next bytecode, so a program that sends SIGTERM to itself does not get any further than it would without us.

A program that installs its own SIGTERM handler, before or after, replaces all of this. What it cannot do: end a process
whose main thread never gives up the interpreter lock; there SIGKILL is needed where SIGTERM would have done.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import select
import signal
import threading
import time
from _thread import get_ident, start_new_thread  # as they are before capture observes every new thread
from collections.abc import Callable
from types import FrameType

PATIENCE_S = 20.0  # torchrun kills its workers 30 s after it has asked them to end


class Termination:
    """SIGTERM of one process.

    Args:
        stop: Stops the session; callable on any thread.
        may_stop: Whether the main thread may stop the session when it was interrupted in this frame; it may not while
            code of ours is on its stack, since that may hold the session's locks.
    """

    def __init__(self, stop: Callable[[], None], *, may_stop: Callable[[FrameType | None], bool]) -> None:
        self._stop = stop
        self._may_stop = may_stop
        self._pid = os.getpid()
        self._armed = False
        self._paused = False
        self._came = False
        self._wake_signal: int | None = None
        self._reader = self._writer = -1

    def arm(self) -> None:
        """Watch for SIGTERM if it has its default effect; else do nothing."""
        if not hasattr(faulthandler, "register") or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            return
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._wake_main_thread()
        self._register()
        start_new_thread(self._wait, ())

    def _wake_main_thread(self) -> None:
        """Have the kernel interrupt the main thread when the pipe fills."""
        if not hasattr(fcntl, "F_SETSIG") or get_ident() != threading.main_thread().ident:
            return
        free = [number for number in range(signal.SIGRTMAX - 2, signal.SIGRTMIN, -1) if signal.getsignal(number) == signal.SIG_DFL]
        if not free:
            return
        self._wake_signal = free[0]
        signal.signal(self._wake_signal, self._on_wake)
        fcntl.fcntl(self._reader, fcntl.F_SETOWN, self._pid)
        fcntl.fcntl(self._reader, fcntl.F_SETSIG, self._wake_signal)
        fcntl.fcntl(self._reader, fcntl.F_SETFL, fcntl.fcntl(self._reader, fcntl.F_GETFL) | os.O_ASYNC)

    def _register(self) -> None:
        # The kernel gives the signal to the main thread unless that one blocks it; then it may meet a thread without Python, of which
        # alone nothing would be written. A dump of all threads also reads frames that another one is just leaving: that can crash.
        elsewhere = get_ident() != threading.main_thread().ident or signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        faulthandler.register(signal.SIGTERM, file=self._writer, all_threads=elsewhere, chain=False)
        self._armed = True

    def _ours(self) -> bool:
        """Whether SIGTERM still is as we left it; a program's own handler must not be undone."""
        return self._armed and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

    def _wait(self) -> None:
        """The thread: wait for the first byte."""
        os.read(self._reader, 1)
        self._came = True
        self._terminate()

    def _on_wake(self, number: int, frame: FrameType | None) -> None:
        """On the main thread, between two bytecodes."""
        came = self._came or (self._pid == os.getpid() and bool(select.select([self._reader], [], [], 0)[0]))
        if came and self._may_stop(frame):
            self._came = True
            self._terminate()

    def _terminate(self) -> None:
        with contextlib.suppress(RuntimeError):  # no more threads while the interpreter ends
            start_new_thread(self._lose_patience, ())
        self._stop()
        self._die()

    def _lose_patience(self) -> None:
        time.sleep(PATIENCE_S)
        self._die()

    def _die(self) -> None:
        if self._ours():
            faulthandler.unregister(signal.SIGTERM)
            self._armed = False
        os.kill(self._pid, signal.SIGTERM)

    def finish(self) -> None:
        """The interpreter is about to end: if SIGTERM came, let that be the end."""
        if self._came and os.getpid() == self._pid:
            self._die()

    def pause(self) -> None:
        """Before a fork: between fork and ``forget`` the child must not write into our pipe."""
        if self._ours():
            faulthandler.unregister(signal.SIGTERM)
            self._armed, self._paused = False, True

    def resume(self) -> None:
        """After a fork, in the parent."""
        if self._paused and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._register()
        self._paused = False

    def forget(self) -> None:
        """After a fork, in the child: SIGTERM has its default effect again, and none on the parent."""
        self._armed = self._paused = self._came = False
        if self._wake_signal is not None:
            signal.signal(self._wake_signal, signal.SIG_DFL)
            self._wake_signal = None
        for descriptor in (self._reader, self._writer):
            if descriptor >= 0:
                os.close(descriptor)
        self._reader = self._writer = -1
