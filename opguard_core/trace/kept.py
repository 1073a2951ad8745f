"""Files of kept tensors: one boundary's inputs, results and arguments, in full. Written by capture, read without torch.

    u64 little endian | JSON header, padded to 8 bytes | bytes of the slots, in the order of the header, without holes

Any safetensors reader opens one. The metadata carries our document (which boundary, what the probe saw of each slot, why a slot has no
bytes) and a seal over every byte. Element types that safetensors has no name for are stored as bytes; the document knows the type.
A file is believed only after its sizes, its table and its seal agree.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opguard_core.errors import TraceFormatError
from opguard_core.trace.boundary import BoundaryKey, parse_key
from opguard_core.trace.files import read_checked, sync_directory, write_atomic
from opguard_core.trace.problems import refusal

FORMAT = 1
MAX_HEADER_BYTES = 64 << 20
MAX_FILE_BYTES = 1 << 36
MAX_DIMS = 64
_NO_SEAL = "0" * 64
_SEAL = re.compile(r"[0-9a-f]{64}")
_WORD = re.compile(r"[0-9a-f]{16}")
# Bytes of an element, and the name that every safetensors reader knows ("" for none).
_DTYPES = {
    "float64": (8, "F64"),
    "float32": (4, "F32"),
    "float16": (2, "F16"),
    "bfloat16": (2, "BF16"),
    "float8_e4m3fn": (1, "F8_E4M3"),
    "float8_e5m2": (1, "F8_E5M2"),
    "float8_e4m3fnuz": (1, ""),
    "float8_e5m2fnuz": (1, ""),
    "float8_e8m0fnu": (1, ""),
    "int64": (8, "I64"),
    "int32": (4, "I32"),
    "int16": (2, "I16"),
    "int8": (1, "I8"),
    "uint8": (1, "U8"),
    "uint16": (2, "U16"),
    "uint32": (4, "U32"),
    "uint64": (8, "U64"),
    "bool": (1, "BOOL"),
    "complex32": (4, ""),
    "complex64": (8, ""),
    "complex128": (16, ""),
}


@dataclass(frozen=True)
class Block:
    """The bytes of one slot.

    Attributes:
        dtype: As traces name it: "bfloat16".
        shape: Lengths.
        data: Its logical bytes: row-major, little-endian, whatever its strides were.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview

    @property
    def itemsize(self) -> int:
        """Bytes of an element; 0 for a type that this release does not know."""
        return _DTYPES.get(self.dtype, (0, ""))[0]


@dataclass(frozen=True)
class KeptSlot:
    """What is known of one slot, with or without its bytes.

    Attributes:
        name: As in the trace: "in.0".
        direction: One of ``ids.Direction``; empty for the state of a generator.
        status: One of ``ids.Status``: what the probe made of it.
        dtype: As traces name it.
        shape: Lengths.
        strides: In elements, as it lay in memory.
        device: Where it lay.
        nbytes: Logical bytes.
        mix64: What the probe saw, 16 hex digits; empty where it did not look.
        kept_mix64: The same digest of the bytes that were kept; another one means that they changed in between.
        reason: Why its bytes were not kept; empty where they were.
        shift: Position of its first element in the storage, in elements.
    """

    name: str
    direction: str
    status: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str
    nbytes: int
    mix64: str
    kept_mix64: str = ""
    reason: str = ""
    shift: int = 0


@dataclass(frozen=True)
class Kept:
    """One kept boundary.

    Attributes:
        boundary: Its key.
        seq: Number of the event in the trace it lies in.
        args: Canonical text of its arguments that are no tensors.
        rng_stream: Generator that it drew from, empty for none.
        rng_before: mix64 of that generator's state before, 16 hex digits, or empty. Its state is the slot ``rng``.
        slots: The bytes, by slot.
        known: What is known of every slot, kept or not.
        seal: Digest of the file.
        notes: More facts: ``raised`` (the operator raised this), ``transplanted`` (slots that were overwritten).
    """

    boundary: BoundaryKey
    seq: int
    args: str
    rng_stream: str
    rng_before: str
    slots: Mapping[str, Block]
    known: Mapping[str, KeptSlot]
    seal: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def left_out(self) -> dict[str, str]:
        """Slots without bytes, and why."""
        return {name: slot.reason for name, slot in self.known.items() if slot.reason}


