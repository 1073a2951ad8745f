"""Start one program in a session of its own, wait for it, and end all of it when told to.

A training may start processes in further sessions (torchrun's workers), so its family is found as ``family`` says, not by
process group alone. Whoever runs programs for somebody else (the supervisor of a job) sets a gate, through which each of
them has to go.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import BinaryIO

import anyio
from anyio.abc import Process

from opguard_core.errors import Interrupted, LaunchFailed, TimedOut
from opguard_core.trace.files import FILE_MODE
from opguard_harness.compare.family import alive, family, send
from opguard_harness.config import GRACE_S

_POLL_S = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Counts interrupts while children run, instead of raising in the middle of waiting for them.

    The first one asks the children to end, the second one kills them.
    """

    def __init__(self) -> None:
        """Nothing is installed before ``with``."""
        self.count = 0
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Interrupts:
        """Install the handlers; outside the main thread Python has none and a caller cancels by other means."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup asked not to hear of it
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Put back what was there."""
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


@dataclass(frozen=True)
class Spawn:
    """One program to run.

    Attributes:
        command: Program and arguments; never a shell string.
        cwd: Its working directory.
        env: Its whole environment.
        stdout: File for its standard output.
        stderr: File for its standard error.
        mark: ``NAME=VALUE`` that every process of its family has in its environment, and no other process.
        timeout_s: Seconds it may run; None for no limit.
        label: What messages call it.
        kept: One sentence that says where its output will be, or nothing.
        sweep: End what is left of its family when it has ended; only for a program in a private copy.
    """

    command: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    stdout: Path
    stderr: Path
    mark: str
    timeout_s: float | None
    label: str
    kept: str = ""
    sweep: bool = False


Gate = Callable[[Spawn, Interrupts], AbstractAsyncContextManager[None]]
"""Entered before a program is started, left when it has ended. May wait; raises ``Interrupted`` if it is told to end while it does."""

_gate: ContextVar[Gate | None] = ContextVar("gate", default=None)


@contextmanager
def gated(gate: Gate) -> Iterator[None]:
    """Send each program that is started here through a gate."""
    token = _gate.set(gate)
    try:
        yield
    finally:
        _gate.reset(token)


async def run_to_end(spawn: Spawn, interrupts: Interrupts, tick: Callable[[float], None]) -> int:
    """Run a program and wait for it.

    Args:
        spawn: The program.
        interrupts: Installed interrupt counter.
        tick: Called with the seconds since the start, several times a second.

    Returns:
        Its exit code; negative: the number of the signal that ended it.

    Raises:
        LaunchFailed: The operating system could not start it.
        TimedOut: It ran longer than allowed; its whole family was ended.
        Interrupted: The user interrupted; its whole family was ended.
    """
    gate = _gate.get()
    async with nullcontext() if gate is None else gate(spawn, interrupts):
        return await _run(spawn, interrupts, tick)


def _private(path: Path) -> BinaryIO:
    """A new file that only the user can read: what a program prints may hold anything."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE), "wb")


async def _run(spawn: Spawn, interrupts: Interrupts, tick: Callable[[float], None]) -> int:
    """Run a program that may start now."""
    began = time.monotonic()
    with _private(spawn.stdout) as out, _private(spawn.stderr) as err:
        try:
            process = await anyio.open_process(
                list(spawn.command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=str(spawn.cwd),
                env=dict(spawn.env),
                start_new_session=True,
            )
        except OSError as error:
            hint = "Check that the command exists and may be executed."
            raise LaunchFailed(f"{spawn.command[0]} cannot be started in {spawn.cwd}: {error.strerror}.", hint=hint) from error
    try:
        while process.returncode is None:
            elapsed = time.monotonic() - began
            if interrupts.count:
                raise Interrupted(f"Interrupted while the {spawn.label} ran; its processes were ended.", hint="Run the command again.")
            if spawn.timeout_s is not None and elapsed > spawn.timeout_s:
                hint = f"Give it more time or fewer steps; if only one side hangs, that is a finding. {spawn.kept}".strip()
                raise TimedOut(f"The {spawn.label} did not end within {spawn.timeout_s:g} s; its processes were ended.", hint=hint)
            tick(elapsed)
            with anyio.move_on_after(_POLL_S):
                await process.wait()
    finally:
        if process.returncode is None:
            with anyio.CancelScope(shield=True):
                await _end_family(process, spawn.mark, interrupts)
    if spawn.sweep:
        send(signal.SIGKILL, group=process.pid, pids=[pid for pid, _ in alive(family(process.pid, spawn.mark))])
    return process.returncode


async def _end_family(process: Process, mark: str, interrupts: Interrupts) -> None:
    """SIGTERM, then SIGKILL after the grace period or a second interrupt, until nothing of the family is left."""
    seen = interrupts.count
    members = family(process.pid, mark)
    send(signal.SIGTERM, group=process.pid, pids=())
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and interrupts.count == seen:
        with anyio.move_on_after(_POLL_S):
            await process.wait()
            await anyio.sleep(_POLL_S)
        members |= family(process.pid, mark)
        if process.returncode is not None and not alive(members):
            return
    members |= family(process.pid, mark)
    send(signal.SIGKILL, group=process.pid, pids=[pid for pid, _ in alive(members)])
    await process.wait()
