"""The smallest parts in which two statements differ; arguments of a call are told apart by name, then by order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from opguard_core.evidence.source.tree import Node

_LISTS = frozenset(
    "args elements params kwonly_params posonly_params decorators comparisons targets ifs items names parts slice patterns".split()
)
_NAMED = frozenset(("params", "kwonly_params", "posonly_params"))
_MAX_CELLS = 40_000

Key = Callable[[Node], int]


class Kind(Enum):
    """What sort of change."""

    EXPRESSION = "expression"
    ARGUMENT = "argument"
    PARAMETER = "parameter"
    DECORATOR = "decorator"
    INSERTED = "inserted"
    REMOVED = "removed"
    RELOCATED = "relocated"  # the same statement in another block: it runs under other conditions
    RENAMED = "renamed"
    MOVED = "moved"  # the same statement elsewhere in its block
    LINE = "line"

    @property
    def is_real(self) -> bool:
        """More than another name or another order of the same statements."""
        return self not in (Kind.RENAMED, Kind.MOVED)


@dataclass(frozen=True)
class Difference:
    """A part that differs.

    Attributes:
        kind: Expression, argument, parameter or decorator.
        reference: The part, None where the suspect has it in addition.
        suspect: The part, None where it is missing.
    """

    kind: Kind
    reference: Node | None
    suspect: Node | None


def differences(left: Node, right: Node, key: Key) -> list[Difference]:
    """Where two statements differ, their blocks aside."""
    found = _children(left, right, left.head, right.head, key) if left.kind == right.kind and left.value == right.value else None
    if found is None:
        return [] if left.blocks else [Difference(Kind.EXPRESSION, left, right)]
    return found


def _between(left: Node, right: Node, key: Key) -> list[Difference]:
    """Where two parts differ."""
    if key(left) == key(right):
        return []
    inside = None
    if left.kind == right.kind and left.value == right.value and (left.binding is None) == (right.binding is None) and left.children:
        inside = _children(left, right, left.children, right.children, key)
    if inside is None or _is_all(left, inside):
        return [Difference(_sort(left), left, right)]
    return inside


def _children(left: Node, right: Node, mine: Sequence[Node], theirs: Sequence[Node], key: Key) -> list[Difference] | None:
    """Where the parts of two nodes differ; None where it is the nodes as a whole that do."""
    roles = list(dict.fromkeys(child.role for child in (*mine, *theirs)))
    found: list[Difference] = []
    for role in roles:
        first, second = ([child for child in side if child.role == role] for side in (mine, theirs))
        if role in _LISTS:
            align = _arguments if role == "args" else _parameters if role in _NAMED else _lists
            found += align(first, second, key)
            continue
        if len(first) != len(second):
            if any(one.mark is None for one in (*first, *second)) or not _may_stand_alone(role):
                return None
            found += _alone(first, second)
            continue
        for a, b in zip(first, second, strict=True):
            if key(a) == key(b):
                continue
            if not (a.children or b.children or a.value or b.value):
                return None  # an operator: what it stands between is what differs
            found += _between(a, b, key)
    return found


def _may_stand_alone(role: str) -> bool:
    return role in ("star_arg", "star_kwarg", "default", "annotation", "returns")


def _is_all(node: Node, inside: Sequence[Difference]) -> bool:
    """Whether nothing of a node but its shell is the same; the value of an argument or parameter stays with its name."""
    if node.kind in ("Arg", "Param"):
        value = next((child for child in node.children if child.role in ("value", "default")), None)
        return len(inside) == 1 and inside[0].reference is value
    parts = [one.reference for one in inside if one.reference is not None]
    return len(inside) > 1 and len(parts) == len(inside) and sum(part.size for part in parts) >= node.size - 1


def _sort(node: Node) -> Kind:
    if node.kind == "Arg":
        return Kind.ARGUMENT
    if node.kind in ("Param", "Parameters", "ParamStar"):
        return Kind.PARAMETER
    return Kind.DECORATOR if node.kind == "Decorator" else Kind.EXPRESSION


def _alone(left: Sequence[Node], right: Sequence[Node]) -> list[Difference]:
    """Parts that only one side has."""
    return [*(Difference(_sort(one), one, None) for one in left), *(Difference(_sort(one), None, one) for one in right)]


def _arguments(left: list[Node], right: list[Node], key: Key) -> list[Difference]:
    """Arguments: those of one name together, the others in order; one that got or lost its name and kept its value is one change."""
    named = [{name: one for one in side if (name := _keyword(one))} for side in (left, right)]
    found: list[Difference] = []
    for name in named[0].keys() & named[1].keys():
        found += _between(named[0][name], named[1][name], key)
    loose = [[one for one in side if not _keyword(one)] for side in (left, right)]
    inside = _lists(loose[0], loose[1], key)
    only = [[one for name, one in side.items() if name not in other] for side, other in (named, named[::-1])]
    gone = [one.reference for one in inside if one.reference is not None and one.suspect is None] + only[0]
    new = [one.suspect for one in inside if one.suspect is not None and one.reference is None] + only[1]
    found += [one for one in inside if one.reference is not None and one.suspect is not None]
    waiting = defaultdict(list)
    for one in new:
        waiting[_value(one, key)].append(one)
    for one in gone:
        same = waiting[_value(one, key)]
        if same:
            other = same.pop(0)
            new.remove(other)
            if key(one) != key(other):
                found.append(Difference(Kind.ARGUMENT, one, other))
        else:
            found.append(Difference(Kind.ARGUMENT, one, None))
    return [*found, *(Difference(Kind.ARGUMENT, None, one) for one in new)]


def _parameters(left: list[Node], right: list[Node], key: Key) -> list[Difference]:
    """Parameters: those of one variable together."""
    if len(left) == len(right):
        return _lists(left, right, key)
    named = [{key(one.children[0]): one for one in side} for side in (left, right)]
    found = [one for name in named[0] if name in named[1] for one in _between(named[0][name], named[1][name], key)]
    only = [[one for name, one in side.items() if name not in other] for side, other in (named, named[::-1])]
    return [*found, *_alone(only[0], only[1])]


def _keyword(argument: Node) -> str:
    return next((part.value for part in argument.children if part.role == "keyword"), "")


def _value(argument: Node, key: Key) -> tuple[str, int]:
    return argument.value, next((key(part) for part in argument.children if part.role == "value"), -1)


def _lists(left: list[Node], right: list[Node], key: Key) -> list[Difference]:
    """Parts in a row: equal ones together, the others between them one by one."""
    if len(left) == len(right) or len(left) * len(right) > _MAX_CELLS:
        pairs = list(zip(left, right, strict=False))
        found = [one for a, b in pairs for one in _between(a, b, key)]
        return [*found, *_alone(left[len(pairs) :], right[len(pairs) :])]
    found = []
    at = to = 0
    for a, b in [*_longest([key(one) for one in left], [key(one) for one in right]), (len(left), len(right))]:
        mine, theirs = left[at:a], right[to:b]
        if len(mine) == len(theirs):
            found += [one for x, y in zip(mine, theirs, strict=True) for one in _between(x, y, key)]
        else:
            found += _alone(mine, theirs)
        at, to = a + 1, b + 1
    return found


def _longest(left: Sequence[int], right: Sequence[int]) -> list[tuple[int, int]]:
    """The longest common subsequence, as positions."""
    best = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for a in range(len(left) - 1, -1, -1):
        for b in range(len(right) - 1, -1, -1):
            best[a][b] = best[a + 1][b + 1] + 1 if left[a] == right[b] else max(best[a + 1][b], best[a][b + 1])
    found = []
    a = b = 0
    while a < len(left) and b < len(right):
        if left[a] == right[b]:
            found.append((a, b))
            a, b = a + 1, b + 1
        elif best[a + 1][b] >= best[a][b + 1]:
            a += 1
        else:
            b += 1
    return found
