"""Private JSON documents of the state folder: replaced as a whole, changed by one writer at a time, read with suspicion."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opguard_core.errors import OpGuardError, TraceFormatError
from opguard_core.trace.files import FILE_MODE, read_checked, sync_directory, write_atomic
from opguard_harness.answer.plain import dumps
from opguard_harness.errors import SystemRefused

LOCK_S = 20.0  # a call has to be answered, whoever holds a lock
_LOOK_S = 0.01


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock beside a file; it belongs to the descriptor, so a writer that dies lets go of it.

    Raises:
        SystemRefused: Somebody else holds it for longer than any writer needs: a process that is stopped.
    """
    descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    try:
        _wait_for_lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _wait_for_lock(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                raise SystemRefused(
                    f"Another process has held the lock of {path} for {LOCK_S:g} s; it is stopped, or waits for its disk.",
                    hint="Let the other OpGuard process on this state folder go on, or end it; then make the same call again.",
                ) from error
            time.sleep(_LOOK_S)
        else:
            return


def read_document(path: Path, limit_bytes: int, damaged: type[OpGuardError]) -> dict[str, Any] | None:
    """The object that a document of ours holds; None where there is none.

    Args:
        path: The file; a link is not followed.
        limit_bytes: More than this is no document of ours.
        damaged: Error to raise for what we did not write.
    """
    if not os.path.lexists(path):
        return None
    try:
        document = json.loads(read_checked(path, limit=limit_bytes), object_pairs_hook=once)
    except TraceFormatError as error:
        raise damaged(error.message) from error
    except (ValueError, RecursionError) as error:
        raise damaged(f"{path} is not JSON: {error}.") from error
    if not isinstance(document, dict):
        raise damaged(f"{path} holds {type(document).__name__} and no object.")
    return document


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Replace a document; its folder must exist. Raises OSError, and then nothing has changed."""
    write_atomic(path, f"{dumps(document)}\n".encode("ascii"))
    sync_directory(path.parent)


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of which no key is said twice: the first would be lost without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"one object has {next(name for name in names if names.count(name) > 1)[:40]!r} twice")
    return found
