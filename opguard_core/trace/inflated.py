"""How many bytes the columns of an Arrow stream will take in memory, told from its headers before any is decompressed.

pyarrow believes the length that stands in front of each compressed buffer; a forged one of a few bytes could ask for
terabytes. It offers no limit of its own, so the one table of its headers that matters here, the buffers of a record
batch, is read by hand.

Source: Arrow columnar format, "Encapsulated message format", "Compression"; FlatBuffers internals (tables, vtables).
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

# Positions of fields in their FlatBuffers tables.
_MESSAGE_HEADER_TYPE, _MESSAGE_HEADER = 1, 2
_BATCH_BUFFERS, _BATCH_COMPRESSION = 2, 3
_DICTIONARY_DATA = 1
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3  # values of the union of headers
_BUFFER_BYTES = 16  # offset and length, two int64
MAGIC_BYTES = 8  # what a file has in front of the stream


def inflated_bytes(data: bytes) -> int:
    """Bytes of all buffers of all record batches and dictionaries of an Arrow file, decompressed.

    Args:
        data: The whole file.

    Raises:
        ValueError, pyarrow.ArrowException: Its headers are not what the format asks for.

    Cost: reads the headers and eight bytes a buffer; allocates nothing of the size of the data.
    """
    total = 0
    source = pa.BufferReader(data)
    source.seek(MAGIC_BYTES)
    try:
        for message in pa.ipc.MessageReader.open_stream(source):
            total += _of_message(message)
    except struct.error as error:
        raise ValueError(f"a header points outside itself ({error})") from error
    return total


def _of_message(message: Any) -> int:
    header = message.metadata.to_pybytes()
    root = _Table(header, struct.unpack_from("<I", header)[0])
    kind = root.scalar(_MESSAGE_HEADER_TYPE, "<B")
    if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return 0
    batch = root.table(_MESSAGE_HEADER)
    if batch is not None and kind == _DICTIONARY_BATCH:
        batch = batch.table(_DICTIONARY_DATA)
    if batch is None:
        return 0
    compressed = batch.table(_BATCH_COMPRESSION) is not None
    first, count = batch.vector(_BATCH_BUFFERS)
    total = 0
    for number in range(count):
        offset, length = struct.unpack_from("<qq", header, first + _BUFFER_BYTES * number)
        total += _of_buffer(message.body, offset, length, compressed)
    return total


def _of_buffer(body: Any, offset: int, length: int, compressed: bool) -> int:
    if offset < 0 or length < 0 or offset + length > body.size:
        raise ValueError(f"a buffer lies outside its message (bytes {offset} to {offset + length} of {body.size})")
    if not compressed or length < struct.calcsize("<q"):
        return length
    (inflated,) = struct.unpack("<q", body[offset : offset + struct.calcsize("<q")].to_pybytes())
    return length if inflated < 0 else int(inflated)  # -1: this buffer alone is stored as it is


class _Table:
    """One FlatBuffers table: its fields are found through a table of 16-bit offsets that stands elsewhere."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - struct.unpack_from("<i", data, at)[0]
        if self._fields < 0:
            raise ValueError("a table of fields lies in front of its header")
        self._size = struct.unpack_from("<H", data, self._fields)[0]

    def _place(self, field: int) -> int | None:
        """Where a field's value stands; None if the table leaves it out."""
        entry = 4 + 2 * field
        if entry + 2 > self._size:
            return None
        offset = struct.unpack_from("<H", self._data, self._fields + entry)[0]
        return self._at + offset if offset else None

    def _follow(self, field: int) -> int | None:
        place = self._place(field)
        return None if place is None else place + int(struct.unpack_from("<I", self._data, place)[0])

    def scalar(self, field: int, kind: str) -> int:
        """A number; 0 if it is left out."""
        place = self._place(field)
        return 0 if place is None else int(struct.unpack_from(kind, self._data, place)[0])

    def table(self, field: int) -> _Table | None:
        """A table, or None."""
        place = self._follow(field)
        return None if place is None else _Table(self._data, place)

    def vector(self, field: int) -> tuple[int, int]:
        """Where the elements of a vector begin, and how many there are."""
        place = self._follow(field)
        return (0, 0) if place is None else (place + 4, int(struct.unpack_from("<I", self._data, place)[0]))
