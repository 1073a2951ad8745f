"""Which statement of one block is which of the other: equal ones first, in order or moved, then those that are much alike."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opguard_core.evidence.source.tree import Node, Unreadable

MAX_CELLS = 400_000
_ALIKE = 0.5
_ALIKE_ELSEWHERE = 0.6
_SAME_TARGET = 0.55
_SETS = ("Assign", "AugAssign", "AnnAssign")
_MAX_ELSEWHERE = 3_000

Key = Callable[[Node], int]


@dataclass(frozen=True)
class Aligned:
    """Statements of two blocks.

    Attributes:
        changed: Pairs that are alike and not equal, in order.
        moved: Pairs that stand elsewhere in the block.
        removed: Statements of the reference that have no partner here.
        inserted: Statements of the suspect that have none.
    """

    changed: list[tuple[Node, Node]]
    moved: list[tuple[Node, Node]]
    removed: list[Node]
    inserted: list[Node]


def align(left: Sequence[Node], right: Sequence[Node], key: Key, surplus: tuple[Counter[int], Counter[int]]) -> Aligned:
    """Pair the statements of two blocks.

    Args:
        left: Of the reference, in order.
        right: Of the suspect.
        key: Equal for statements that do the same.
        surplus: Keys of each side that the other has less often in the whole function: only such a statement can have been changed.

    Raises:
        Unreadable: They are too many.
    """
    start, end = _shared(left, right, key)
    mine, theirs = list(left[start : len(left) - end]), list(right[start : len(right) - end])
    if len(mine) * len(theirs) > MAX_CELLS:
        raise Unreadable("it is too large to compare by structure")
    own = [Counter(map(key, mine)), Counter(map(key, theirs))]
    more = (own[0] - own[1], own[1] - own[0])
    free = [[bool(more[side][key(one)] and surplus[side][key(one)]) for one in found] for side, found in enumerate((mine, theirs))]
    pairs = _in_order(mine, theirs, key, free)
    changed = [(mine[a], theirs[b]) for a, b in pairs if key(mine[a]) != key(theirs[b])]
    rest = [_without(mine, {a for a, _ in pairs}), _without(theirs, {b for _, b in pairs})]
    moved = _equal(rest, key)
    elsewhere = _elsewhere(rest, key, surplus)
    return Aligned([*changed, *elsewhere], [*moved, *elsewhere], rest[0], rest[1])


def _shared(left: Sequence[Node], right: Sequence[Node], key: Key) -> tuple[int, int]:
    """How many are equal at the start and at the end."""
    most = min(len(left), len(right))
    start = next((at for at in range(most) if key(left[at]) != key(right[at])), most)
    most -= start
    return start, next((at for at in range(most) if key(left[-1 - at]) != key(right[-1 - at])), most)


def _in_order(mine: list[Node], theirs: list[Node], key: Key, free: list[list[bool]]) -> list[tuple[int, int]]:
    """The pairs, in order on both sides, with the most that is equal, or alike where `free` allows it."""
    rows, columns = len(mine), len(theirs)
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    weights: dict[tuple[int, int], float] = {}
    for a in range(rows - 1, -1, -1):
        for b in range(columns - 1, -1, -1):
            weight = 1.0 if key(mine[a]) == key(theirs[b]) else _likeness(mine[a], theirs[b], key) if free[0][a] and free[1][b] else 0.0
            best[a][b] = max(best[a + 1][b], best[a][b + 1])
            if weight >= _ALIKE:
                weights[(a, b)] = weight
                best[a][b] = max(best[a][b], weight + best[a + 1][b + 1])
    found = []
    a = b = 0
    while a < rows and b < columns:
        if (a, b) in weights and best[a][b] == weights[(a, b)] + best[a + 1][b + 1]:
            found.append((a, b))
            a, b = a + 1, b + 1
        elif best[a][b] == best[a + 1][b]:
            a += 1
        else:
            b += 1
    return found


def _likeness(left: Node, right: Node, key: Key) -> float:
    """How much two statements have in common; two that set the same variable are the same statement, whatever they set it to."""
    targets = [next((part for part in one.walk() if part.role == "target"), None) for one in (left, right) if one.kind in _SETS]
    same = len(targets) == 2 and targets[0] is not None and targets[1] is not None and key(targets[0]) == key(targets[1])
    return max(alike(left, right), _SAME_TARGET if same else 0.0)


def _equal(rest: list[list[Node]], key: Key) -> list[tuple[Node, Node]]:
    """Take equal ones out of both lists, the first with the first."""
    waiting: dict[int, list[Node]] = defaultdict(list)
    for one in rest[1]:
        waiting[key(one)].append(one)
    found = [(one, waiting[key(one)].pop(0)) for one in rest[0] if waiting[key(one)]]
    _take(rest, found)
    return found


def _elsewhere(rest: list[list[Node]], key: Key, surplus: tuple[Counter[int], Counter[int]]) -> list[tuple[Node, Node]]:
    """Take those out that are much alike, the most first."""
    free = [[one for one in rest[side] if surplus[side][key(one)]] for side in (0, 1)]
    if len(free[0]) * len(free[1]) > _MAX_ELSEWHERE:
        return []
    scored = [(alike(a, b), -at, -to, a, b) for at, a in enumerate(free[0]) for to, b in enumerate(free[1])]
    found: list[tuple[Node, Node]] = []
    used: set[int] = set()
    for score, _, _, a, b in sorted(scored, key=lambda one: one[:3], reverse=True):
        if score >= _ALIKE_ELSEWHERE and not {id(a), id(b)} & used:
            found.append((a, b))
            used |= {id(a), id(b)}
    _take(rest, found)
    return found


def _take(rest: list[list[Node]], found: list[tuple[Node, Node]]) -> None:
    for side in (0, 1):
        gone = {id(pair[side]) for pair in found}
        rest[side][:] = [one for one in rest[side] if id(one) not in gone]


def _without(found: list[Node], gone: set[int]) -> list[Node]:
    return [one for at, one in enumerate(found) if at not in gone]


def alike(left: Node, right: Node) -> float:
    """How much two statements have in common, 0 to 1; nothing where only one of them has blocks, or blocks of another kind."""
    compound = bool(left.blocks), bool(right.blocks)
    if compound[0] != compound[1] or (compound[0] and left.kind != right.kind):
        return 0.0
    mine, theirs = left.features, right.features
    return 2 * (mine & theirs).total() / (mine.total() + theirs.total())