def write_kept(path: Path, kept: Kept) -> str:
    """Write one boundary, whole or not at all, readable by its owner only.

    Args:
        path: Target; its folder must exist.
        kept: The boundary; its ``seal`` is not looked at.

    Returns:
        The seal: sha256 of the file with the seal's own place zeroed.

    Raises:
        OSError: The file cannot be written; nothing is left of it.

    Cost: reads the bytes twice and waits for the disk.
    """
    document = {
        "boundary": kept.boundary.as_dict(),
        "seq": kept.seq,
        "args": kept.args,
        "rng_stream": kept.rng_stream,
        "rng_before": kept.rng_before,
        "notes": dict(kept.notes),
        "slots": {name: {key: value for key, value in _plain(slot).items() if key != "name"} for name, slot in kept.known.items()},
    }
    table: dict[str, Any] = {
        "__metadata__": {"opguard.kept": str(FORMAT), "opguard.seal": _NO_SEAL, "opguard.document": json.dumps(document)}
    }
    offset = 0
    for name, block in kept.slots.items():
        table[name] = {**_element(block.dtype, block.shape, len(block.data)), "data_offsets": [offset, offset + len(block.data)]}
        offset += len(block.data)
    header = json.dumps(table, separators=(",", ":")).encode("ascii")
    header += b" " * (-len(header) % 8)
    start = len(header).to_bytes(8, "little")
    digest = hashlib.sha256(start + header)
    for block in kept.slots.values():
        digest.update(block.data)
    seal = digest.hexdigest()
    header = header.replace(_seal_text(_NO_SEAL), _seal_text(seal), 1)
    write_atomic(path, b"".join((start, header, *(block.data for block in kept.slots.values()))))
    sync_directory(path.parent)
    return seal


def _plain(slot: KeptSlot) -> dict[str, Any]:
    return {**slot.__dict__, "shape": list(slot.shape), "strides": list(slot.strides)}


def _element(dtype: str, shape: tuple[int, ...], nbytes: int) -> dict[str, Any]:
    known = _DTYPES.get(dtype, (0, ""))[1]
    return {"dtype": known, "shape": list(shape)} if known else {"dtype": "U8", "shape": [nbytes]}


def read_kept(path: Path, *, limit_bytes: int = MAX_FILE_BYTES) -> Kept:
    """Read and check one file of kept tensors.

    Args:
        path: The file; never followed if it is a link.
        limit_bytes: Larger ones are refused unread.

    Returns:
        The boundary; its blocks are views of one buffer.

    Raises:
        TraceFormatError: It is missing, no such file, not what was written, or of a newer format.

    Cost: reads the file once.
    """
    data = read_checked(path, limit=min(limit_bytes, MAX_FILE_BYTES))
    if len(data) < 8:
        raise _damaged(path, "a header", f"{len(data)} bytes", 0)
    length = int.from_bytes(data[:8], "little")
    if length > min(MAX_HEADER_BYTES, len(data) - 8):
        raise _damaged(path, f"a header of at most {min(MAX_HEADER_BYTES, len(data) - 8)} bytes", f"{length}", 0)
    header = data[8 : 8 + length]
    table, metadata = _table(path, header)
    seal = metadata["opguard.seal"]
    digest = hashlib.sha256(data[:8] + header.replace(_seal_text(seal), _seal_text(_NO_SEAL), 1))
    content = memoryview(data)[8 + length :]
    digest.update(content)
    if digest.hexdigest() != seal:
        raise _damaged(path, f"the seal {seal}", digest.hexdigest(), 8)
    try:
        return _kept(table, metadata, content, seal)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, "a table of slots that fits its bytes", f"{type(error).__name__}: {error}", 8) from error


