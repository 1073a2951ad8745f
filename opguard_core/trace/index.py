"""The append-only index of a rank: which groups of segments are whole, written as each one becomes durable.

Until a rank ends, and for ever if it is killed, this file is the authority on what its trace holds. A group of segments
(same number, one per table that has rows) exists from the moment its line is complete, and not before: that is how
events and slots always agree. Each line starts with a check that covers the line and, through the check of the line
before, everything above it, so a cut or a changed byte ends the prefix instead of altering it.

No pyarrow here: listing runs must stay fast.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from opguard_core.errors import TraceFormatError
from opguard_core.trace.files import FILE_MODE, read_checked, write_all
from opguard_core.trace.problems import TornTail, refusal
from opguard_core.trace.version import check_version

INDEX_NAME = "index.log"
MAX_INDEX_BYTES = 256 << 20
MAX_LINE_BYTES = 4 << 20  # one group: a few segments, and the ranges lost since the group before
TABLE_NAMES = ("frames", "stacks", "lifetimes", "launches", "slots", "events")  # in the order a group is written
FURTHER_TABLES = ("launches",)
"""Tables that a reader may leave out: their segments are listed apart, under ``further``, where a reader that does not know them looks
for nothing, and skips those of tables that it does not know."""
_CHECK_CHARS = 32
_SEGMENT_NAME = re.compile(r"(events|slots|frames|stacks|lifetimes|launches)-(\d{6,12})\.arrow")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class SegmentEntry:
    """One segment file as promised by the index and the rank manifest.

    Attributes:
        file: Name inside the rank's folder, `<table>-<group>.arrow`.
        table: Key of `schema.TABLES`.
        rows: Number of rows.
        bytes: Exact file size.
        sha256: Digest of the whole file, lower-case hex.
        first_seq: First `seq` (events, slots), first id (frames, stacks) or first row number (lifetimes, launches).
        last_seq: Last of the same, inclusive.
    """

    file: str
    table: str
    rows: int
    bytes: int
    sha256: str
    first_seq: int
    last_seq: int

    @property
    def group(self) -> int:
        """Number of the group this segment belongs to."""
        return int(self.file[len(self.table) + 1 : -len(".arrow")])

    def to_dict(self) -> dict[str, Any]:
        """Plain form for JSON."""
        return dict(self.__dict__)

    @classmethod
    def from_dict(cls, value: Any, path: Path) -> SegmentEntry:
        """Check and build; raises TraceFormatError naming ``path``, so no file name outside the folder is ever believed."""
        if not isinstance(value, dict):
            raise refusal(TraceFormatError, "Bad segment entry", path=path, expected="an object", found=type(value).__name__)
        for key in ("rows", "bytes", "first_seq", "last_seq"):
            number = value.get(key)
            if type(number) is not int or not 0 <= number < 2**63:
                raise refusal(TraceFormatError, f"Bad segment entry, {key}", path=path, expected="an integer >= 0", found=number)
        name, table, digest = value.get("file"), value.get("table"), value.get("sha256")
        match = _SEGMENT_NAME.fullmatch(name) if isinstance(name, str) else None
        if match is None or match.group(1) != table:
            raise refusal(TraceFormatError, "Bad segment name", path=path, expected=f"{table}-NNNNNN.arrow", found=name)
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            raise refusal(TraceFormatError, "Bad segment digest", path=path, expected="64 hex digits", found=digest)
        if value["rows"] < 1 or value["last_seq"] < value["first_seq"]:
            raise refusal(TraceFormatError, "Bad segment extent", path=path, expected="rows >= 1, first <= last", found=value)
        return cls(**{key: value[key] for key in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Group:
    """Segments that became durable together, and the ranges of ``seq`` found lost since the group before."""

    segments: tuple[SegmentEntry, ...]
    dropped: tuple[tuple[int, int], ...] = ()

    def of(self, table: str) -> SegmentEntry | None:
        """The group's segment of one table, if it has rows."""
        return next((entry for entry in self.segments if entry.table == table), None)


def listed(segments: Iterable[SegmentEntry]) -> dict[str, list[dict[str, Any]]]:
    """Segments in plain form: ``segments``, and ``further`` if there are such."""
    lists: dict[str, list[dict[str, Any]]] = {"segments": []}
    for entry in segments:
        lists.setdefault("further" if entry.table in FURTHER_TABLES else "segments", []).append(entry.to_dict())
    return lists


def read_listed(record: Mapping[str, Any], path: Path) -> list[SegmentEntry]:
    """Check and build what `listed` gave; raises TraceFormatError naming ``path``."""
    entries: list[SegmentEntry] = []
    for key in ("segments", "further"):
        found = record.get(key, [])
        if not isinstance(found, list):
            raise refusal(TraceFormatError, f"Bad {key}", path=path, expected="a list", found=type(found).__name__)
        unknown = key == "further"
        entries += [SegmentEntry.from_dict(entry, path) for entry in found if not (unknown and _of_unknown_table(entry))]
    return entries


def _of_unknown_table(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("table"), str) and entry["table"] not in FURTHER_TABLES


