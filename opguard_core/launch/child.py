"""Start the program, pass signals on to it, wait for it.

At a terminal the program stays in our process group, so that Ctrl-C, Ctrl-Z and reading from the terminal work as they
would without us; the terminal itself then sends its signals to the program. Everywhere else the program leads a process
group of its own, and whatever signal reaches us is sent to that group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from opguard_core.errors import LaunchFailed

_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
GRACE_S = 5.0  # what is left of the group after a signal has that long to end
_POLL_S = 0.05
_PROC = Path("/proc")
_ENDED = "ZX"  # states of a process that waits to be waited for


@dataclass(frozen=True)
class Exit:
    """How the program ended.

    Attributes:
        code: Exit code, or None if a signal ended it.
        signal: Number of that signal, or None.
        told: Number of the last signal that was sent to us meanwhile, or None.
        over: Whether we ended it: everything that was asked for was recorded, or nobody waits for it. It has neither code nor signal.
    """

    code: int | None
    signal: int | None
    told: int | None
    over: bool = False

    @property
    def status(self) -> int:
        """What a shell would say: the code, or 128 + the signal."""
        if self.over:
            return 0
        return self.code if self.code is not None else 128 + (self.signal or 0)


class _Forwarder:
    """Signal handlers while the program runs."""

    def __init__(self, *, own_group: bool) -> None:
        self.told: int | None = None
        self._own_group = own_group
        self._pid: int | None = None
        self._early: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Forwarder:
        for name in _FORWARDED:
            number = getattr(signal, name)
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup asked not to hear of it, and the program inherits that
                self._before[number] = signal.signal(number, self._forward)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def started(self, pid: int) -> None:
        """The program runs; pass on what came before."""
        self._pid = pid
        for number in self._early:
            self._send(number)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self.told = number
        if self._pid is None:
            self._early.append(number)
        elif self._own_group or number not in (signal.SIGINT, signal.SIGQUIT):
            self._send(number)

    def _send(self, number: int) -> None:
        assert self._pid is not None
        with contextlib.suppress(ProcessLookupError):
            if self._own_group:
                os.killpg(self._pid, number)
            else:
                os.kill(self._pid, number)


def at_terminal() -> bool:
    """Whether we are the foreground job of a terminal that we read from."""
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def run_child(argv: Sequence[str], env: Mapping[str, str], *, over: Callable[[], Sequence[int] | None] | None = None) -> Exit:
    """Run the program to its end, or until it has done what was asked for.

    Args:
        argv: Program and arguments, started as they are.
        env: Its whole environment.
        over: Called several times a second; once it returns process numbers, the program and these are ended, whether or not it has
            finished.

    Raises:
        LaunchFailed: The operating system cannot start it.
    """
    own_group = not at_terminal()
    group: dict[str, Any] = {}
    if own_group:
        group = {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}
    with _Forwarder(own_group=own_group) as forwarder:
        try:
            # Descriptors that were passed to us are passed on; our own close by themselves on exec.
            process = subprocess.Popen(list(argv), env=dict(env), close_fds=False, **group)
        except OSError as error:
            raise LaunchFailed(
                f"{argv[0]} cannot be started: {error.strerror}.", hint="Check that the command exists and may be executed."
            ) from error
        forwarder.started(process.pid)
        others = None if over is None else _wait_until(process, over)
        if others is not None:
            _end(process, others, own_group=own_group)
            return Exit(None, None, forwarder.told, over=True)
        returned = process.wait()
        if own_group and forwarder.told is not None:
            _end_group(process.pid)
    code, number = (returned, None) if returned >= 0 else (None, -returned)
    return Exit(code, number, forwarder.told)


def _wait_until(process: subprocess.Popen[bytes], over: Callable[[], Sequence[int] | None]) -> Sequence[int] | None:
    """Wait until the program ends (None), or is to be ended: then the processes that must end with it."""
    while True:
        try:
            process.wait(_POLL_S)
            return None
        except subprocess.TimeoutExpired:
            others = over()
        if others is not None:
            return others


def _end(process: subprocess.Popen[bytes], others: Sequence[int], *, own_group: bool) -> None:
    """End a program and others with it: SIGTERM, then SIGKILL, until nothing of them is left."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            if own_group:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline:
            ended = process.poll() is not None
            if ended and not any(alive(pid) for pid in others) and not (own_group and _group_lives(process.pid)):
                return
            time.sleep(_POLL_S)
    process.wait()


def _end_group(group: int) -> None:
    """After an interrupt: SIGTERM, then SIGKILL, until nothing of the group is left."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not _group_lives(group):
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)
        deadline = time.monotonic() + GRACE_S
        while _group_lives(group) and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def _group_lives(group: int) -> bool:
    """Whether a process of the group still runs; one that has ended but was not waited for does not."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    if not (_PROC / "self").exists():
        return True
    rows = [_state(entry) for entry in _PROC.iterdir() if entry.name.isdecimal()]
    return any(row is not None and row[1] == group and row[0] not in _ENDED for row in rows)


def alive(pid: int) -> bool:
    """Whether a process still runs; one that has ended but was not waited for does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    row = _state(_PROC / str(pid))
    return row is None or row[0] not in _ENDED


def _state(entry: Path) -> tuple[str, int] | None:
    """State letter and process group of a process, from its folder in /proc; None if there is none."""
    try:
        fields = (entry / "stat").read_text("ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[2])
