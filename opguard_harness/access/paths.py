"""Where a path that somebody named leads, and reading small files so that nothing swapped meanwhile leads elsewhere.

Roots prevent mistakes: they are checked when a path is named and once more when it is used, and a file is opened below a
descriptor of its root, no link followed. A training has its user's rights and may still write what it likes, where it likes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from opguard_harness.access.untrusted import one_line
from opguard_harness.errors import OutsideRoots, PathRefused

MAX_PATH_BYTES = 4_096
MAX_NAME_BYTES = 255
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def absolute(text: str, what: str, base: Path | None = None) -> Path:
    """The absolute path that a text means, links kept; nothing is looked at but the home folder.

    Args:
        text: A path; ``~`` is the user's home, a relative one starts at ``base``.
        what: What messages call it.
        base: Folder that relative paths start at; None for the working folder.

    Raises:
        PathRefused: No file of this system can have that name.
    """
    try:
        name = os.fsencode(text)
    except UnicodeEncodeError as error:
        raise PathRefused(f"{what}: {one_line(text, 80)!r} has a character that no file name can have.") from error
    if "\0" in text:
        raise PathRefused(f"{what}: it has a NUL character, which no path can have.")
    if len(name) > MAX_PATH_BYTES or max(len(part) for part in name.split(b"/")) > MAX_NAME_BYTES:
        raise PathRefused(
            f"{what}: a path of {len(name)} bytes is too long: {MAX_PATH_BYTES} are the most, and {MAX_NAME_BYTES} for each name in it."
        )
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise PathRefused(f"{what}: {one_line(text, 80)!r} names the home of a user who is not there.") from error
    return path if path.is_absolute() else (base or Path.cwd()) / path


def followed(path: Path, what: str) -> Path:
    """The path with all links followed, as far as it exists.

    Raises:
        PathRefused: Links lead in a circle, or a name in it is too long.
    """
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or "its links lead in a circle"
        raise PathRefused(f"{what}: {one_line(str(path), 120)!r} cannot be followed: {why}.") from error


def holder(path: Path, folders: Sequence[Path]) -> Path | None:
    """The folder among these that a path, links followed, lies in or is."""
    return next((folder for folder in folders if path == folder or folder in path.parents), None)


def read_below(root: Path, path: Path, what: str, limit_bytes: int) -> bytes:
    """Read a regular file below a folder, every step of the way opened from the one before and none through a link.

    Args:
        root: Folder that the path was found to lie in, links followed.
        path: The file, links followed.
        what: What messages call it.
        limit_bytes: Most bytes it may have.

    Raises:
        OutsideRoots: Something on the way is a link by now.
        PathRefused: It is no regular file, or too large.
        OSError: It cannot be opened or read.
    """
    if path == root:
        raise PathRefused(f"{what}: {one_line(str(path), 120)!r} is no file.")
    *folders, name = path.relative_to(root).parts
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            below = _step(folder, _DIRECTORY, at, what)
            os.close(at)
            at = below
        descriptor = _step(name, _FILE, at, what)
    finally:
        os.close(at)
    try:
        return _content(descriptor, what, path, limit_bytes)
    finally:
        os.close(descriptor)


def read_plain(path: Path, what: str, limit_bytes: int) -> bytes:
    """Read a regular file where no roots are set; links are followed, as the user's own are.

    Raises:
        PathRefused: It is no regular file, or too large.
        OSError: It cannot be opened or read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return _content(descriptor, what, path, limit_bytes)
    finally:
        os.close(descriptor)


def _step(name: str, flags: int, at: int, what: str) -> int:
    """Open one name of a path below the folder that holds it."""
    try:
        return os.open(name, flags, dir_fd=at)
    except OSError as error:
        try:
            is_link = stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode)
        except OSError:
            is_link = False
        if not is_link:
            raise
        raise OutsideRoots(f"{what}: {one_line(name, 80)!r} became a link while it was read.") from error


def _content(descriptor: int, what: str, path: Path, limit_bytes: int) -> bytes:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise PathRefused(f"{what}: {one_line(str(path), 120)!r} is no file.")
    data = b""
    with os.fdopen(os.dup(descriptor), "rb") as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise PathRefused(f"{what}: {one_line(str(path), 120)!r} is larger than {limit_bytes} bytes.")
    return data
