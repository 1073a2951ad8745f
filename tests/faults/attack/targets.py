"""What is attacked. A target takes the bytes of one input, checks what must hold, and says what became of it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import orjson

from opguard_core.errors import TraceFormatError
from opguard_core.trace.codec import decode_segment
from opguard_core.trace.columns import StringTables, to_columns
from opguard_core.trace.index import parse_index
from opguard_core.trace.lookups import StackTable
from opguard_core.trace.manifest import parse_rank_manifest, parse_run_manifest
from opguard_core.trace.reader import Run
from opguard_core.trace.schema import TABLES
from tests.faults.attack import forging, rows
from tests.faults.attack.choices import Choices
from tests.support.traces import Content

NOWHERE = Path("rank-00000") / "file"


@dataclass(frozen=True)
class Target:
    """One thing under attack.

    Attributes:
        name: For the command line.
        share: Share of all inputs that go to it; cheap ones get more.
        seeds: Inputs to start from.
        attack: Takes an input, returns its outcome; raises when a promise is broken.
    """

    name: str
    share: float
    seeds: Callable[[], Iterator[bytes]]
    attack: Callable[[bytes], str]


def _index(data: bytes) -> str:
    """An index as it is, or (first byte odd) with checks that fit."""
    text = forging.chained_index(data[1:].split(b"\n")) if data[:1] and data[0] & 1 else data[1:]
    try:
        found = parse_index(text, NOWHERE)
    except TraceFormatError:
        return "refused"
    return "torn" if found.torn else "read"


def _index_seeds() -> Iterator[bytes]:
    index = forging.pristine()[forging.INDEX]
    yield b"\0" + index
    yield b"\1" + b"\n".join(forging.payloads(index))


RUN_MANIFEST = (
    b'{"format": 1, "argv": ["python"], "cwd": "/", "steps": [0, 2], "exit": {"code": 0, "signal": null}, "ranks": [0],'
    b' "left_alone": [{"pid": 1, "argv0": "x", "reason": "y"}], "complete": true}'
)
ODD_VALUES = (
    None,
    True,
    -1,
    0,
    1,
    2**63 - 1,
    2**64 - 1,
    0.5,
    "",
    "x",
    "../../x",
    "events-000000.arrow",
    [],
    {},
    [0, 1],
    [[5, 3]],
    {"x": []},
)


def _manifest(data: bytes) -> str:
    """A rank's or a run's manifest with a seal that fits: bytes as they are, or an honest one with values exchanged."""
    choices = Choices(data)
    of_run, exchanged = choices.number(2), choices.number(2)
    parse, honest = (parse_run_manifest, RUN_MANIFEST) if of_run else (parse_rank_manifest, forging.pristine()[forging.MANIFEST])
    text = choices.rest()
    if exchanged:
        record, choices = orjson.loads(honest), Choices(text)
        while choices:
            _exchange(record, choices)
        text = orjson.dumps(record)
    try:
        parse(forging.sealed_manifest(text), NOWHERE)
    except TraceFormatError:
        return "refused"
    return "read"


def _exchange(value: Any, choices: Choices) -> None:
    """Walk into a JSON value and put an odd one in the place of what is found there."""
    while value and isinstance(value, dict | list):
        keys: list[Any] = sorted(value) if isinstance(value, dict) else list(range(len(value)))
        key = choices.of(keys)
        if choices.number(3) == 0 or not isinstance(value[key], dict | list):
            value[key] = deepcopy(choices.of(ODD_VALUES))
            return
        value = value[key]


def _manifest_seeds() -> Iterator[bytes]:
    yield b"\0\0" + forging.pristine()[forging.MANIFEST]
    yield b"\1\0" + RUN_MANIFEST
    yield from (bytes([of_run, 1, key, 0, odd]) for of_run in (0, 1) for key in range(12) for odd in range(len(ODD_VALUES)))


def _segment(data: bytes) -> str:
    """Bytes in place of a segment, whose digest fits: table and number of rows come first."""
    if len(data) < 3:
        return "refused"
    table, (rows_promised,) = sorted(TABLES)[data[0] % len(TABLES)], struct.unpack_from("<H", data, 1)
    try:
        decoded = decode_segment(table, data[3:], rows=rows_promised, path=NOWHERE)
    except TraceFormatError:
        return "refused"
    assert decoded.num_rows == rows_promised
    if table == "stacks":
        stacks = StackTable([decoded])
        assert len([list(stack) for stack in stacks]) == rows_promised
    else:
        columns = to_columns(table, decoded, StringTables())
        assert {len(column) for column in columns.values()} == {rows_promised}
    return "read"


def _segment_seeds() -> Iterator[bytes]:
    for files in (forging.uncompressed(), forging.pristine()):
        for table in TABLES:
            name = min(name for name in files if name.startswith(f"{table}-"))
            data = files[name]
            rows_promised = next(entry["rows"] for entry in forging.segments(files) if entry["file"] == name)
            yield bytes([sorted(TABLES).index(table)]) + struct.pack("<H", rows_promised) + data


@cache
def _folder() -> Path:
    """A run folder that every input lays anew; in memory where the system has such a place."""
    shared = Path("/dev/shm")
    return Path(mkdtemp(prefix="opguard-attack-", dir=shared if shared.is_dir() else None)) / "run"


@cache
def _whole() -> Content:
    _lay(forging.uncompressed())
    return Content(Run.open(_folder()).ranks[0])


def _lay(files: forging.Files) -> None:
    rank = _folder() / "rank-00000"
    rank.mkdir(parents=True, exist_ok=True)
    for entry in rank.iterdir():
        if entry.name not in files:
            entry.unlink()
    for name, data in files.items():
        (rank / name).write_bytes(data)


def _files(data: bytes) -> str:
    """Files cut, changed, exchanged or gone; an honest reader gives a prefix or an error, a forged trace must not crash it."""
    whole = _whole()
    choices = Choices(data)
    forged = choices.number(2) == 1
    files = dict(forging.uncompressed())
    while choices and files:
        _spoil(files, choices)
    _lay(forging.resealed(files) if forged else files)
    try:
        run = Run.open(_folder())
        found = Content(run.ranks[0])
    except TraceFormatError:
        return "refused"
    if not forged:
        assert found.is_prefix_of(whole), "rows that were never written"
        assert run.ranks[0].torn is not None or found.num_events == whole.num_events, "a cut trace that does not say so"
    return "torn" if run.ranks[0].torn else "read"


def _spoil(files: forging.Files, choices: Choices) -> None:
    """Do one thing to one file."""
    names = sorted(files)
    name = choices.of(names)
    data = files[name]
    at = choices.number(max(1, len(data)))
    what = choices.number(6)
    if what == 0:
        files[name] = data[:at]
    elif what == 1:
        files[name] = data[:at] + bytes([choices.number(256)]) + data[at + 1 :]
    elif what == 2:
        del files[name]
    elif what == 3:
        other = choices.of(names)
        files[name], files[other] = files.get(other, b""), data
    elif what == 4:
        files[name] = data + data[:at]
    else:
        files[name] = data[:at] + data[at + 1 + choices.number(64) :]


def _files_seeds() -> Iterator[bytes]:
    yield b"\0"
    yield from (bytes([forged, file, 40, 1, what, 7]) for forged in (0, 1) for file in range(6) for what in range(6))


TARGETS = (
    Target("index", 0.320, _index_seeds, _index),
    Target("manifest", 0.320, _manifest_seeds, _manifest),
    Target("segment", 0.345, _segment_seeds, _segment),
    Target("files", 0.010, _files_seeds, _files),
    Target("rows", 0.005, rows.seeds, rows.attack),
)
