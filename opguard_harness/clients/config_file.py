"""A client's configuration file: read so that nothing in it can get lost, and replaced whole or not at all.

The file belongs to somebody else. What JSON cannot keep (comments, names that stand twice, numbers beyond a float) is refused
rather than dropped, and what was there before is kept in our state folder.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

from opguard_core.errors import OpGuardError
from opguard_harness.config import fresh_name, private_dir, state_dir
from opguard_harness.errors import ClientConfigRefused

LIMIT_BYTES = 4 * 1024 * 1024
_BOM = "\ufeff"
_COMMENT = re.compile(r"(?<!:)//|/\*|,\s*[}\]]")


@dataclass(frozen=True)
class ConfigFile:
    """A file as it was when it was read.

    Attributes:
        path: Where it is written; links are followed already.
        content: What it says; an absent or empty file says nothing.
        raw: Its bytes; None if it is not there.
        seen: What must still be so when it is replaced.
        mode: Its permissions.
        owner: User and group that it belongs to; None if it is not there.
    """

    path: Path
    content: dict[str, Any]
    raw: bytes | None = None
    seen: tuple[int, ...] = ()
    mode: int = 0o644
    owner: tuple[int, int] | None = None


def read_config(path: Path, base: Path) -> ConfigFile:
    """Read the file, or what is not there yet.

    Args:
        path: The client's file.
        base: The folder that must not be left, also not through links.

    Raises:
        ClientConfigRefused: It leads out of ``base``, is no plain file, or says something that would be lost.
    """
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(base)):
        raise ClientConfigRefused(
            f"{path} leads out of {base}, to {real}.", hint="Replace the link by a file, or change its target by hand."
        )
    try:
        descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return ConfigFile(real, {})
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ClientConfigRefused(f"{path} is not a file.", hint="Move it away.")
    with os.fdopen(descriptor, "rb") as stream:
        raw = stream.read(LIMIT_BYTES + 1)
    if len(raw) > LIMIT_BYTES:
        raise ClientConfigRefused(f"{path} has more than {LIMIT_BYTES} bytes; a client's list of servers has not.")
    return ConfigFile(real, _parsed(path, raw), raw, _seen(status), stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid))


def replace_config(file: ConfigFile, content: dict[str, Any] | None) -> Path | None:
    """Write new content in place of what was read, or remove the file.

    Args:
        file: As it was read.
        content: What it is to say; None removes it.

    Returns:
        Where the bytes from before are kept; None if there was no file.

    Raises:
        ClientConfigRefused: Somebody else has changed it in the meantime.
    """
    backup = None
    if file.raw is not None:
        backup = private_dir(state_dir() / "backups") / fresh_name(file.path.name.lstrip("."))
        _write_new(backup, file.raw, 0o600)
    if content is None:
        _require_unchanged(file)
        file.path.unlink()
        return backup
    file.path.parent.mkdir(parents=True, exist_ok=True)
    beside = file.path.with_name(fresh_name(file.path.name))
    try:
        _write_new(beside, _laid_out(file, content), file.mode)
        _keep_owner(file, beside)
        _require_unchanged(file)
        beside.replace(file.path)
    except (OSError, OpGuardError):
        beside.unlink(missing_ok=True)
        raise
    return backup


def _keep_owner(file: ConfigFile, beside: Path) -> None:
    """Give the new file to whom the old one belongs, which matters where another user (an administrator) runs this."""
    status = beside.stat()
    if file.owner not in (None, (status.st_uid, status.st_gid)):
        os.chown(beside, *file.owner)


def _require_unchanged(file: ConfigFile) -> None:
    """Refuse to replace what is no longer what was read."""
    try:
        now = _seen(file.path.lstat())
    except FileNotFoundError:
        now = ()
    if now != file.seen:
        raise ClientConfigRefused(f"{file.path} was changed by somebody else while this ran.", hint="Run the command again.")


def _seen(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _write_new(path: Path, raw: bytes, mode: int) -> None:
    """Write a file that is not there yet, down to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(raw)
        stream.flush()
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)


def _laid_out(file: ConfigFile, content: dict[str, Any]) -> bytes:
    """JSON in the manner of the file: its indentation, its line ends, its byte order mark, escapes if it had nothing else."""
    before = (file.raw or b"").decode("utf-8")
    indent = re.search(r"^([ \t]+)\S", before, re.MULTILINE)
    ascii_only = bool(before) and before.isascii()
    try:
        text = json.dumps(content, indent=indent[1] if indent else 2, ensure_ascii=ascii_only)
        text.encode("utf-8")
    except UnicodeEncodeError:  # half of a pair of surrogates, which JSON can say and UTF-8 cannot
        text = json.dumps(content, indent=indent[1] if indent else 2)
    text = (_BOM if before.startswith(_BOM) else "") + text + "\n"
    return (text.replace("\n", "\r\n") if "\r\n" in before else text).encode("utf-8")


def _parsed(path: Path, raw: bytes) -> dict[str, Any]:
    """The object that a file holds, or why it is better left alone."""

    def refuse(why: str) -> NoReturn:
        raise ClientConfigRefused(f"{path} {why}; it was left as it is.")

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in items]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            refuse(f"has the name {twice[:60]!r} twice in one object, and one would be lost")
        return dict(items)

    def number(text: str) -> float:
        value = float(text)
        if Decimal(text) != Decimal(repr(value)):
            refuse(f"has the number {text[:60]}, which would be changed")
        return value

    def constant(word: str) -> NoReturn:
        refuse(f"has {word}, which is not JSON")

    try:
        text = raw.decode("utf-8").removeprefix(_BOM)
        if not text.strip():
            return {}
        content = json.loads(text, object_pairs_hook=pairs, parse_float=number, parse_constant=constant)
    except UnicodeDecodeError:
        refuse("is not UTF-8")
    except RecursionError:
        refuse("is nested too deeply")
    except ValueError as error:
        if _COMMENT.search(text):
            refuse("has comments or trailing commas, which would be lost")
        refuse(f"is not JSON ({error})")
    if not isinstance(content, dict):
        refuse(f"holds a JSON {type(content).__name__} where an object should be")
    return content
