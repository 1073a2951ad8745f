"""Digests of what an argument names, so that a job asked for again after an edit is another job.

A folder or script: its code and settings files, by content. A trace: its manifests. A file: its content. What a program writes
into its own folder must not count, or no job would ever be the same again: data files do not, and settings (JSON, which
programs also write) are compared with how they were before the job and with how they were after it. A program whose data
changed needs another token, and so does one with more code than is read here (``MAX_ENTRIES``, ``MAX_BYTES``).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_ENTRIES = 20_000
MAX_FILE_BYTES = 4 << 20
MAX_BYTES = 64 << 20
_CODE = frozenset(".py .pyw .pyx .pxd .pyi .sh .cu .cuh .c .cc .cpp .h .hpp .yaml .yml .toml .ini .cfg .gin".split())
_SETTINGS = ".json"
_MANIFEST = "manifest.json"  # of a trace
_SKIPPED = frozenset(("__pycache__", "node_modules", "site-packages", "dist-packages"))


@dataclass(frozen=True)
class Sources:
    """Two digests: of what only a person changes, and of what a program may have written."""

    code: str
    settings: str


def digest_of(names: list[str]) -> Sources:
    """Digests of some paths and ids together; what is not there, or cannot be read, has a digest of its own.

    Args:
        names: Paths, or ids of what is stored, which never changes; empty ones name nothing.
    """
    code, settings = hashlib.sha256(), hashlib.sha256()
    num_bytes = 0
    for name in names:
        path = Path(name).expanduser()
        code.update(os.fsencode(name) + b"\0")
        if not name or not path.exists():
            continue
        if path.is_file() and path.suffix not in _CODE:
            code.update(_content(path))
            continue
        folder = path if path.is_dir() else path.parent
        for file in _files(folder):
            num_bytes += file.stat().st_size
            if num_bytes > MAX_BYTES:
                break
            kind = settings if file.suffix == _SETTINGS and file.name != _MANIFEST else code
            kind.update(os.fsencode(file.relative_to(folder)) + b"\0" + _content(file))
    return Sources(code.hexdigest(), settings.hexdigest())


def _files(folder: Path) -> Iterator[Path]:
    """Files below a folder that say what a program does, or what a trace is, in a fixed order."""
    entries = 0
    for at, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _passed_over(Path(at) / name))
        named = sorted(name for name in files if Path(name).suffix in _CODE or Path(name).suffix == _SETTINGS)
        entries += len(folders) + len(named)  # a folder full of images does not hide the code behind it
        if entries > MAX_ENTRIES:
            return
        for name in named:
            path = Path(at) / name
            if path.is_file() and path.stat().st_size <= MAX_FILE_BYTES:
                yield path


def _passed_over(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in _SKIPPED or (folder / "pyvenv.cfg").exists()


def _content(path: Path) -> bytes:
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError as error:
        return f"unreadable {error.errno}".encode("ascii")
