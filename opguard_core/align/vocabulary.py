"""One dictionary of texts for both sides, so that equal texts are equal numbers whatever trace they come from.

A trace numbers its strings per rank; alignment compares numbers only. Nothing here looks at tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

NO_TEXT = 0
"""Number of the empty text in every vocabulary."""

MAX_DIMS = 64
MAX_NUMEL = 1 << 62

_NOT_YET = np.iinfo(np.int64).min
_ATEN = ("aten", "prim", "prims")
OUTSIDE = ("extension", "triton", "cupy", "inductor")
"""Namespaces of calls that torch's dispatcher does not see: names of their own, without overloads."""
_FOREACH_NAMES = {"norm": "linalg_vector_norm"}
_DIGITS = re.compile(r"\d{1,19}")
_COUNTED = re.compile(r"_\d+$")


def fold_operator(text: str) -> str:
    """Name of the work an operator does: overload, `.out` and the in-place underscore do not count.

    ``aten.add_.Tensor``, ``aten.add.Tensor`` and ``aten._foreach_add_.List`` are all ``add``; a namespace other than ATen's is kept. Of
    what the dispatcher does not see the whole name counts (``extension.my_ext.scale_``), but for the number that a compiler gives.
    """
    namespace, _, rest = text.partition(".")
    if not rest:
        return text
    if namespace in OUTSIDE:
        return _COUNTED.sub("", text) if namespace == "inductor" else text
    name = rest.split(".", 1)[0]
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    if namespace not in _ATEN:
        return f"{namespace}.{name}"
    element = name.removeprefix("_foreach_")
    return _FOREACH_NAMES.get(element, element) if element != name else name


def bare_operator(text: str) -> str:
    """Operator name with its in-place underscore but without namespace and overload: ``aten.copy_.default`` is ``copy_``.

    A call that the dispatcher does not see keeps its whole name: it is no operator of torch's that happens to be called so.
    """
    parts = text.split(".")
    return parts[1] if len(parts) > 1 and parts[0] not in OUTSIDE else text


def squash(text: str) -> str:
    """The text without any white space, for comparing expressions laid out differently."""
    return "".join(text.split())


def parse_shape(text: str) -> tuple[int, ...] | None:
    """Sizes of a shape column value (``"4,8"``; ``""`` is a scalar); None when it is not one."""
    if text == "":
        return ()
    parts = text.split(",")
    if len(parts) > MAX_DIMS or not all(_DIGITS.fullmatch(part) for part in parts):
        return None
    return tuple(int(part) for part in parts)


def element_count(shape: tuple[int, ...] | None) -> int:
    """Number of elements, -1 when unknown or beyond what a machine can hold."""
    if shape is None:
        return -1
    if 0 in shape:
        return 0
    total = 1
    for size in shape:
        total *= size
        if total > MAX_NUMEL:
            return -1
    return total


@dataclass
class Vocabulary:
    """Texts of both sides and what can be derived from a text alone.

    Attributes:
        texts: Text by number; number 0 is the empty text.
    """

    texts: list[str] = field(default_factory=lambda: [""])
    _numbers: dict[str, int] = field(default_factory=lambda: {"": 0})
    _folded: dict[int, int] = field(default_factory=dict)
    _tables: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    _shapes: dict[int, tuple[int, ...] | None] = field(default_factory=dict)

    def number(self, text: str) -> int:
        """Number of a text, given out in order of first use."""
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return found

    def numbers(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """Numbers of many texts.

        Returns:
            int32[len(texts)].
        """
        return np.fromiter((self.number(text) for text in texts), np.int32, len(texts))

    def folded(self, number: int) -> int:
        """Number of the folded operator name of an operator text's number."""
        found = self._folded.get(number)
        if found is None:
            found = self._folded[number] = self.number(fold_operator(self.texts[number]))
        return found

    def shape(self, number: int) -> tuple[int, ...] | None:
        """Sizes of a shape text's number; None when the text is not a shape."""
        if number not in self._shapes:
            self._shapes[number] = parse_shape(self.texts[number])
        return self._shapes[number]

    def numel(self, numbers: NDArray[np.int32]) -> NDArray[np.int64]:
        """Element count for each shape number, -1 where unknown."""
        return self._per_text("numel", numbers, lambda number: element_count(self.shape(number)))

    def folded_all(self, numbers: NDArray[np.int32]) -> NDArray[np.int32]:
        """Folded operator numbers for an array of operator numbers."""
        return self._per_text("folded", numbers, self.folded).astype(np.int32)

    def layout_class(self, numbers: NDArray[np.int32]) -> NDArray[np.int64]:
        """A number per shape that is equal for shapes that are permutations of each other, sizes of 1 left out."""

        def key(number: int) -> int:
            shape = self.shape(number)
            if shape is None:
                return -1 - number
            return self.number("permuted:" + ",".join(map(str, sorted(size for size in shape if size != 1))))

        return self._per_text("layout", numbers, key)

    def layout_order(self, numbers: NDArray[np.int32]) -> NDArray[np.int64]:
        """A number per shape that is equal for shapes that are the same once sizes of 1 are left out."""

        def key(number: int) -> int:
            shape = self.shape(number)
            if shape is None:
                return -1 - number
            return self.number("squeezed:" + ",".join(str(size) for size in shape if size != 1))

        return self._per_text("order", numbers, key)

    def kinds_of_state(self, numbers: NDArray[np.int32]) -> list[str]:
        """What stands before the colon of each state slot's name: ``param:blocks.0.weight`` is ``param``."""
        kinds = self._per_text("state", numbers, lambda number: self.number(self.texts[number].partition(":")[0]))
        return [self.texts[kind] for kind in kinds.tolist()]

    def _per_text(self, name: str, numbers: NDArray[np.int32], value: Callable[[int], int]) -> NDArray[np.int64]:
        """Look up a property of texts that is computed once per text."""
        table = self._tables.get(name, np.zeros(0, np.int64))
        if len(table) < len(self.texts):
            table = np.concatenate([table, np.full(2 * len(self.texts) - len(table), _NOT_YET, np.int64)])
            self._tables[name] = table
        found = table[numbers]
        missing = found == _NOT_YET
        if missing.any():
            for number in set(numbers[missing].tolist()):
                table[number] = value(number)
            found = table[numbers]
        return found
