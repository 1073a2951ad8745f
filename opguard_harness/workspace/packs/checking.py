"""Checking a pack, byte for byte, before anything of it is used.

A pack is exactly: the entries that its list names, in that order, each behind a header that follows from name and size, the
directory of these, and the end. Whatever a zip may say besides (comments, extra fields, gaps, links, other compressions, a second
entry of one name) makes it no pack. So there is nothing that another reader of zips could see in it and this one does not.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from opguard_core.trace.files import FILE_MODE
from opguard_harness.errors import PackDamaged
from opguard_harness.workspace.packs.listed import MANIFEST, MAX_FILES, MAX_MANIFEST_BYTES, MAX_PACK_BYTES, Listed, Manifest, read_manifest
from opguard_harness.workspace.packs.writing import CHUNK_BYTES, header

_END = struct.Struct("<4s4H2LH")
_DIRECTORY = struct.Struct("<4s4B4HL2L5H2L")
_LOCAL_BYTES = 30
_MOST_DIRECTORY_BYTES = (MAX_FILES + 1) * (_DIRECTORY.size + 400)


@dataclass(frozen=True)
class CheckedPack:
    """A pack whose form and list are right; its content is checked while it is taken out.

    Attributes:
        manifest: Its list.
        digest: Of the list, which names the digest of everything else.
        size: Bytes of the file.
    """

    manifest: Manifest
    digest: str
    size: int
    _file: BinaryIO
    _begins: dict[str, int]

    def take_out(self, folder: Path) -> None:
        """Write every file below a new folder, each as large as the list says and of the digest that it says.

        Raises:
            PackDamaged: A file is not what the list says.
        """
        for item in self.manifest.files:
            target = folder.joinpath(*item.name.split("/"))
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take(item, target)

    def _take(self, item: Listed, target: Path) -> None:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        found = hashlib.sha256()
        with os.fdopen(descriptor, "wb") as out:
            self._file.seek(self._begins[item.name])
            left = item.bytes
            while left and (chunk := self._file.read(min(left, CHUNK_BYTES))):
                found.update(chunk)
                out.write(chunk)
                left -= len(chunk)
        if left or found.hexdigest() != item.sha256:
            raise PackDamaged(
                f"{item.name} is not what the list of the pack says: sha256 {found.hexdigest()[:12]}, not {item.sha256[:12]}."
            )


def check(file: BinaryIO) -> CheckedPack:
    """Check the form of a pack and read its list.

    Args:
        file: The file, open; it is read again by `CheckedPack.take_out`.

    Raises:
        PackDamaged: It is no pack, or not as it was written.
    """
    status = os.fstat(file.fileno())
    if status.st_size > MAX_PACK_BYTES + MAX_MANIFEST_BYTES + 2 * _MOST_DIRECTORY_BYTES:
        raise PackDamaged("It is larger than a pack can be.")
    _check_end(file, status.st_size)
    try:
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            directory_at = archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OSError, EOFError, OverflowError) as error:
        raise PackDamaged(f"It is no zip: {str(error)[:120]}.") from error
    begins = _check_entries(file, infos, directory_at)
    first = infos[0] if infos else None
    if first is None or first.filename != MANIFEST or first.file_size > MAX_MANIFEST_BYTES:
        raise PackDamaged(f"It does not begin with {MANIFEST}.")
    data = _read(file, begins[MANIFEST], first.file_size)
    manifest = read_manifest(data)
    held = [(info.filename, info.file_size) for info in infos[1:]]
    named = [(item.name, item.bytes) for item in manifest.files]
    if held != named:
        odd = next((name for name, _ in {*held} ^ {*named}), "another order")
        raise PackDamaged(f"What is in it is not what its list names: {odd[:120]!r}.")
    _check_sums(file, infos, begins)
    return CheckedPack(manifest, hashlib.sha256(data).hexdigest(), status.st_size, file, begins)


def _check_end(file: BinaryIO, size: int) -> None:
    """The end of the file is the end of one plain zip, whose directory has a size that may be read."""
    if size < _END.size:
        raise PackDamaged("It is no zip: it is too short.")
    mark, disk, first_disk, here, entries, directory_bytes, directory_at, comment = _END.unpack(_read(file, size - _END.size, _END.size))
    plain = mark == b"PK\5\6" and not disk and not first_disk and here == entries and not comment
    if not plain or directory_at + directory_bytes + _END.size != size or directory_bytes > _MOST_DIRECTORY_BYTES:
        raise PackDamaged("It is no zip as a pack is one: something follows or precedes its directory, or it was cut.")


def _check_entries(file: BinaryIO, infos: list[zipfile.ZipInfo], directory_at: int) -> dict[str, int]:
    """Every header is the one that a pack has there, without gaps.

    Returns:
        Where the content of each entry begins.
    """
    at, listed_at = 0, directory_at
    begins: dict[str, int] = {}
    for info in infos:
        name = info.orig_filename
        if not name.isascii() or name != info.filename or name in begins:
            raise PackDamaged(f"It has an entry twice, or one with a name that no pack has: {name[:80]!r}.")
        wanted = header(name, info.file_size)
        wanted.CRC, wanted.compress_size, wanted.header_offset = info.CRC, info.file_size, at
        local = wanted.FileHeader(zip64=False)
        if info.file_size > MAX_PACK_BYTES or info.header_offset != at or _read(file, at, len(local)) != local:
            raise PackDamaged(f"The entry {name[:80]!r} is not written as a pack writes it.")
        listed = _listed(wanted)
        if _read(file, listed_at, len(listed)) != listed:
            raise PackDamaged(f"The entry {name[:80]!r} is not listed as a pack lists it.")
        begins[name] = at + _LOCAL_BYTES + len(name)
        at, listed_at = begins[name] + info.file_size, listed_at + len(listed)
    if at != directory_at:
        raise PackDamaged("Something lies between its last entry and its directory.")
    return begins


def _listed(info: zipfile.ZipInfo) -> bytes:
    """An entry of the directory, as it follows from the header."""
    name = info.filename.encode("ascii")
    year, month, day = info.date_time[:3]
    date = (year - 1980) << 9 | month << 5 | day
    versions = (info.create_version, info.create_system, info.extract_version, 0)
    sizes = (info.CRC, info.compress_size, info.file_size)
    fields = (b"PK\1\2", *versions, 0, 0, 0, date, *sizes, len(name), 0, 0, 0, 0, info.external_attr, info.header_offset)
    return _DIRECTORY.pack(*fields) + name


def _check_sums(file: BinaryIO, infos: list[zipfile.ZipInfo], begins: dict[str, int]) -> None:
    """The checksums of the zip hold as well, so that other readers find in it what we do."""
    for info in infos:
        file.seek(begins[info.filename])
        left, found = info.file_size, 0
        while left and (chunk := file.read(min(left, CHUNK_BYTES))):
            found = zlib.crc32(chunk, found)
            left -= len(chunk)
        if left or found != info.CRC:
            raise PackDamaged(f"The entry {info.filename[:80]!r} was changed or cut.")


def _read(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    return file.read(size)
