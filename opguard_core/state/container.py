"""The snapshot file: a safetensors file whose metadata carries our document and a seal over every byte.

    u64 little endian | JSON header, padded to 8 bytes | data of the entries, in the order of the header, without holes

Any safetensors reader opens it. Written beside its name and renamed; checked whole before anything in it is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import glob
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from opguard_core.errors import StateDamaged, StateError

FORMAT = 1
MAX_HEADER_BYTES = 1 << 30
CHUNK_BYTES = 1 << 24
_NO_SEAL = "0" * 64
_SEAL = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Entry:
    """One named run of bytes.

    Attributes:
        name: Unique; what a safetensors reader shows.
        dtype: safetensors name of the element type.
        shape: Elements along each dimension.
        storage: CPU storage that holds the bytes.
        begin: First byte in it.
        nbytes: How many.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    storage: torch.UntypedStorage
    begin: int
    nbytes: int


def memory(storage: torch.UntypedStorage, begin: int, nbytes: int) -> memoryview:
    """The bytes of a CPU storage as they lie in memory, not copied; valid while the storage lives and keeps its size."""
    if not nbytes:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * nbytes).from_address(storage.data_ptr() + begin)).cast("B")


def write(path: Path, document: dict[str, Any], entries: list[Entry]) -> str:
    """Write one file, whole or not at all.

    Args:
        path: Target; replaced if it exists. Its folder must exist.
        document: What only we read; JSON.
        entries: The bytes.

    Returns:
        The seal: sha256 of the file with the seal's own place zeroed, in hex.

    Raises:
        StateError: The file cannot be written; what was there before still is.

    Cost: reads the bytes twice (digest, then write) and waits for the disk.
    """
    table: dict[str, Any] = {
        "__metadata__": {"opguard.format": str(FORMAT), "opguard.seal": _NO_SEAL, "opguard.document": json.dumps(document)}
    }
    offset = 0
    for entry in entries:
        table[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [offset, offset + entry.nbytes]}
        offset += entry.nbytes
    header = json.dumps(table, separators=(",", ":")).encode("ascii")
    header += b" " * (-len(header) % 8)
    start = len(header).to_bytes(8, "little")
    digest = hashlib.sha256(start + header)
    for entry in entries:
        digest.update(memory(entry.storage, entry.begin, entry.nbytes))
    seal = digest.hexdigest()
    header = header.replace(_seal_text(_NO_SEAL), _seal_text(seal), 1)
    temporary = path
    try:
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        _sweep(path)
        with temporary.open("wb") as stream:
            with contextlib.suppress(OSError):  # some network file systems know no locks; then nobody sweeps either
                fcntl.flock(stream, fcntl.LOCK_EX)
            stream.write(start + header)
            for entry in entries:
                stream.write(memory(entry.storage, entry.begin, entry.nbytes))
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except (OSError, ValueError) as error:  # ValueError: a path that no file can have
        raise StateError(
            f"The snapshot {path} cannot be written: {error}.", hint="Name a file in a folder that exists, on a disk with room."
        ) from error
    finally:
        if temporary != path:
            with contextlib.suppress(OSError, ValueError):
                temporary.unlink()
    return seal


def read(path: Path, *, data: bool = True) -> tuple[dict[str, Any], dict[str, torch.UntypedStorage], str]:
    """Read and check one file.

    Args:
        path: The file.
        data: Whether the bytes are wanted; without them only the header is read and the seal is not checked.

    Returns:
        The document, the bytes of each entry in memory that torch allocated (so alignment is as in any run), and the seal.

    Raises:
        StateDamaged: It is not a snapshot, or not what was written, or of a newer format.

    Cost: reads the file once.
    """
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            start = stream.read(8)
            length = int.from_bytes(start, "little")
            if len(start) < 8 or length > min(MAX_HEADER_BYTES, size - 8):
                raise _damaged(path, f"a header of {length} bytes cannot lie in {size} bytes")
            header = stream.read(length)
            table, metadata = _table(path, header)
            document = _document(path, metadata)
            if not data:
                return document, {}, str(metadata["opguard.seal"])
            storages = dict(_read_entries(path, stream, table, size - 8 - length))
    except (OSError, ValueError) as error:
        raise StateDamaged(f"The snapshot {path} cannot be read: {error}.", hint="Check the path and its permissions.") from error
    seal = str(metadata["opguard.seal"])
    if not _SEAL.fullmatch(seal):
        raise _damaged(path, "its seal is no digest")
    digest = hashlib.sha256(start + header.replace(_seal_text(seal), _seal_text(_NO_SEAL), 1))
    for storage in storages.values():
        digest.update(memory(storage, 0, storage.nbytes()))
    if digest.hexdigest() != seal:
        raise _damaged(path, f"its bytes have the digest {digest.hexdigest()[:16]}, it was sealed with {seal[:16]}")
    return document, storages, seal


def _seal_text(seal: str) -> bytes:
    return f'"opguard.seal":"{seal}"'.encode("ascii")


def _table(path: Path, header: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        table = json.loads(header)
        metadata = table.pop("__metadata__")
        version = int(metadata["opguard.format"])
        str(metadata["opguard.seal"]), str(metadata["opguard.document"])
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise _damaged(path, f"it has no header of ours ({type(error).__name__})") from error
    if version > FORMAT:
        raise StateDamaged(
            f"The snapshot {path} has format {version}; this release reads up to {FORMAT}.",
            slug="state-newer",
            hint="Use the release that wrote it, or a newer one.",
        )
    return table, metadata


def _document(path: Path, metadata: dict[str, Any]) -> dict[str, Any]:
    try:
        document = json.loads(metadata["opguard.document"])
    except (ValueError, TypeError, RecursionError) as error:
        raise _damaged(path, "its document is not JSON") from error
    if not isinstance(document, dict):
        raise _damaged(path, "its document is not an object")
    return document


def _read_entries(path: Path, stream: BinaryIO, table: dict[str, Any], available: int) -> Iterator[tuple[str, torch.UntypedStorage]]:
    """Read the entries in the order of the header; each must begin where the one before ended."""
    at = 0
    for name, item in table.items():
        try:
            begin, end = map(int, item["data_offsets"])
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(path, f"entry {name!r} has no extent") from error
        if begin != at or end < begin or end > available:
            raise _damaged(path, f"entry {name!r} lies at {begin} to {end} where {at} to at most {available} is possible")
        storage = torch.UntypedStorage(end - begin)
        view, done = memory(storage, 0, end - begin), 0
        while done < end - begin:
            count = stream.readinto(view[done : done + CHUNK_BYTES])  # type: ignore[attr-defined]
            if not count:
                raise _damaged(path, f"it ends inside entry {name!r}")
            done += count
        at = end
        yield name, storage
    if at != available:
        raise _damaged(path, f"{available - at} bytes follow the last entry")


def _damaged(path: Path, what: str) -> StateDamaged:
    return StateDamaged(f"{path} is not an intact snapshot: {what}.")


def _sweep(path: Path) -> None:
    """Remove what writers of this file left behind that were killed: nobody holds its lock."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with contextlib.suppress(OSError), left.open("r+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()


def _sync_folder(folder: Path) -> None:
    """Make the rename durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
