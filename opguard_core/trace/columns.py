"""Arrow columns as numpy arrays, and the string tables their codes point into."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opguard_core.trace.codec import NULLABLE
from opguard_core.trace.schema import TABLES

Array = npt.NDArray[Any]
Columns = Mapping[str, Array]

NO_NUMBER = -1
"""Stands for null in nullable integer columns, which are int64 in memory. None of them holds negative numbers.

The exception is ``rng_before``, which uses all 64 bits: it is uint64, 0 where null, and ``rng_before_known`` tells."""


class StringTable(Sequence[str]):
    """Texts of one dictionary column of one rank; codes are positions, dense, and never change once given.

    It grows while windows are read, so take its length when you build a look-up array.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: list[str] = []
        self._codes: dict[str, int] = {}
        self.intern(values)

    def intern(self, values: Iterable[str]) -> list[int]:
        """Codes of ``values``, new ones added."""
        codes = []
        for value in values:
            code = self._codes.get(value)
            if code is None:
                code = self._codes[value] = len(self._values)
                self._values.append(value)
            codes.append(code)
        return codes

    def code(self, value: str) -> int:
        """Code of ``value``, or -1 if no row read so far has it."""
        return self._codes.get(value, -1)

    def __getitem__(self, code: Any) -> Any:
        return self._values[code]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)


class StringTables(dict[str, StringTable]):
    """One `StringTable` per dictionary column, by column name; a missing one starts empty."""

    def __missing__(self, column: str) -> StringTable:
        table = self[column] = StringTable()
        return table


def to_columns(table: str, decoded: Any, strings: StringTables) -> dict[str, Array]:
    """Turn a decoded segment into numpy columns.

    Args:
        table: Key of `schema.TABLES`, not "stacks".
        decoded: pyarrow Table as `codec.decode_segment` returns it.
        strings: Tables that dictionary columns are coded into.

    Returns:
        By column name: int32 codes for dictionary columns, int64 with `NO_NUMBER` for nullable integers, list of str (object
        array) for plain texts, else the column's own type.
    """
    result: dict[str, Array] = {}
    for field, chunked in zip(decoded.schema, decoded.columns, strict=True):
        nullable = field.name in NULLABLE[table]
        result[field.name] = np.concatenate([_to_array(field, chunk, nullable, strings) for chunk in chunked.chunks])
        if field.name == "rng_before":
            result["rng_before_known"] = np.concatenate([chunk.is_valid().to_numpy(zero_copy_only=False) for chunk in chunked.chunks])
    return result


def empty_columns(table: str) -> dict[str, Array]:
    """Columns of no rows, of the types `to_columns` gives."""
    return to_columns(table, TABLES[table].empty_table(), StringTables())


def _to_array(field: Any, chunk: Any, nullable: bool, strings: StringTables) -> Array:
    if pa.types.is_dictionary(field.type):
        codes = np.array(strings[field.name].intern(chunk.dictionary.to_pylist()), np.int32)
        array: Array = codes[chunk.indices.to_numpy()]
    elif not nullable:
        array = chunk.to_numpy(zero_copy_only=False)
    elif field.name == "rng_before":
        array = chunk.fill_null(0).to_numpy()
    else:
        array = chunk.cast(pa.int64()).fill_null(NO_NUMBER).to_numpy()
    return array
