"""Run and rank manifests: what a trace says about itself, written whole or not at all.

`DIR/manifest.json` is written by whoever launched the run, `DIR/rank-NNNNN/manifest.json` by that rank's `TraceWriter`.
Both carry a seal (the sha256 of everything before it), so a changed byte makes the manifest damaged, not wrong.

No pyarrow here: listing runs must stay fast.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import orjson

from opguard_core.errors import TraceFormatError
from opguard_core.trace.drops import Drops
from opguard_core.trace.files import read_checked, sync_directory, write_atomic
from opguard_core.trace.index import SegmentEntry, listed, read_listed, read_ranges
from opguard_core.trace.problems import refusal
from opguard_core.trace.version import FORMAT_VERSION, check_version

MANIFEST_NAME = "manifest.json"
MAX_MANIFEST_BYTES = 256 << 20
MAX_MANIFEST_VALUES = 1 << 23
ENDED = ("exit", "exception", "signal", "unknown")


@dataclass
class RunManifest:
    """Facts about one run of a training program, all ranks together.

    Attributes:
        created_utc: ISO 8601 time of the launch.
        argv: Command line of the training, redacted.
        cwd: Working directory.
        user_root: Folder that places are relative to.
        mode: One of `ids.MODES`.
        steps: Half-open capture window, or None for all.
        python: Version of the training's interpreter.
        platform: Operating system and machine, as `platform.platform()`.
        exit: `{"code": int | None, "signal": int | None}`, or None while it runs.
        ranks: Global ranks that were captured.
        left_alone: Processes not captured: `{"pid", "argv0", "reason"}`.
        complete: Written by the launcher after the last process ended.
        format: Trace format version.
        extra: Keys this release does not know; kept as they are.
    """

    created_utc: str = ""
    argv: list[str] = field(default_factory=list)
    cwd: str = ""
    user_root: str = ""
    mode: str = ""
    steps: tuple[int, int] | None = None
    python: str = ""
    platform: str = ""
    exit: dict[str, int | None] | None = None
    ranks: list[int] = field(default_factory=list)
    left_alone: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = False
    format: int = FORMAT_VERSION
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain form for JSON."""
        return _to_dict(self)


@dataclass
class RankManifest:
    """Facts about one rank's trace.

    Attributes:
        rank: Global rank.
        world_size: Number of ranks of the run.
        pid: Process that wrote it.
        mode: One of `ids.MODES`.
        engines: Report of each engine by name: what was active, what it could not see.
        coverage: What could not be seen, each with reason and count, and whether it touched observed storage.
        contract: What two runs must share to be comparable (DESIGN 10).
        segments: Every segment, in the order written; empty until `complete`, see `index`.
        drops: Events that were not kept.
        compression: Codec of the segments: "zstd", "lz4" or "none".
        complete: Everything emitted is either in `segments` or counted in `drops`.
        ended: How the training ended, one of `ENDED`.
        format: Trace format version.
        extra: Keys this release does not know; kept as they are.
    """

    rank: int = 0
    world_size: int = 1
    pid: int = 0
    mode: str = ""
    engines: dict[str, Any] = field(default_factory=dict)
    coverage: dict[str, Any] = field(default_factory=dict)
    contract: dict[str, Any] = field(default_factory=dict)
    segments: list[SegmentEntry] = field(default_factory=list)
    drops: Drops = field(default_factory=Drops)
    compression: str = ""
    complete: bool = False
    ended: str = "unknown"
    format: int = FORMAT_VERSION
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain form for JSON."""
        record = _to_dict(self)
        record |= listed(self.segments)
        record["drops"] = {**self.drops.__dict__, "ranges": [list(pair) for pair in self.drops.ranges]}
        return record


def write_manifest(directory: Path, manifest: RunManifest | RankManifest) -> None:
    """Write `manifest.json` of a run or rank folder, atomically and durably.

    Values that JSON does not know are written as `str` gives them.

    Raises:
        OSError: The folder cannot be written; the manifest of before is still there.
        TypeError: A value fits no JSON (an integer of more than 64 bits).
    """
    record = orjson.loads(orjson.dumps(manifest.to_dict(), default=str, option=orjson.OPT_NON_STR_KEYS))
    record["seal"] = _seal(record)
    write_atomic(directory / MANIFEST_NAME, orjson.dumps(record, option=orjson.OPT_INDENT_2) + b"\n")
    sync_directory(directory)


def read_run_manifest(directory: Path) -> RunManifest:
    """Read a run folder's manifest; cheap, reads no segment.

    Raises:
        TraceFormatError: Missing, damaged, of wrong types.
        UnsupportedVersion: Written by a newer release.
    """
    path = directory / MANIFEST_NAME
    return parse_run_manifest(read_checked(path, limit=MAX_MANIFEST_BYTES), path)


def parse_run_manifest(data: bytes, path: Path) -> RunManifest:
    """As `read_run_manifest`, from the bytes of a file named ``path``."""
    manifest: RunManifest = _build(RunManifest, _parse(data, path), path)
    return manifest


def read_rank_manifest(directory: Path) -> RankManifest:
    """Read a rank folder's manifest; errors as `read_run_manifest`."""
    path = directory / MANIFEST_NAME
    return parse_rank_manifest(read_checked(path, limit=MAX_MANIFEST_BYTES), path)


