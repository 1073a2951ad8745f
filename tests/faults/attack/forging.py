"""A whole small trace as bytes, and the seals put right again after a change, as whoever forges one would."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pyarrow as pa

from opguard_core.trace.codec import encode_segment
from tests.support.launch_rows import Device
from tests.support.synthetic import GptShape, gpt, write_run

Files = dict[str, bytes]
MANIFEST, INDEX = "manifest.json", "index.log"
SHAPE = GptShape(layers=1, width=8, tokens=4, vocabulary=16, steps=2)


@cache
def pristine() -> Files:
    """Files of one rank's trace of two windows in several segments, by name."""
    with TemporaryDirectory() as folder:
        rank = write_run(Path(folder), gpt(SHAPE), mode="verify", segment_events=64, launches=Device()) / "rank-00000"
        return {path.name: path.read_bytes() for path in sorted(rank.iterdir())}


@cache
def uncompressed() -> Files:
    """The same with segments that are stored as they are, so that a changed byte changes one value."""
    files = dict(pristine())
    for name, data in files.items():
        if name.endswith(".arrow"):
            table = name.partition("-")[0]
            with pa.ipc.open_file(pa.BufferReader(data)) as file:
                files[name] = encode_segment(table, file.read_all().to_batches(), "none").to_pybytes()
    return resealed(files)


def sealed_manifest(text: bytes) -> bytes:
    """The manifest with a seal that fits, if it is an object at all."""
    try:
        record = orjson.loads(text)
    except ValueError:
        return text
    if not isinstance(record, dict):
        return text
    record.pop("seal", None)
    record["seal"] = hashlib.sha256(orjson.dumps(record)).hexdigest()
    return orjson.dumps(record)


def chained_index(lines: list[bytes]) -> bytes:
    """Index lines with checks that fit.

    Args:
        lines: What stands behind the check of each line.
    """
    previous, chained = "", []
    for line in lines:
        previous = hashlib.sha256(previous.encode() + line).hexdigest()[:32]
        chained.append(previous.encode() + b" " + line + b"\n")
    return b"".join(chained)


def payloads(index: bytes) -> list[bytes]:
    """What stands behind the check of each line."""
    return [line[33:] for line in index.split(b"\n") if line]


def resealed(files: Files) -> Files:
    """The files with sizes, digests, seals and checks that fit what the segments are now."""
    facts = {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items() if name.endswith(".arrow")}

    def corrected(segments: object) -> None:
        for entry in segments if isinstance(segments, list) else []:
            if isinstance(entry, dict) and entry.get("file") in facts:
                entry["bytes"], entry["sha256"] = facts[entry["file"]]

    result = dict(files)
    try:
        record = orjson.loads(files.get(MANIFEST, b""))
        corrected(record.get("segments"))
        corrected(record.get("further"))
        result[MANIFEST] = sealed_manifest(orjson.dumps(record))
        lines = []
        for line in payloads(files.get(INDEX, b"")):
            record = orjson.loads(line)
            corrected(record.get("segments"))
            corrected(record.get("further"))
            lines.append(orjson.dumps(record))
        result[INDEX] = chained_index(lines)
    except (ValueError, AttributeError):  # no JSON, or no object, any more
        pass
    return result


def segments(files: Files) -> list[dict[str, Any]]:
    """Segment entries of the manifest."""
    record = orjson.loads(files[MANIFEST])
    entries: list[dict[str, Any]] = [*record["segments"], *record["further"]]
    return entries
