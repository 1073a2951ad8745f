"""Rows to Arrow segments and back, checked against `schema`; bytes in, bytes out, no files.

Training side: row tuples become record batches, batches become one segment. Offline side: a segment becomes one record
batch whose every value is known to be well formed before anything looks at it.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from opguard_core.errors import CorruptSegment
from opguard_core.trace import schema
from opguard_core.trace.inflated import MAGIC_BYTES, inflated_bytes
from opguard_core.trace.problems import refusal

ROW_TYPES: dict[str, Any] = {
    "events": schema.EventRow,
    "slots": schema.SlotRow,
    "frames": schema.FrameRow,
    "lifetimes": schema.LifetimeRow,
    "launches": schema.LaunchRow,
}
MAX_INFLATED_BYTES = 1 << 30  # of one segment; the writer's own bounds keep it far below
ZSTD_LEVEL = 3  # level 1 is 16 % larger, level 6 is 3 % smaller and three times slower, measured on slots


def _nullable_columns(row_type: Any) -> frozenset[str]:
    hints = typing.get_type_hints(row_type)
    return frozenset(name for name, hint in hints.items() if isinstance(hint, types.UnionType) and types.NoneType in typing.get_args(hint))


NULLABLE: dict[str, frozenset[str]] = {name: _nullable_columns(row) for name, row in ROW_TYPES.items()} | {"stacks": frozenset()}
"""Columns of each table that may hold nulls: those whose row type says so."""


def default_compression() -> str:
    """Best codec this pyarrow has: "zstd", "lz4" or "none"."""
    return next((name for name in ("zstd", "lz4") if pa.Codec.is_available(name)), "none")


def to_batch(table: str, rows: Sequence[tuple[Any, ...]]) -> Any:
    """Turn row tuples into one record batch.

    Args:
        table: Key of `schema.TABLES`.
        rows: Tuples in column order, at least one.

    Raises:
        ValueError, TypeError, OverflowError, pyarrow.ArrowException: A value does not fit its column.

    Cost: about 0.04 us per value, holding the interpreter lock.
    """
    fields = schema.TABLES[table]
    columns = [pa.array(column, type=field.type) for column, field in zip(zip(*rows, strict=True), fields, strict=True)]
    for column, field in zip(columns, fields, strict=True):
        if column.null_count and field.name not in NULLABLE[table]:
            raise ValueError(f"column {field.name} of {table} cannot be null")
    return pa.record_batch(columns, schema=fields)


def encode_segment(table: str, batches: Sequence[Any], compression: str) -> Any:
    """Join record batches into the bytes of one segment: an Arrow IPC file with a single record batch.

    Args:
        table: Key of `schema.TABLES`.
        batches: Record batches of that table, in order.
        compression: "zstd", "lz4" or "none", applied to every column.

    Returns:
        A pyarrow Buffer.

    Raises:
        pyarrow.ArrowException, MemoryError: They do not fit together, or into memory.

    Cost: releases the interpreter lock while it compresses; starts no thread.
    """
    joined = pa.Table.from_batches(batches, schema=schema.TABLES[table]).unify_dictionaries().combine_chunks()
    if compression == "zstd":
        options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=ZSTD_LEVEL), use_threads=False)
    else:
        options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression, use_threads=False)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema.TABLES[table], options=options) as file:
        file.write_table(joined)
    return sink.getvalue()


def decode_segment(table: str, data: bytes, *, rows: int, path: Path) -> Any:
    """Read the bytes of one segment and check them fully.

    Args:
        table: Key of `schema.TABLES` it has to be.
        data: The whole file.
        rows: Number of rows promised.
        path: For messages.

    Returns:
        One pyarrow Table with the schema of ``table``, every index, offset and text in it valid.

    Raises:
        CorruptSegment: Anything is not as promised.

    Cost: at most `MAX_INFLATED_BYTES` for the columns, whatever stands in the file.
    """
    expected = schema.TABLES[table]
    try:
        inflated = inflated_bytes(data)
        if inflated > MAX_INFLATED_BYTES:
            raise refusal(
                CorruptSegment, "Segment inflates too far", path=path, expected=f"at most {MAX_INFLATED_BYTES} bytes", found=inflated
            )
        # The stream inside the file is what was measured; the footer behind it could point elsewhere.
        source = pa.BufferReader(data)
        source.seek(MAGIC_BYTES)
        with pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(use_threads=False)) as stream:
            if not stream.schema.equals(expected):
                raise refusal(
                    CorruptSegment, f"Not a {table} segment", path=path, expected=_columns(expected), found=_columns(stream.schema)
                )
            decoded = stream.read_all()
        if decoded.num_rows != rows:
            raise refusal(CorruptSegment, "Wrong number of rows", path=path, expected=rows, found=decoded.num_rows)
        decoded.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise refusal(CorruptSegment, "Not a readable Arrow file", path=path, expected=f"a {table} segment", found=str(error)) from error
    for name, column in zip(decoded.column_names, decoded.columns, strict=True):
        if (column.null_count and name not in NULLABLE[table]) or any(_has_inner_null(chunk) for chunk in column.chunks):
            raise refusal(CorruptSegment, f"Null in column {name}", path=path, expected="no nulls", found="nulls")
        if column.num_chunks > 1 or any(_num_texts(chunk) > max(rows, 1) for chunk in column.chunks):
            found = f"{column.num_chunks} batches, {max(map(_num_texts, column.chunks))} texts"
            raise refusal(CorruptSegment, f"Column {name} is padded", path=path, expected=f"one batch, at most {rows} texts", found=found)
    return decoded


def _num_texts(chunk: Any) -> int:
    return len(chunk.dictionary) if pa.types.is_dictionary(chunk.type) else 0


def _has_inner_null(chunk: Any) -> bool:
    if pa.types.is_dictionary(chunk.type):
        return bool(chunk.dictionary.null_count)
    return pa.types.is_list(chunk.type) and bool(chunk.values.null_count)


def _columns(found: Any) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in found)