def segment_name(table: str, group: int) -> str:
    """File name of a segment."""
    return f"{table}-{group:06d}.arrow"


def _check(previous: str, payload: bytes) -> str:
    return hashlib.sha256(previous.encode() + payload).hexdigest()[:_CHECK_CHARS]


class IndexWriter:
    """Appends to the index of one rank. Creating it claims the folder: a second writer is refused by the file system."""

    def __init__(self, directory: Path, header: dict[str, Any]) -> None:
        """Claim ``directory`` and write the header line.

        Raises:
            FileExistsError: Another writer has, or had, this folder.
            OSError: The folder cannot be written.
        """
        self._descriptor = os.open(
            directory / INDEX_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), FILE_MODE
        )
        self._good_bytes = 0
        self._previous = ""
        self._broken: OSError | None = None
        self._append(header)

    def append(self, group: Group) -> None:
        """Make ``group`` part of the trace. Raises OSError, and then the index is as it was before."""
        self._append({**listed(group.segments), "dropped": [list(pair) for pair in group.dropped]})

    def _append(self, record: dict[str, Any]) -> None:
        if self._broken is not None:
            raise self._broken
        payload = orjson.dumps(record)
        check = _check(self._previous, payload)
        line = check.encode() + b" " + payload + b"\n"
        try:
            write_all(self._descriptor, line)
            os.fsync(self._descriptor)
        except OSError:
            self._truncate()
            raise
        self._good_bytes += len(line)
        self._previous = check

    def _truncate(self) -> None:
        try:
            os.ftruncate(self._descriptor, self._good_bytes)
        except OSError as error:
            # A partial line we cannot take back would make every later line unreadable.
            self._broken = error

    def close(self) -> None:
        """Close the descriptor; harmless twice and in a forked child."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@dataclass(frozen=True)
class Index:
    """What the index of a rank says, up to its first damaged or unfinished line."""

    header: dict[str, Any]
    groups: tuple[Group, ...]
    torn: TornTail | None


def read_index(path: Path) -> Index:
    """Read an index; a cut or damaged line ends it.

    Raises:
        UnsupportedVersion: Written by a newer release.
        TraceFormatError: A link, no file, or far too large.
    """
    return parse_index(read_checked(path, limit=MAX_INDEX_BYTES), path)


def parse_index(data: bytes, path: Path) -> Index:
    """As `read_index`, from bytes.

    Args:
        data: The whole file.
        path: For messages.

    Cost: one line of at most `MAX_LINE_BYTES` as Python objects at a time, and the groups.
    """
    header: dict[str, Any] = {}
    groups: list[Group] = []
    offset, previous = 0, ""
    while offset < len(data):
        end = data.find(b"\n", offset)
        line = data[offset : end if end >= 0 else len(data)]
        check, payload = line[:_CHECK_CHARS].decode("ascii", "replace"), line[_CHECK_CHARS + 1 :]
        if end < 0 or line[_CHECK_CHARS : _CHECK_CHARS + 1] != b" " or check != _check(previous, payload):
            return Index(header, tuple(groups), _torn(path, offset, groups))
        if len(payload) > MAX_LINE_BYTES:
            raise refusal(
                TraceFormatError, "Index line too long", path=path, offset=offset, expected=f"at most {MAX_LINE_BYTES}", found=len(payload)
            )
        try:
            record = orjson.loads(payload)
        except ValueError as error:
            raise refusal(TraceFormatError, "Bad index line", path=path, offset=offset, expected="JSON", found=str(error)) from error
        if offset == 0:
            check_version(record, path)
            header = record
        else:
            groups.append(_group(record, path, offset))
        offset, previous = end + 1, check
    torn = None if header else _torn(path, 0, groups)
    return Index(header, tuple(groups), torn)


def _torn(path: Path, offset: int, groups: list[Group]) -> TornTail:
    text = f"The index {path} is cut or damaged at byte {offset}; {len(groups)} groups before it are whole."
    return TornTail("index-damaged", text, 0, str(path))


def _group(record: Any, path: Path, offset: int) -> Group:
    if not isinstance(record, dict) or not isinstance(record.get("segments"), list):
        raise refusal(TraceFormatError, "Bad index line", path=path, offset=offset, expected="an object with segments", found=record)
    return Group(tuple(read_listed(record, path)), read_ranges(record.get("dropped", []), path))


def read_ranges(value: Any, path: Path) -> tuple[tuple[int, int], ...]:
    """Check a list of inclusive ranges ``[[first, last], …]``; raises TraceFormatError."""
    if not isinstance(value, list):
        raise refusal(TraceFormatError, "Bad ranges", path=path, expected="a list", found=type(value).__name__)
    ranges = []
    for pair in value:
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or any(type(number) is not int for number in pair)
            or not 0 <= pair[0] <= pair[1] < 2**63
        ):
            raise refusal(TraceFormatError, "Bad range", path=path, expected="[first, last]", found=pair)
        ranges.append((pair[0], pair[1]))
    return tuple(ranges)
