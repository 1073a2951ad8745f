"""Writing a pack: a plain zip whose bytes follow from the case alone.

Nothing in it is compressed (segments, texts and tensors are already, or would gain little): so the same case gives the same
bytes whatever wrote them, and whoever opens it meets no file that unfolds into more than it is.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from opguard_core.trace.files import FILE_MODE, read_checked, sync_directory
from opguard_harness.access.rules import current
from opguard_harness.access.untrusted import one_line
from opguard_harness.errors import PackRefused
from opguard_harness.workspace.cases import require_case
from opguard_harness.workspace.documents import locked
from opguard_harness.workspace.packs.collecting import Collected, Source, collect
from opguard_harness.workspace.packs.listed import MANIFEST, MAX_FILES, MAX_MANIFEST_BYTES, MAX_PACK_BYTES, Listed, Manifest

CHUNK_BYTES = 1 << 20
DATE = (1980, 1, 1, 0, 0, 0)
_DOCUMENTS = ("case/findings.json", "case/case.json", "case/filters.json")
_DOCUMENT_BYTES = 64 << 20


@dataclass(frozen=True)
class Packed:
    """A pack that was written.

    Attributes:
        path: Where it lies.
        bytes: Its size.
        sha256: Its digest.
        manifest: Its list.
    """

    path: Path
    bytes: int
    sha256: str
    manifest: Manifest


def pack(case: str, out: Path, *, sources: bool = False) -> Packed:
    """Write the pack of a case.

    Args:
        case: Its id.
        out: The file; it may not be there yet.
        sources: Whether source texts go with it.

    Raises:
        CaseNotFound: There is no such case.
        PackRefused: It is too large, the file is there, or something changed while it was read.

    Cost: reads every file twice.
    """
    found = require_case(case)
    path = current().path(out, "out")
    if os.path.lexists(path):
        raise PackRefused(f"{path} exists already.")
    collected = collect(found, sources=sources)
    documents = _documents(found.folder, collected)
    manifest = _manifest(case, collected, documents, sources=sources)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(3)}.tmp")
    try:
        _write(temporary, manifest, collected, documents)
        digest, size = _digest(temporary)
        os.link(temporary, path)  # never over a file that came meanwhile
        sync_directory(path.parent)
    except FileExistsError as error:
        raise PackRefused(f"{path} exists already.") from error
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
    return Packed(path, size, digest, manifest)


def header(name: str, size: int) -> zipfile.ZipInfo:
    """What a pack says about an entry; all of it follows from name and size."""
    info = zipfile.ZipInfo(name, DATE)
    info.compress_type = zipfile.ZIP_STORED
    info.create_system = 3
    info.external_attr = (stat.S_IFREG | FILE_MODE) << 16
    info.file_size = size
    return info


def _documents(folder: Path, collected: Collected) -> dict[str, bytes]:
    """The documents that may be replaced while we read: each as it was at one moment."""
    found = {}
    for name in _DOCUMENTS:
        if name in collected.files:
            path = folder / name.removeprefix("case/")
            with locked(path):
                found[name] = read_checked(path, limit=_DOCUMENT_BYTES)
    return found


def _manifest(case: str, collected: Collected, documents: dict[str, bytes], *, sources: bool) -> Manifest:
    """The list, with a digest of every file."""
    files = []
    total = 0
    for name, source in sorted(collected.files.items()):
        if name in documents:
            size, digest = len(documents[name]), hashlib.sha256(documents[name]).hexdigest()
        else:
            found = hashlib.sha256()
            size = 0
            for chunk in _chunks(source):
                found.update(chunk)
                size += len(chunk)
            digest = found.hexdigest()
        total += size
        files.append(Listed(name, size, digest))
        if total > MAX_PACK_BYTES or len(files) > MAX_FILES:
            raise PackRefused(
                f"The pack of {case} would have more than {MAX_PACK_BYTES >> 30} GiB or {MAX_FILES} files.",
                hint="Compare fewer steps in a case of their own, and pack that.",
            )
    manifest = Manifest(case, sources, collected.traces, tuple(files), tuple(collected.left_out), collected.left_out_total)
    if len(manifest.data()) > MAX_MANIFEST_BYTES:
        raise PackRefused(f"The list of files of {case} is too long.", hint="Compare fewer steps in a case of their own, and pack that.")
    return manifest


def _write(path: Path, manifest: Manifest, collected: Collected, documents: dict[str, bytes]) -> None:
    """The zip, list first."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(descriptor, "w+b") as file:
        with zipfile.ZipFile(file, "w", allowZip64=False) as archive:
            archive.writestr(header(MANIFEST, len(manifest.data())), manifest.data())
            for item in manifest.files:
                written = hashlib.sha256()
                data = iter([documents[item.name]]) if item.name in documents else _chunks(collected.files[item.name])
                with archive.open(header(item.name, item.bytes), "w") as entry:
                    for chunk in data:
                        written.update(chunk)
                        entry.write(chunk)
                if written.hexdigest() != item.sha256:
                    raise PackRefused(f"{item.name} changed while it was packed.", hint="Pack again when nothing of the case is running.")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _opened(source: Source) -> Iterator[int]:
    """A file that was found before, if it is still that one.

    Raises:
        PackRefused: It has gone, or is another one by now.
    """
    try:
        descriptor = os.open(source.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _changed(source.path) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) != (source.device, source.inode):
            raise _changed(source.path)
        yield descriptor
    finally:
        os.close(descriptor)


def _chunks(source: Source) -> Iterator[bytes]:
    with _opened(source) as descriptor:
        while chunk := os.read(descriptor, CHUNK_BYTES):
            yield chunk


def _changed(path: Path) -> PackRefused:
    return PackRefused(f"{one_line(str(path), 200)} changed while it was packed.", hint="Pack again when nothing of the case is running.")


def _digest(path: Path) -> tuple[str, int]:
    """Digest and size of a file."""
    found, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            found.update(chunk)
            size += len(chunk)
    return found.hexdigest(), size


__all__ = ["CHUNK_BYTES", "Packed", "header", "pack"]
