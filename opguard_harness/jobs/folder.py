"""The folder of one job: which files it has, and how each is written and read.

    jobs/<id>/spec.json        what was asked for, redacted, and who started it
              supervisor.json  the process that carries it out; written before that is told what to do
              heartbeat        when it was last seen at work
              state.json       how far it is
              log.txt          what it said
              marks            one line for each program, written before the program is started
              cancel           somebody asked for its end
              reserve          room for the result
              result.json      how it ended; nothing comes after it

Everything is private. What is replaced is replaced as a whole. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opguard_core.errors import TraceFormatError
from opguard_core.trace.files import FILE_MODE, read_checked, write_all
from opguard_harness.config import state_dir
from opguard_harness.errors import JobDamaged, JobNotFound
from opguard_harness.jobs.owner import Owner, boot_id
from opguard_harness.workspace.documents import read_document, write_document

FORMAT = 1
MAX_BYTES = 1 << 20
_ID = re.compile(r"[a-z][a-z0-9-]{0,39}-[0-9a-f]{12}(-[1-9][0-9]{0,5})?")
_BEAT_BYTES = 64
_RESERVE_BYTES = 128 * 1024  # a result is limited to less (``config.ANSWER_LIMIT_CHARS``)


def jobs_dir() -> Path:
    """Where all jobs lie; not created here."""
    return state_dir() / "jobs"


def is_job(text: str) -> bool:
    """Whether a text has the form of a job's id."""
    return bool(_ID.fullmatch(text))


def job_ids() -> list[str]:
    """Ids of all jobs, in no order."""
    try:
        with os.scandir(jobs_dir()) as entries:
            return [entry.name for entry in entries if is_job(entry.name) and entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


@dataclass(frozen=True)
class Beat:
    """A sign of life: the machine's own clock, which only means something in the same boot, and the file's time."""

    boot: str
    at_ns: int
    written_ns: int


@dataclass(frozen=True)
class JobFolder:
    """One job on disk."""

    path: Path

    @classmethod
    def of(cls, job: str) -> JobFolder:
        """The folder of a job.

        Raises:
            JobNotFound: There is no such job.
        """
        path = jobs_dir() / job
        if not is_job(job) or not path.is_dir():
            from difflib import get_close_matches

            close = get_close_matches(job[:120], job_ids(), n=1, cutoff=0.8)
            raise JobNotFound(f"There is no job {job[:120]!r}{f'; did you mean {close[0]!r}?' if close else '.'}")
        return cls(path)

    @property
    def id(self) -> str:
        """Its id."""
        return self.path.name

    @property
    def log(self) -> Path:
        """What its supervisor said."""
        return self.path / "log.txt"

    def spec(self) -> dict[str, Any]:
        """What was asked for.

        Raises:
            JobDamaged: It cannot be read, or is not what we wrote.
        """
        found = read_document(self.path / "spec.json", MAX_BYTES, JobDamaged)
        texts = ("job", "tool", "request", "code", "settings", "created", "case")
        if found is None or found.get("format") != FORMAT or not all(isinstance(found.get(name), str) for name in texts):
            raise JobDamaged(f"{self.path / 'spec.json'} is not what was written for {self.id}.")
        return found

    def write_supervisor(self, owner: Owner) -> None:
        """Say who carries it out. Raises OSError."""
        write_document(self.path / "supervisor.json", owner.as_dict())

    def supervisor(self) -> Owner | None:
        """Who carries it out; None if nobody does yet, or the file is damaged."""
        return Owner.read(self._lenient("supervisor.json"))

    def has_supervisor(self) -> bool:
        """Whether somebody was named, even if nobody can read whom."""
        return (self.path / "supervisor.json").exists()

    def write_state(self, state: dict[str, Any]) -> None:
        """Say how far it is. Raises OSError, and then nothing has changed."""
        write_document(self.path / "state.json", {"format": FORMAT, **state})

    def state(self) -> dict[str, Any]:
        """How far it is; empty if nobody said yet, or the file is damaged."""
        found = self._lenient("state.json")
        return found if found.get("format") == FORMAT else {}

    def write_outcome(self, outcome: dict[str, Any]) -> None:
        """Say how it ended. Raises OSError, and then nothing has changed."""
        write_document(self.path / "result.json", {"format": FORMAT, **outcome})

    def outcome(self) -> dict[str, Any] | None:
        """How it ended; None if it has not, or the file is damaged."""
        found = self._lenient("result.json")
        whole = found.get("format") == FORMAT and isinstance(found.get("ended"), str)
        if whole and found.get("state") == "succeeded":
            return found if isinstance(found.get("result"), dict) else None
        if whole and found.get("state") == "failed":
            error = found.get("error")
            told = isinstance(error, dict) and all(isinstance(error.get(name), str) for name in ("slug", "text", "fix"))
            return found if told and isinstance(found.get("summary"), str) and isinstance(found.get("next"), list) else None
        return found if whole and found.get("state") == "cancelled" else None

    def beat(self) -> None:
        """Give a sign of life, in place, so that a full disk does not make it look dead. Raises OSError."""
        text = f"{boot_id()} {time.monotonic_ns()}".ljust(_BEAT_BYTES - 1) + "\n"
        descriptor = os.open(self.path / "heartbeat", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        try:
            os.pwrite(descriptor, text.encode("ascii"), 0)
        finally:
            os.close(descriptor)

    def last_beat(self) -> Beat | None:
        """The last sign of life; None if there was none."""
        path = self.path / "heartbeat"
        try:
            words = read_checked(path, limit=4 * _BEAT_BYTES).decode("ascii").rsplit(None, 1)
            return Beat(words[0].strip(), int(words[1]), path.stat().st_mtime_ns)
        except (TraceFormatError, OSError, ValueError, IndexError):
            return None

    def mark(self, mark: str) -> None:
        """Note the mark of a program that is about to be started. Raises OSError."""
        descriptor = os.open(self.path / "marks", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        try:
            write_all(descriptor, f"{json.dumps(mark)}\n".encode("ascii"))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def marks(self) -> list[str]:
        """Marks of all programs that it may have started."""
        path = self.path / "marks"
        if not path.exists():
            return []
        found = []
        for line in read_checked(path, limit=MAX_BYTES).splitlines():
            try:
                mark = json.loads(line)
            except ValueError:
                continue  # the last line of a process that was killed while it wrote: its program was not started
            found += [mark] if isinstance(mark, str) and mark.partition("=")[2] else []
        return found

    def ask_to_end(self) -> bool:
        """Ask for its end; says whether nobody had before. Raises OSError."""
        try:
            os.close(os.open(self.path / "cancel", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE))
        except FileExistsError:
            return False
        return True

    def asked_to_end(self) -> bool:
        """Whether somebody asked for its end."""
        return (self.path / "cancel").exists()

    def reserve(self) -> None:
        """Take the room that the result will need, so that a disk that fills up meanwhile does not lose it. Raises OSError."""
        with (self.path / "reserve").open("wb") as stream:
            stream.write(bytes(_RESERVE_BYTES))
            stream.flush()
            os.fsync(stream.fileno())

    def release(self) -> None:
        """Give that room back; the result is about to be written."""
        (self.path / "reserve").unlink(missing_ok=True)

    def _lenient(self, name: str) -> dict[str, Any]:
        """A document of which a damaged one is as good as none."""
        try:
            return read_document(self.path / name, MAX_BYTES, JobDamaged) or {}
        except (JobDamaged, OSError):
            return {}
