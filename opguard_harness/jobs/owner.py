"""Who does something: one process of one boot of one machine, so that a number used again is not taken for it."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opguard_harness.compare.family import process, send

_TEXTS = ("started", "boot", "host", "space")


@dataclass(frozen=True)
class Owner:
    """One process.

    Attributes:
        pid: Its number.
        started: Its start time as ``family.Row`` has it.
        boot: The boot of the machine that it lives in.
        host: Name of the machine; may change while it runs.
        space: The namespace that its number counts in, which is another one in each container.
    """

    pid: int
    started: str
    boot: str
    host: str
    space: str

    @classmethod
    def of(cls, pid: int) -> Owner | None:
        """The process of that number on this machine; None when it has gone."""
        row = process(pid)
        return None if row is None else cls(pid, row.started, boot_id(), platform.node(), number_space())

    @classmethod
    def ours(cls) -> Owner:
        """This process."""
        found = cls.of(os.getpid())
        assert found is not None, "this process runs"
        return found

    @classmethod
    def read(cls, document: Any) -> Owner | None:
        """As ``as_dict`` wrote it; None if it is anything else."""
        if not isinstance(document, Mapping) or document.keys() != {"pid", *_TEXTS}:
            return None
        texts = all(isinstance(document[name], str) for name in _TEXTS)
        return cls(**document) if texts and type(document["pid"]) is int and document["pid"] > 0 else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"pid": self.pid, **{name: getattr(self, name) for name in _TEXTS}}

    @property
    def here(self) -> bool:
        """Whether it is ours to judge: of this machine, of whatever boot, and of our namespace."""
        return self.space == number_space() and (self.boot == boot_id() or self.host == platform.node())

    @property
    def this_boot(self) -> bool:
        """Whether its number means something to us now."""
        return self.space == number_space() and self.boot == boot_id()

    def alive(self) -> bool:
        """Whether it runs, on this machine; a zombie does not."""
        if not self.this_boot:
            return False
        row = process(self.pid)
        return row is not None and not row.zombie and row.started == self.started

    def kill(self) -> None:
        """Send it SIGKILL and nobody else, even if its number is used again just now."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        except (AttributeError, OSError):  # this system cannot hold on to a process
            if self.alive():
                send(signal.SIGKILL, group=None, pids=[self.pid])
            return
        try:
            if self.alive():  # asked while the descriptor holds on to whoever has the number
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            os.close(descriptor)


def boot_id() -> str:
    """Tells one boot of this machine from another; empty where the system has no such thing."""
    path = Path("/proc/sys/kernel/random/boot_id")
    if path.exists():
        return path.read_text("ascii").strip()
    asked = subprocess.run(["sysctl", "-n", "kern.boottime"], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


def number_space() -> str:
    """The namespace of process numbers; empty where the system has none."""
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - no file of that name
    except OSError:
        return ""
