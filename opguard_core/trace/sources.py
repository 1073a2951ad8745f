"""The store of executed source text: one file per text, named by its digest, shared by all ranks of a run.

`DIR/sources/<sha256>.py.gz`. Any number of ranks may race to write the same file: each writes its own temporary file and
renames it over the target, and all of them hold the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import zlib
from pathlib import Path

from opguard_core.errors import CorruptSegment, TraceFormatError
from opguard_core.trace.files import DIRECTORY_MODE, read_checked, sync_directory, write_atomic
from opguard_core.trace.problems import refusal

SOURCES_NAME = "sources"
MAX_SOURCE_BYTES = 64 << 20
_SUFFIX = ".py.gz"
_PLAIN_SUFFIX = ".py"  # of traces written before texts were compressed
_DIGEST = re.compile(r"[0-9a-f]{64}")


def encode_source(text: str) -> bytes:
    """Bytes of a source text as stored and digested: UTF-8, line ends untouched; lone surrogates pass through."""
    return text.encode("utf-8", "surrogatepass")


def source_digest(text: str) -> str:
    """Name of a source text: lower-case hex sha256 of `encode_source`. What a frame's ``source`` column holds."""
    return hashlib.sha256(encode_source(text)).hexdigest()


def write_source(directory: Path, digest: str, text: str) -> None:
    """Store one text under its digest, unless it is there already.

    Args:
        directory: The `sources` folder of the run; made if absent.
        digest: As given by `source_digest`.
        text: The text.

    Raises:
        ValueError: ``digest`` is not the digest of ``text``.
        OSError: It could not be stored; nothing partial is left under the name.
    """
    data = encode_source(text)
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError(f"source text does not have the digest {digest!r}")
    path = directory / f"{digest}{_SUFFIX}"
    if os.path.lexists(path):
        return
    directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    write_atomic(path, gzip.compress(data, mtime=0))
    sync_directory(directory)


def read_source(directory: Path, digest: str) -> str:
    """Read one text back and check it against its name.

    Raises:
        TraceFormatError: No such digest, or (CorruptSegment) its content does not have that digest.
    """
    if not _DIGEST.fullmatch(digest):
        raise refusal(TraceFormatError, "Bad source digest", path=directory, expected="64 hex digits", found=digest, slug="source-missing")
    path, plain = directory / f"{digest}{_SUFFIX}", directory / f"{digest}{_PLAIN_SUFFIX}"
    if os.path.lexists(path):
        data = _inflated(read_checked(path, limit=MAX_SOURCE_BYTES), path)
    elif os.path.lexists(plain):
        data = read_checked(plain, limit=MAX_SOURCE_BYTES)
    else:
        raise refusal(TraceFormatError, "Source not in the trace", path=path, expected="a file", found="nothing", slug="source-missing")
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        raise refusal(CorruptSegment, "Source changed after it was stored", path=path, expected=f"sha256 {digest}", found=found)
    return data.decode("utf-8", "surrogatepass")


def stored_bytes(directory: Path) -> int:
    """Bytes on disk of all texts of a store, 0 where there is none."""
    return sum(path.stat().st_size for path in directory.glob("*") if path.is_file())


def _inflated(data: bytes, path: Path) -> bytes:
    """Decompress, never beyond what a source may have."""
    stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        text = stream.decompress(data, MAX_SOURCE_BYTES)
    except zlib.error as error:
        raise refusal(CorruptSegment, "Source not readable", path=path, expected="gzip", found=str(error)) from error
    if not stream.eof or stream.unused_data:
        raise refusal(CorruptSegment, "Source not readable", path=path, expected="one gzip stream of at most 64 MiB", found="another")
    return text
