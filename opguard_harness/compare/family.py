"""Which processes belong to a program: found by parentage, by process group, and by a mark that all of them inherited.

Standard library only. A process is its number and its start time, since numbers are used again.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

Member = tuple[int, str]


@dataclass(frozen=True)
class Row:
    """One process of the machine. ``started``: its start time, in whatever unit the system counts."""

    pid: int
    parent: int
    group: int
    started: str
    zombie: bool


def family(root: int, mark: str) -> set[Member]:
    """The process, its group, everything started below it, and everything younger than us that carries the mark.

    Args:
        root: Number of the first process.
        mark: ``NAME=VALUE`` that every process of the family has in its environment.
    """
    rows = processes()
    began = next((row.started for row in rows if row.pid == os.getpid()), "")
    return _grown(rows, {row.pid for row in rows if row.pid == root or row.group == root or carries(row, mark, began)})


def marked(marks: Collection[str], since: str) -> set[Member]:
    """What is left of programs whose starter has gone: everything that carries a mark, and everything below it.

    Args:
        marks: ``NAME=VALUE`` of each program.
        since: Start time of the starter; nothing older belongs to it.
    """
    rows = processes()
    return _grown(rows, {row.pid for row in rows if any(carries(row, mark, since) for mark in marks)}) if marks else set()


def _grown(rows: Sequence[Row], members: set[int]) -> set[Member]:
    """Members and all that was started below them; zombies and we ourselves left out."""
    grown = True
    while grown:
        more = {row.pid for row in rows if row.parent in members} - members
        members |= more
        grown = bool(more)
    return {(row.pid, row.started) for row in rows if row.pid in members and row.pid != os.getpid() and not row.zombie}


def carries(row: Row, mark: str, began: str) -> bool:
    """Whether a process was started since then with exactly that variable (Linux; elsewhere parentage has to do).

    The launcher of an observed run sets the variable for its program and has it only as its ``--out``.
    """
    try:
        entries = Path(f"/proc/{row.pid}/environ").read_bytes().split(b"\0")
        words = Path(f"/proc/{row.pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False  # another user's process, or one that has ended
    value = os.fsencode(mark.partition("=")[2])
    found = os.fsencode(mark) in entries or (b"--out", value) in pairwise(words)
    return found and int(row.started) >= int(began)


def alive(members: Iterable[Member]) -> list[Member]:
    """Members that still run."""
    running = {(row.pid, row.started) for row in processes() if not row.zombie}
    return [member for member in members if member in running]


def send(number: int, *, group: int | None, pids: Sequence[int]) -> None:
    """Signal a process group and single processes; those that have gone meanwhile are what we want."""
    groups = [] if group is None else [(os.killpg, group)]
    for deliver, target in [*groups, *((os.kill, pid) for pid in pids)]:
        try:
            deliver(target, number)
        except ProcessLookupError:
            continue


def end(members: Iterable[Member], number: int = signal.SIGKILL) -> None:
    """Signal those members that still run."""
    send(number, group=None, pids=[pid for pid, _ in alive(members)])


def processes() -> list[Row]:
    """All processes of the machine, from /proc or from ``ps``."""
    if Path("/proc/self/stat").exists():
        return [row for entry in Path("/proc").iterdir() if entry.name.isdecimal() and (row := process(int(entry.name)))]
    return _listed("-axo")


def process(pid: int) -> Row | None:
    """One process; None when there is none of that number."""
    if not Path("/proc/self/stat").exists():
        return next(iter(_listed("-p", str(pid), "-o")), None)
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return Row(pid, int(fields[1]), int(fields[2]), fields[19], fields[0] in "ZX")


def _listed(*which: str) -> list[Row]:
    """Processes as ``ps`` lists them."""
    listing = subprocess.run(["ps", *which, "pid=,ppid=,pgid=,stat=,lstart="], capture_output=True, text=True, check=False).stdout
    rows = []
    for line in listing.splitlines():
        pid, parent, group, state, started = line.split(None, 4)
        rows.append(Row(int(pid), int(parent), int(group), started, state.startswith("Z")))
    return rows