def parse_rank_manifest(data: bytes, path: Path) -> RankManifest:
    """As `read_rank_manifest`, from the bytes of a file named ``path``."""
    record = _parse(data, path)
    lists: dict[str, Any] = {key: record.pop(key) for key in ("segments", "further") if key in record}
    drops = record.pop("drops", {})
    manifest: RankManifest = _build(RankManifest, record, path)
    manifest.segments = read_listed(lists, path)
    manifest.drops = _drops(drops, path)
    return manifest


def _drops(value: Any, path: Path) -> Drops:
    ranges = read_ranges(value.get("ranges", []), path) if isinstance(value, dict) else ()
    events = sum(last - first + 1 for first, last in ranges)
    if not isinstance(value, dict) or value.get("events", 0) != events:
        raise refusal(TraceFormatError, "Bad manifest value, drops", path=path, expected=f"events: {events} and their ranges", found=value)
    reasons, other, errors = value.get("reasons", {}), value.get("other", {}), value.get("errors", [])
    if not isinstance(reasons, dict) or not isinstance(other, dict) or not isinstance(errors, list):
        raise refusal(TraceFormatError, "Bad manifest value, drops", path=path, expected="reasons, other, errors", found=value)
    return Drops(events, ranges, reasons, other, tuple(errors))


def _to_dict(manifest: RunManifest | RankManifest) -> dict[str, Any]:
    known = {f.name: getattr(manifest, f.name) for f in fields(manifest) if f.name != "extra"}
    return {"format": manifest.format, **known, **manifest.extra}


def _seal(record: dict[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(record)).hexdigest()


def _parse(data: bytes, path: Path) -> dict[str, Any]:
    values = sum(map(data.count, (b",", b"[", b"{")))  # no JSON has more values than this, and each costs up to 100 bytes
    if values > MAX_MANIFEST_VALUES:
        raise refusal(TraceFormatError, "Manifest too large", path=path, expected=f"at most {MAX_MANIFEST_VALUES} values", found=values)
    try:
        record = orjson.loads(data)
    except ValueError as error:
        raise refusal(
            TraceFormatError, "Damaged manifest", path=path, expected="JSON", found=str(error), slug="manifest-damaged"
        ) from error
    check_version(record, path)
    seal = record.pop("seal", None)
    if seal != _seal(record):
        raise refusal(
            TraceFormatError, "Damaged manifest", path=path, expected=f"seal {_seal(record)}", found=seal, slug="manifest-damaged"
        )
    assert isinstance(record, dict)
    return record


def _build(kind: type[Any], record: dict[str, Any], path: Path) -> Any:
    """Fill a manifest dataclass from JSON, checking each value against the type of its default."""
    manifest = kind()
    known = {f.name for f in fields(kind)} - {"extra"}
    values: dict[str, Any] = {}
    for key, value in record.items():
        if key not in known:
            continue
        default = getattr(manifest, key)
        if key == "steps":
            value = _steps(value, path)
        elif key == "exit":
            if value is not None and not isinstance(value, dict):
                raise refusal(TraceFormatError, "Bad manifest value, exit", path=path, expected="an object or null", found=value)
        elif type(value) is not type(default):
            raise refusal(TraceFormatError, f"Bad manifest value, {key}", path=path, expected=type(default).__name__, found=value)
        values[key] = value
    values["extra"] = {key: value for key, value in record.items() if key not in known}
    return kind(**values)


def _steps(value: Any, path: Path) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or any(type(number) is not int for number in value):
        raise refusal(TraceFormatError, "Bad manifest value, steps", path=path, expected="[first, last] or null", found=value)
    return (value[0], value[1])
