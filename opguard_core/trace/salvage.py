"""What to do with a row that does not fit its columns: nothing it touches may be lost with it.

The usual cause is a text with lone surrogates (a file name that is not UTF-8, a string of the user's), which is stored
escaped. Anything else is a mistake of an engine: an event is then lost by itself, and an interned row leaves an empty one
behind, because the ids after it must stay dense.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from opguard_core.trace.codec import to_batch
from opguard_core.trace.schema import FrameRow

ENCODE_ERRORS = (pa.ArrowException, ValueError, TypeError, OverflowError, MemoryError)

OnLoss = Callable[[str], None]


def escaped(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The row with every text made valid UTF-8; lone surrogates become backslash escapes."""
    return tuple(value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value for value in row)


def interned_batch(table: str, rows: Sequence[tuple[Any, ...]], first: int, on_loss: OnLoss) -> Any:
    """Turn interned rows into one record batch, whatever is in them.

    Args:
        table: "frames", "stacks" or "lifetimes".
        rows: At least one row.
        first: Id that the first row has to have.
        on_loss: Called with the error for each row that could not be kept.

    Returns:
        A record batch with as many rows, or None if nothing is left of lifetimes.
    """
    try:
        return to_batch(table, rows)
    except ENCODE_ERRORS:
        kept = [row for position, given in enumerate(rows) if (row := _fitting(table, given, first + position, on_loss)) is not None]
        return to_batch(table, kept) if kept else None


def _fitting(table: str, row: tuple[Any, ...], number: int, on_loss: OnLoss) -> tuple[Any, ...] | None:
    clean = escaped(row)
    try:
        to_batch(table, [clean])
    except ENCODE_ERRORS as error:
        on_loss(f"{type(error).__name__}: {error}")
        return {
            "frames": FrameRow(number, "", "", "", 0, 0, 0, 0, 0, "", "", ""),
            "stacks": (number, ()),
        }.get(table)
    return clean
