"""Which call of one side is which of the other: same name, microbatch, phase and thread, then order and content.

As many calls of a name on both sides: in order, unless what they got says that the order is another one. Unequally many: by what they
got; what then is left on one side alone is told as extra calls, and what is left on both is ambiguous and compares with nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from opguard_core.certify.semantic.records import Call, is_known
from opguard_core.trace.schema import SlotRow


class Key(NamedTuple):
    """What calls of two sides must have in common to be paired; the window is that of the caller."""

    name: str
    microbatch: int
    phase: str
    thread: str


@dataclass
class Group:
    """Calls of one key.

    Attributes:
        key: The key.
        pairs: Calls that stand for each other, in the reference's order.
        reference_only: Extra calls of the reference.
        suspect_only: Extra calls of the suspect.
        ambiguous: Calls left on both sides of which nothing says which is which.
        reordered: Whether the order of the calls is another one.
    """

    key: Key
    pairs: list[tuple[Call, Call]] = field(default_factory=list)
    reference_only: list[Call] = field(default_factory=list)
    suspect_only: list[Call] = field(default_factory=list)
    ambiguous: tuple[list[Call], list[Call]] = field(default_factory=lambda: ([], []))
    reordered: bool = False


def pair(reference: Iterable[Call], suspect: Iterable[Call]) -> list[Group]:
    """Pair the calls of one window; groups are in order of their first call in the reference, those of the suspect alone last.

    Cost: linear, but for groups whose calls do not get the same in the same order: the square of their size.
    """
    sides: tuple[dict[Key, list[Call]], dict[Key, list[Call]]] = (defaultdict(list), defaultdict(list))
    for calls, found in zip((reference, suspect), sides, strict=True):
        for call in calls:
            event = call.first.event
            found[Key(call.name, event.microbatch, call.phase, event.thread)].append(call)
    return [_pair_group(key, sides[0].get(key, []), sides[1].get(key, [])) for key in dict.fromkeys([*sides[0], *sides[1]])]


def _pair_group(key: Key, left: list[Call], right: list[Call]) -> Group:
    left, right = (sorted(calls, key=lambda call: call.seq) for calls in (left, right))
    group = Group(key)
    if not left or not right:
        group.reference_only, group.suspect_only = left, right
        return group
    contents = [content(call) for call in left], [content(call) for call in right]
    if len(left) == len(right) and all(_fit(one, other) for one, other in zip(*contents, strict=True)):
        group.pairs = list(zip(left, right, strict=True))
        return group
    found = _by_content(*contents)
    group.reordered = any(a > b for (_, a), (_, b) in zip(sorted(found), sorted(found)[1:], strict=False))
    free = [[at for at in range(len(calls)) if at not in taken] for calls, taken in _sides(left, right, found)]
    if len(free[0]) == len(free[1]):
        found += zip(*free, strict=True)
    elif free[0] and free[1]:
        group.ambiguous = [left[at] for at in free[0]], [right[at] for at in free[1]]
    else:
        group.reference_only, group.suspect_only = [left[at] for at in free[0]], [right[at] for at in free[1]]
    group.pairs = [(left[a], right[b]) for a, b in sorted(found)]
    return group


def _sides(left: list[Call], right: list[Call], found: Sequence[tuple[int, int]]) -> list[tuple[list[Call], set[int]]]:
    return [(left, {a for a, _ in found}), (right, {b for _, b in found})]


def content(call: Call) -> frozenset[int]:
    """What a call got, as the values of its tensors that tell it from others; of one that got nothing, what it gave."""
    return _values(call.entry_slots()) or _values(call.exit_slots())


def _values(slots: Iterable[SlotRow]) -> frozenset[int]:
    return frozenset(slot.value64 for slot in slots if is_known(slot) and not slot.trivial)


def _fit(one: frozenset[int], other: frozenset[int]) -> bool:
    """One side may pass further tensors, and a side may pass none that tells; else what they share must be all that one has."""
    return not one or not other or one <= other or other <= one


def _by_content(left: Sequence[frozenset[int]], right: Sequence[frozenset[int]]) -> list[tuple[int, int]]:
    """Calls that got the same. First those in the same place, then classes of equal content in order, then what fits nothing else."""
    found = (
        [(at, at) for at, (one, other) in enumerate(zip(left, right, strict=False)) if one and one == other]
        if len(left) == len(right)
        else []
    )
    taken = [{a for a, _ in found}, {b for _, b in found}]
    classes: dict[frozenset[int], list[int]] = defaultdict(list)
    for at, one in enumerate(right):
        if one and at not in taken[1]:
            classes[one].append(at)
    for at, one in enumerate(left):
        if at not in taken[0] and classes.get(one):
            found.append((at, classes[one].pop(0)))
    taken = [{a for a, _ in found}, {b for _, b in found}]
    rows = {
        a: [b for b, other in enumerate(right) if b not in taken[1] and one and other and _fit(one, other)]
        for a, one in enumerate(left)
        if a not in taken[0]
    }
    chosen: dict[int, int] = defaultdict(int)
    for fitting in rows.values():
        for b in fitting:
            chosen[b] += 1
    found += [(a, fitting[0]) for a, fitting in rows.items() if len(fitting) == 1 and chosen[fitting[0]] == 1]
    return found