def _kept(table: dict[str, Any], metadata: dict[str, str], content: memoryview, seal: str) -> Kept:
    """The boundary of a file whose seal holds; ValueError where its parts do not fit each other."""
    document = json.loads(metadata["opguard.document"])
    known = {name: _known(name, dict(value)) for name, value in dict(document["slots"]).items()}
    slots: dict[str, Block] = {}
    at = 0
    for name, item in table.items():
        begin, end = item["data_offsets"]
        slot = known[name]
        if begin != at or type(end) is not int or not at <= end <= len(content):
            raise ValueError(f"{name} lies at {begin} to {end} where {at} to at most {len(content)} is possible")
        if slot.reason or end - begin != slot.nbytes or item["shape"] != _element(slot.dtype, slot.shape, slot.nbytes)["shape"]:
            raise ValueError(f"{name} is not what the document says")
        slots[name] = Block(slot.dtype, slot.shape, content[begin:end])
        at = end
    missing = [name for name, slot in known.items() if not slot.reason and name not in slots]
    if at != len(content) or missing:
        raise ValueError(f"{len(content) - at} bytes follow the last slot; without bytes: {missing[:4]}")
    rng_before, notes = document["rng_before"], document["notes"]
    texts = (document["args"], document["rng_stream"], rng_before, *notes, *notes.values())
    if (
        type(document["seq"]) is not int
        or not all(isinstance(text, str) for text in texts)
        or (rng_before and not _WORD.fullmatch(rng_before))
    ):
        raise ValueError("a fact of the boundary has another type")
    key = parse_key(document["boundary"])
    return Kept(key, document["seq"], document["args"], document["rng_stream"], rng_before, slots, known, seal, notes)


def _known(name: str, value: dict[str, Any]) -> KeptSlot:
    shape, strides = tuple(value.pop("shape")), tuple(value.pop("strides"))
    slot = KeptSlot(name=name, shape=shape, strides=strides, **value)
    texts = (slot.direction, slot.status, slot.dtype, slot.device, slot.mix64, slot.kept_mix64, slot.reason)
    numbers = (*shape, *strides, slot.nbytes, slot.shift)
    if not all(isinstance(text, str) for text in texts) or any(type(number) is not int or abs(number) >= 1 << 62 for number in numbers):
        raise ValueError(f"{name} has a fact of another type")
    if any(number < 0 for number in (*shape, slot.nbytes)) or max(len(shape), len(strides)) > MAX_DIMS:
        raise ValueError(f"{name} has no possible shape")
    if any(word and not _WORD.fullmatch(word) for word in (slot.mix64, slot.kept_mix64)):
        raise ValueError(f"{name} has a digest of another form")
    count = 1
    for size in shape:
        count *= size
    itemsize = _DTYPES.get(slot.dtype, (0, ""))[0]
    if not slot.reason and itemsize and count * itemsize != slot.nbytes:
        raise ValueError(f"{name} has {slot.nbytes} bytes, its shape {count * itemsize}")
    return slot


def _table(path: Path, header: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        table = json.loads(header)
        metadata = table.pop("__metadata__")
        version = int(metadata["opguard.kept"])
        sealed = bool(_SEAL.fullmatch(metadata["opguard.seal"])) and isinstance(metadata["opguard.document"], str)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise _damaged(path, "a header of ours", type(error).__name__, 8) from error
    if version != FORMAT or not sealed:
        raise _damaged(path, f"format {FORMAT} with a seal", f"format {version}", 8)
    return table, metadata


def _seal_text(seal: str) -> bytes:
    return f'"opguard.seal":"{seal}"'.encode("ascii")


def _damaged(path: Path, expected: str, found: str, offset: int) -> TraceFormatError:
    hint = "Confirm the difference again: its replay keeps the boundary anew."
    return refusal(TraceFormatError, "No intact file of kept tensors", path=path, offset=offset, expected=expected, found=found, hint=hint)
