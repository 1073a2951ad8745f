"""Rewritten modules kept from one run to the next, in a folder that is ours alone.

An entry holds code objects as ``marshal`` writes them, so it is read only from a private folder (mode 0700, our owner, no link) and
only if it carries a sha256 of its own bytes: one that was cut short or damaged is made again. Its key is a digest of the source, of
where it lies, of the Python that compiled it and of how it was rewritten. Entries are written under another name and renamed, so ranks
that import a module at the same time each find a whole entry or none.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import marshal
import os
import stat
import sys
import tempfile
from pathlib import Path
from types import CodeType

from opguard_core.builds.folder import private_folder
from opguard_core.instrument.rewrite import VERSION, Rewritten
from opguard_core.instrument.runtime import Site

_MAGIC = b"opguard callsites 1\n"
_SEAL = hashlib.sha256().digest_size
_KEPT_PER_FILE = 4  # versions of one source that stay


def key_of(source: bytes, filename: str, *, everything: bool, first: str = "") -> str:
    """Digest of everything that decides what a module is rewritten to, 32 hex digits."""
    python = f"{sys.implementation.cache_tag} {sys.version} {sys.flags.optimize} {importlib.util.MAGIC_NUMBER!r}"
    how = f"{VERSION} {everything} {first} {python}\0{filename}\0"
    return hashlib.sha256(how.encode("utf-8", "surrogateescape") + source).hexdigest()[:32]


class Cache:
    """The folder; without one nothing is kept, and `why_not` says why."""

    def __init__(self, folder: Path | None = None) -> None:
        self.why_not = ""
        self.num_found, self.num_made, self.num_damaged = 0, 0, 0
        self._folder = folder
        if folder is None:
            try:
                self._folder = private_folder("callsites")
            except OSError as error:
                self.why_not = str(error)

    def find(self, key: str, filename: str) -> Rewritten | None:
        """What was kept under a key; None if nothing, or nothing whole and ours."""
        if self._folder is None:
            return None
        content = _read(self._folder / _name(key, filename))
        if content is None:
            return None
        kept = _parse(content)
        if kept is None:
            self.num_damaged += 1
        else:
            self.num_found += 1
        return kept

    def keep(self, key: str, filename: str, made: Rewritten) -> None:
        """Keep what was made; a folder that is full or gone is no error."""
        self.num_made += 1
        if self._folder is None:
            return
        payload = marshal.dumps((made.code, [tuple(site) for site in made.sites], made.left))
        try:
            descriptor, temporary = tempfile.mkstemp(dir=self._folder, prefix=".new-")  # 0600
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(_MAGIC + hashlib.sha256(payload).digest() + payload)
                Path(temporary).replace(self._folder / _name(key, filename))
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
            self._forget_older(filename)
        except OSError as error:
            self.why_not = f"{type(error).__name__}: {error.strerror}"

    def _forget_older(self, filename: str) -> None:
        assert self._folder is not None
        entries = []
        for path in self._folder.glob(f"{_file_digest(filename)}-*"):
            with contextlib.suppress(OSError):
                entries.append((path.stat().st_mtime_ns, path))
        for _, path in sorted(entries)[:-_KEPT_PER_FILE]:
            path.unlink(missing_ok=True)


def _file_digest(filename: str) -> str:
    return hashlib.sha256(filename.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _name(key: str, filename: str) -> str:
    return f"{_file_digest(filename)}-{key}"


def _read(path: Path) -> bytes | None:
    """A file's bytes if it is a file of ours that nobody else can write."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o022:
                return None
            return file.read()
    except OSError:
        return None


def _parse(content: bytes) -> Rewritten | None:
    start = len(_MAGIC) + _SEAL
    if not content.startswith(_MAGIC) or hashlib.sha256(content[start:]).digest() != content[len(_MAGIC) : start]:
        return None
    try:
        code, sites, left = marshal.loads(content[start:])  # noqa: S302  sealed, and from a folder that only we can write
    except (EOFError, ValueError, TypeError):
        return None
    return Rewritten(code, [Site(*site) for site in sites], left) if isinstance(code, CodeType) else None
