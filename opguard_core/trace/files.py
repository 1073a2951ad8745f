"""Files the way a trace needs them: whole or absent when written, of a checked kind and size when read."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from opguard_core.errors import TraceFormatError
from opguard_core.trace.problems import refusal

DIRECTORY_MODE = 0o700  # traces hold source text and arguments of the user's program (DESIGN 8)
FILE_MODE = 0o600

# Absent on Windows, where there are no such links to follow and no FIFO to hang on.
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NON_BLOCK = getattr(os, "O_NONBLOCK", 0)
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write every byte of ``data``; a short write is continued. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_atomic(path: Path, data: bytes | memoryview) -> None:
    """Create or replace ``path`` so that it is never seen half written, whoever is killed when.

    Args:
        path: Target; its folder must exist. A temporary file beside it carries the process id.
        data: Whole content.

    Raises:
        OSError: Nothing was changed at ``path`` and no temporary file is left.

    Cost: one fsync. The rename itself is durable only after `sync_directory`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_FOLLOW | _CLOEXEC, FILE_MODE)
    try:
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def sync_directory(path: Path) -> None:
    """Make renames in ``path`` durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | _CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_checked(path: Path, *, limit: int, expected_bytes: int | None = None) -> bytes:
    """Read a whole regular file, never through a symbolic link, never more than was agreed.

    Args:
        path: File to read.
        limit: Most bytes the format allows for this kind of file.
        expected_bytes: Exact size, when something already promised it.

    Raises:
        TraceFormatError: Missing, a link, not a regular file, too large, or of another size.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | _NO_FOLLOW | _NON_BLOCK | _CLOEXEC)
    except OSError as error:
        raise refusal(TraceFormatError, "Cannot open", path=path, expected="a regular file", found=error.strerror) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise refusal(TraceFormatError, "Not a file", path=path, expected="a regular file", found=stat.filemode(status.st_mode))
        if status.st_size > limit:
            raise refusal(TraceFormatError, "File too large", path=path, expected=f"at most {limit} bytes", found=status.st_size)
        if expected_bytes is not None and status.st_size != expected_bytes:
            raise refusal(
                TraceFormatError,
                "Wrong size",
                path=path,
                offset=min(status.st_size, expected_bytes),
                expected=f"{expected_bytes} bytes",
                found=status.st_size,
            )
        try:
            data = _read_exactly(descriptor, status.st_size)
        except OSError as error:
            raise refusal(TraceFormatError, "Cannot read", path=path, expected=f"{status.st_size} bytes", found=error.strerror) from error
        if len(data) != status.st_size:
            raise refusal(
                TraceFormatError,
                "File shrank while read",
                path=path,
                offset=len(data),
                expected=f"{status.st_size} bytes",
                found=len(data),
            )
        return data
    finally:
        os.close(descriptor)


def _read_exactly(descriptor: int, size: int) -> bytes:
    parts = []
    while size and (part := os.read(descriptor, min(size, 1 << 24))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
