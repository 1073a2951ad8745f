"""Start one program in a session of its own, wait for it, and end all of it when told to.

A training may start processes in further sessions (torchrun's workers), so its family is found by parentage and by a
mark in the environment that each of them inherited, not by process group alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

import anyio
from anyio.abc import Process

from opguard_core.errors import Interrupted, LaunchFailed, TimedOut
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
    began = time.monotonic()
    with spawn.stdout.open("wb") as out, spawn.stderr.open("wb") as err:
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
        _send(signal.SIGKILL, group=process.pid, pids=[pid for pid, _ in _alive(_family(process.pid, spawn.mark))])
    return process.returncode


async def _end_family(process: Process, mark: str, interrupts: Interrupts) -> None:
    """SIGTERM, then SIGKILL after the grace period or a second interrupt, until nothing of the family is left."""
    seen = interrupts.count
    family = _family(process.pid, mark)
    _send(signal.SIGTERM, group=process.pid, pids=())
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and interrupts.count == seen:
        with anyio.move_on_after(_POLL_S):
            await process.wait()
            await anyio.sleep(_POLL_S)
        family |= _family(process.pid, mark)
        if process.returncode is not None and not _alive(family):
            return
    family |= _family(process.pid, mark)
    _send(signal.SIGKILL, group=process.pid, pids=[pid for pid, _ in _alive(family)])
    await process.wait()


def _send(number: int, *, group: int, pids: Sequence[int]) -> None:
    """Signal a process group and single processes; those that have gone meanwhile are what we want."""
    for send, target in [(os.killpg, group), *((os.kill, pid) for pid in pids)]:
        try:
            send(target, number)
        except ProcessLookupError:
            continue


def _alive(family: set[tuple[int, str]]) -> list[tuple[int, str]]:
    """Members that still run; a process is its number and its start time, since numbers are used again."""
    return [member for member in family if member in {(row.pid, row.started) for row in _processes() if not row.zombie}]


@dataclass(frozen=True)
class _Row:
    pid: int
    parent: int
    group: int
    started: str
    zombie: bool


def _family(root: int, mark: str) -> set[tuple[int, str]]:
    """The process, its group, everything started below it, and everything that carries the mark."""
    rows = _processes()
    began = next((row.started for row in rows if row.pid == os.getpid()), "")
    members = {row.pid for row in rows if row.pid == root or row.group == root or _carries(row, mark, began)}
    grown = True
    while grown:
        more = {row.pid for row in rows if row.parent in members} - members
        members |= more
        grown = bool(more)
    return {(row.pid, row.started) for row in rows if row.pid in members and row.pid != os.getpid() and not row.zombie}


def _carries(row: _Row, mark: str, began: str) -> bool:
    """Whether a process was started after us with exactly that variable (Linux; elsewhere parentage has to do)."""
    try:
        entries = Path(f"/proc/{row.pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # another user's process, or one that has ended
    return os.fsencode(mark) in entries and int(row.started) >= int(began)


def _processes() -> list[_Row]:
    """All processes of the machine, from /proc or from ``ps``."""
    if Path("/proc/self/stat").exists():
        return [row for entry in Path("/proc").iterdir() if entry.name.isdecimal() and (row := _proc_row(int(entry.name)))]
    listing = subprocess.run(["ps", "-axo", "pid=,ppid=,pgid=,stat=,lstart="], capture_output=True, text=True, check=False).stdout
    rows = []
    for line in listing.splitlines():
        pid, parent, group, state, started = line.split(None, 4)
        rows.append(_Row(int(pid), int(parent), int(group), started, state.startswith("Z")))
    return rows


def _proc_row(pid: int) -> _Row | None:
    """One process from /proc; None when it has ended meanwhile."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return _Row(pid, int(fields[1]), int(fields[2]), fields[19], fields[0] in "ZX")
