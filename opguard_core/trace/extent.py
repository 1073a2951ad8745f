"""How far a rank's trace can be trusted: manifest or index, then the sizes on disk, give the prefix of whole groups."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from opguard_core.errors import CorruptSegment, TraceFormatError, UnsupportedVersion
from opguard_core.trace.drops import complement, merge_ranges
from opguard_core.trace.index import INDEX_NAME, Group, SegmentEntry, read_index
from opguard_core.trace.manifest import MANIFEST_NAME, RankManifest, read_rank_manifest
from opguard_core.trace.problems import TornTail, refusal


@dataclass(frozen=True)
class Extent:
    """The readable prefix of one rank.

    Attributes:
        manifest: As read, or all defaults.
        groups: Whole groups, in order.
        dropped: Sorted disjoint ranges of ``seq`` that were lost.
        torn: Why it stops early, or None.
    """

    manifest: RankManifest
    groups: tuple[Group, ...]
    dropped: tuple[tuple[int, int], ...]
    torn: TornTail | None


def read_extent(path: Path) -> Extent:
    """Find the prefix of a rank's folder whose segments are all there and of the promised size.

    Raises:
        UnsupportedVersion: Written by a newer release.
        CorruptSegment: A segment is larger than promised, or no plain file, or numbers do not follow each other.
        TraceFormatError: Manifest or index hold values that the format does not allow.
    """
    manifest, torn = _read_manifest(path)
    if manifest.complete:
        groups, dropped = _groups(manifest.segments), manifest.drops.ranges
    else:
        groups, dropped, index_torn = _read_index(path)
        torn = index_torn or torn
    whole: list[Group] = []
    for group in groups:
        short = next((entry for entry in group.segments if not _is_whole(path, entry)), None)
        if short is not None:
            torn = _missing(path, short)
            break
        whole.append(group)
    ranges = tuple(merge_ranges(list(dropped)))
    next_seq = _check_contiguous(path, whole, ranges)
    if torn is not None:
        torn = TornTail(torn.slug, torn.text, next_seq, torn.path)
    return Extent(manifest, tuple(whole), ranges, torn)


def _read_manifest(path: Path) -> tuple[RankManifest, TornTail | None]:
    file = path / MANIFEST_NAME
    try:
        manifest = read_rank_manifest(path)
    except UnsupportedVersion:
        raise
    except TraceFormatError as error:
        slug = "manifest-damaged" if os.path.lexists(file) else "no-manifest"
        return RankManifest(), TornTail(slug, error.message, 0, str(file))
    if manifest.rank != int(path.name.rpartition("-")[2]):
        raise refusal(TraceFormatError, "Manifest of another rank", path=file, expected=path.name, found=f"rank {manifest.rank}")
    if manifest.complete:
        return manifest, None
    return manifest, TornTail("not-finished", f"The writer of {path} did not finish; it was probably killed.", 0, str(file))


def _read_index(path: Path) -> tuple[tuple[Group, ...], tuple[tuple[int, int], ...], TornTail | None]:
    file = path / INDEX_NAME
    if not os.path.lexists(file):
        return (), (), TornTail("index-missing", f"There is neither a finished manifest nor an index in {path}.", 0, str(file))
    index = read_index(file)
    return index.groups, tuple(pair for group in index.groups for pair in group.dropped), index.torn


def _groups(segments: list[SegmentEntry]) -> tuple[Group, ...]:
    by_number: dict[int, list[SegmentEntry]] = {}
    for entry in segments:
        by_number.setdefault(entry.group, []).append(entry)
    return tuple(Group(tuple(by_number[number])) for number in sorted(by_number))


def _is_whole(path: Path, entry: SegmentEntry) -> bool:
    file = path / entry.file
    try:
        status = file.lstat()
    except FileNotFoundError:
        return False  # lost after it was entered in the index
    except OSError as error:
        raise refusal(CorruptSegment, "Cannot look at segment", path=file, expected="a file", found=error.strerror) from error
    if not stat.S_ISREG(status.st_mode):
        raise refusal(CorruptSegment, "Segment is no plain file", path=file, expected="a regular file", found=stat.filemode(status.st_mode))
    if status.st_size > entry.bytes:
        raise refusal(
            CorruptSegment, "Segment too long", path=file, offset=entry.bytes, expected=f"{entry.bytes} bytes", found=status.st_size
        )
    return status.st_size == entry.bytes


def _missing(path: Path, entry: SegmentEntry) -> TornTail:
    file = path / entry.file
    slug = "segment-short" if os.path.lexists(file) else "segment-missing"
    return TornTail(slug, f"Segment {file} is cut or gone; its {entry.bytes} bytes and all that follows cannot be used.", 0, str(file))


def _check_contiguous(path: Path, groups: list[Group], dropped: tuple[tuple[int, int], ...]) -> int:
    """Check that event numbers run from 0 without unrecorded holes between groups; returns one past the last."""
    covered: list[tuple[int, int]] = []
    next_seq = 0
    for group in groups:
        events, slots = group.of("events"), group.of("slots")
        if events is None:
            if slots is not None:
                raise refusal(CorruptSegment, "Slots without events", path=path / slots.file, expected="an events segment", found="none")
            continue
        if events.first_seq < next_seq or events.last_seq - events.first_seq + 1 < events.rows:
            raise refusal(
                CorruptSegment, "Event numbers run backwards", path=path / events.file, expected=f"from {next_seq}", found=events.first_seq
            )
        if slots is not None and not events.first_seq <= slots.first_seq <= slots.last_seq <= events.last_seq:
            raise refusal(
                CorruptSegment,
                "Slots of other events",
                path=path / slots.file,
                expected=f"{events.first_seq} to {events.last_seq}",
                found=f"{slots.first_seq} to {slots.last_seq}",
            )
        covered.append((events.first_seq, events.last_seq))
        next_seq = events.last_seq + 1
    holes = complement([*covered, *dropped], next_seq)
    if holes:
        raise refusal(CorruptSegment, "Events missing without a record of it", path=path, expected="none", found=f"seq {holes[0]}")
    return next_seq
