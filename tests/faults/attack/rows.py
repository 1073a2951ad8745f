"""Rows that lie: values of a well-formed trace exchanged for others that its columns allow, and then judged."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from hashlib import sha512
from typing import Any

import pyarrow as pa

from opguard_core.certify.answer import to_dict
from opguard_core.certify.compare import compare
from opguard_core.errors import TraceFormatError
from opguard_core.ids import VERDICTS
from opguard_core.trace import schema
from opguard_core.trace.codec import NULLABLE, ROW_TYPES
from tests.faults.attack.choices import Choices
from tests.support.memory import MemoryTrace, MemoryWriter, memory_run
from tests.support.synthetic import GptShape, emit_side, gpt

SHAPE = GptShape(layers=1, width=8, tokens=4, vocabulary=16, steps=2)
TEXTS = ("", "x", "4,8", "0", "99999999999999999999", "in.0", "mut.0", "param:w", "aten.add_.Tensor", "c10d.allreduce_.default", "\x1b[31m")
NUMBERS = (0, 1, 2, 7, 2**31 - 1, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1)


@cache
def base() -> MemoryWriter:
    """A small well-formed trace in memory."""
    writer = MemoryWriter(mode="verify")
    emit_side(gpt(SHAPE), writer, mode="verify")
    writer.close(ended="exit")
    return writer


def seeds() -> Iterator[bytes]:
    """Inputs to start from: nothing changed, and one change of each column."""
    yield b"\0"
    for number, table in enumerate(_TABLES):
        yield from (bytes([1, number, 40, 0, column, 3, 5]) for column in range(len(schema.TABLES[table])))
    yield from (sha512(bytes([number])).digest() * 3 for number in range(16))


def attack(data: bytes) -> str:
    """Change rows as the input says and judge them against the honest ones.

    Returns:
        The verdict, or "refused".
    """
    choices = Choices(data)
    how = choices.number(4)
    forged = MemoryWriter(mode="verify")
    forged.rows = {table: list(rows) for table, rows in base().rows.items()}
    while choices:
        _lie(forged.rows, choices)
    forged.close(ended="exit")
    honest = MemoryTrace(base(), base().manifest)
    try:
        lying = MemoryTrace(forged, forged.manifest)
        sides = ((honest, lying), (lying, honest), (lying, lying), (honest, lying))[how]
        answer = to_dict(compare(*(memory_run([side]) for side in sides)))
    except TraceFormatError:
        return "refused"
    assert answer["verdict"] in VERDICTS
    assert (answer["pivot"] is not None) == (answer["verdict"] == "diverged")
    assert answer["reasons"] or answer["verdict"] != "inconclusive"
    assert how != 2 or answer["verdict"] != "diverged", "a trace that differs from itself"
    assert forged.rows != base().rows or answer["verdict"] == "identical", "honest rows are not called identical"
    return str(answer["verdict"])


_TABLES = ("slots", "slots", "slots", "events", "events", "frames", "lifetimes")
_CONTENT = ("mix64", "value64", "bag64")  # one of them alone is a cast, a layout, or no difference at all


def _lie(rows: dict[str, list[Any]], choices: Choices) -> None:
    """Exchange one value of one row; sometimes for that of another row."""
    table = choices.of(_TABLES)
    if not rows[table]:
        return
    at = choices.number(len(rows[table]))
    row = rows[table][at]
    if table == "slots" and choices.number(2):
        word = choices.number(256)
        rows[table][at] = row._replace(**{column: getattr(row, column) ^ word for column in _CONTENT})
        return
    column = choices.of(ROW_TYPES[table]._fields)
    if column in ("seq", "frame"):  # the reader has checked these
        return
    kind = schema.TABLES[table].field(column).type
    if choices.number(2):
        value = getattr(rows[table][choices.number(len(rows[table]))], column)
    else:
        value = _value(kind, choices, nullable=column in NULLABLE[table])
    if column == "window":  # rises, as the reader gives it
        value = getattr(row, column)
    rows[table][at] = row._replace(**{column: value})


def _value(kind: Any, choices: Choices, *, nullable: bool) -> Any:
    if nullable and choices.number(4) == 0:
        return None
    if pa.types.is_boolean(kind):
        return bool(choices.number(2))
    if pa.types.is_integer(kind):
        top = 2 ** (kind.bit_width - (0 if str(kind).startswith("u") else 1)) - 1
        return min(choices.of(NUMBERS), top)
    return choices.of(TEXTS)
