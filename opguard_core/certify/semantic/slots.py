"""Which tensors of one call stand for which of the other, and how they compare.

Two code bases may pass the same tensors under other names, in another order, with others beside them. By name where the names are the
same on both sides; else by content first, then by what is left over. What has no counterpart is named and not compared; a difference
between two that only their shape pairs is no claim (`UNSURE`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import NamedTuple

from opguard_core.align.vocabulary import element_count, parse_shape
from opguard_core.certify.semantic.records import is_known
from opguard_core.trace.schema import SlotRow


class How(str, Enum):
    """How two tensors, or all tensors of two entries or exits, compare; from best to worst but for the last two."""

    EQUAL = "equal"
    CAST = "cast"  # the same values in another type
    LAYOUT = "layout"  # the same elements, and a shape whose axes are in another order
    PERMUTED = "permuted"  # the same elements in another order
    DIFFERENT = "different"
    UNSURE = "unsure"  # they differ, and nothing says that one stands for the other
    UNKNOWN = "unknown"  # nothing in common was read on both sides

    def __str__(self) -> str:
        """As it is written."""
        return self.value

    @property
    def same(self) -> bool:
        """The same values."""
        return self in (How.EQUAL, How.CAST, How.LAYOUT)

    @property
    def differs(self) -> bool:
        """Surely other values."""
        return self in (How.PERMUTED, How.DIFFERENT)


_ORDER = (How.DIFFERENT, How.PERMUTED, How.UNSURE, How.LAYOUT, How.CAST, How.EQUAL)


class Pair(NamedTuple):
    """Two slots that stand for each other."""

    reference: SlotRow
    suspect: SlotRow
    how: How


@dataclass
class Compared:
    """Two entries, or two exits.

    Attributes:
        pairs: Slots that stand for each other, in the reference's order.
        reference_only: Slots without a counterpart.
        suspect_only: Likewise.
        how: How they compare as a whole.
    """

    pairs: list[Pair] = field(default_factory=list)
    reference_only: list[SlotRow] = field(default_factory=list)
    suspect_only: list[SlotRow] = field(default_factory=list)

    @property
    def how(self) -> How:
        """The worst of what was read on both sides."""
        found = {pair.how for pair in self.pairs}
        return next((how for how in _ORDER if how in found), How.UNKNOWN)

    @property
    def partner(self) -> dict[str, str]:
        """Name of the suspect's slot by that of the reference's."""
        return {pair.reference.slot: pair.suspect.slot for pair in self.pairs}


def compare_slot(left: SlotRow, right: SlotRow) -> How:
    """How two tensors compare, if they stand for each other."""
    if not (is_known(left) and is_known(right)):
        return How.UNKNOWN
    if (left.mix64 == right.mix64 and left.dtype == right.dtype) or left.nbytes == right.nbytes == 0:
        return How.EQUAL
    if left.value64 == right.value64:
        return How.CAST
    if left.bag64 == right.bag64:
        return How.LAYOUT if _is_permuted(left, right) else How.PERMUTED
    return How.DIFFERENT


def _is_permuted(left: SlotRow, right: SlotRow) -> bool:
    """The same axes in another order; those of one element say nothing."""
    shapes = [tuple(size for size in shape if size != 1) for slot in (left, right) if (shape := parse_shape(slot.shape)) is not None]
    return len(shapes) == 2 and sorted(shapes[0]) == sorted(shapes[1]) and shapes[0] != shapes[1]


def compare(left: Sequence[SlotRow], right: Sequence[SlotRow]) -> Compared:
    """Pair the slots of two entries, or exits, and compare them.

    Cost: the product of their numbers, which are small.
    """
    matching = _Matching(left, right)
    if [slot.slot for slot in left] == [slot.slot for slot in right] and all(map(_alike, left, right)):
        matching.take(lambda one, other: one.slot == other.slot)
        return matching.done()
    for how in (How.EQUAL, How.CAST, How.LAYOUT):
        for names in (True, False):  # equal names go first where several are alike
            matching.take(partial(_is_same, how, names))
    matching.take(lambda one, other: one.slot == other.slot and _alike(one, other) and matching.is_lone(one, other))
    if len(matching.left) == len(matching.right) == 1:
        matching.take(_alike)
    matching.take(_alike, sure=False)
    return matching.done()


def _is_same(how: How, names: bool, left: SlotRow, right: SlotRow) -> bool:
    """The content says that they are the same data; content of which there is much everywhere says so only under one name."""
    if left.slot != right.slot and (names or left.trivial or right.trivial):
        return False
    return compare_slot(left, right) is how


def _alike(left: SlotRow, right: SlotRow) -> bool:
    """The same number of elements."""
    counts = [element_count(parse_shape(slot.shape)) for slot in (left, right)]
    return counts[0] == counts[1] and counts[0] >= 0


class _Matching:
    """Slots that are still free."""

    def __init__(self, left: Sequence[SlotRow], right: Sequence[SlotRow]) -> None:
        self.left, self.right = list(left), list(right)
        self._order = {id(slot): at for at, slot in enumerate(self.left)}
        self._pairs: list[Pair] = []

    def take(self, fits: Callable[[SlotRow, SlotRow], bool], *, sure: bool = True) -> None:
        """Pair each free slot of the reference with the first free one of the suspect that fits."""
        for one in list(self.left):
            other = next((slot for slot in self.right if fits(one, slot)), None)
            if other is not None:
                how = compare_slot(one, other)
                self.left.remove(one)
                self.right.remove(other)
                self._pairs.append(Pair(one, other, how if sure or how.same or how is How.UNKNOWN else How.UNSURE))

    def is_lone(self, one: SlotRow, other: SlotRow) -> bool:
        """No other free slot of either side could stand for one of them."""
        return sum(_alike(one, slot) for slot in self.right) == 1 == sum(_alike(slot, other) for slot in self.left)

    def done(self) -> Compared:
        """What was found."""
        return Compared(sorted(self._pairs, key=lambda pair: self._order[id(pair.reference)]), self.left, self.right)
