"""Which local variable of one function is which of the other, whatever they are called.

A variable is known by where it is used: by the shape of the statements it stands in, its places in them, and the variables that
stand beside it, to some depth. What that leaves open is settled by the name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from opguard_core.evidence.source.tree import BLOCK, Binding, Code, Node

ROUNDS = 4
MAX_BINDINGS = 400
_ENOUGH = 0.5
_LITERALS = frozenset(("Integer", "Float", "Imaginary", "String"))

Pairs = dict[int, int]
"""Bindings of the reference to those of the suspect."""

Unit = tuple[Hashable, tuple[int, ...]]
"""Shape of a statement without its blocks, and the variables in it in order."""


def same_names(left: Code, right: Code) -> Pairs:
    """Variables that are called the same in scopes that lie equally deep."""
    mine, theirs = _by_name(left.bindings), _by_name(right.bindings)
    return {found[0]: theirs[key][0] for key, found in mine.items() if len(found) == 1 and len(theirs.get(key, ())) == 1}


def by_use(left: Code, right: Code, fixed: Mapping[int, int]) -> Pairs:
    """Pair variables by how they are used.

    Args:
        left: The reference's function.
        right: The suspect's.
        fixed: Pairs that are settled.
    """
    pairs = dict(fixed)
    if max(len(left.bindings), len(right.bindings)) > MAX_BINDINGS:
        return pairs
    for shape in (_shape, _shape_without_literals):
        sides = [_Side(code, units(code.root, shape)) for code in (left, right)]
        _match(sides[0], sides[1], pairs)
    _overlapping(left, right, pairs)
    return pairs


def units(root: Node, shape: Callable[[Node, list[int]], Hashable]) -> list[Unit]:
    """The statements of a function, each without what is in its blocks."""
    found: list[Unit] = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.kind == BLOCK:
            waiting += node.children
            continue
        used: list[int] = []
        found.append(((node.kind, node.value, tuple(shape(part, used) for part in node.head)), tuple(used)))
        waiting += node.blocks
    return found


def _shape(node: Node, used: list[int]) -> Hashable:
    if node.binding is not None:
        used.append(node.binding)
        return (node.role, "")
    return (node.kind, node.role, node.value, *[_shape(child, used) for child in node.children])


def _shape_without_literals(node: Node, used: list[int]) -> Hashable:
    if node.binding is not None:
        used.append(node.binding)
        return (node.role, "")
    value = "" if node.kind in _LITERALS else node.value
    kind = "Literal" if node.kind in _LITERALS else node.kind
    return (kind, node.role, value, *[_shape_without_literals(child, used) for child in node.children])


def _by_name(bindings: list[Binding]) -> dict[tuple[str, int], list[int]]:
    found = defaultdict(list)
    for number, binding in enumerate(bindings):
        found[(binding.name, binding.depth)].append(number)
    return found


class _Side:
    def __init__(self, code: Code, found: list[Unit]) -> None:
        self.bindings = code.bindings
        self.units = found

    def colours(self, fixed: Mapping[int, Hashable], ids: dict[Hashable, int]) -> list[dict[int, int]]:
        """Colours of the variables that are open, round by round: equal on both sides only for those used alike."""

        def colour(value: Hashable) -> int:
            return ids.setdefault(value, len(ids))

        now = {n: colour(fixed.get(n, (one.depth, one.parameter))) for n, one in enumerate(self.bindings)}
        rounds = []
        for _ in range(ROUNDS):
            seen: dict[int, list[Any]] = defaultdict(list)
            for shape, used in self.units:
                whole = colour((shape, tuple(now[number] for number in used)))
                for number in set(used):
                    seen[number].append((whole, tuple(at for at, one in enumerate(used) if one == number)))
            now = {number: colour((before, tuple(sorted(seen[number])))) for number, before in now.items()}
            rounds.append({number: found for number, found in now.items() if number not in fixed})
        return rounds


def _match(left: _Side, right: _Side, pairs: Pairs) -> None:
    """Pair all that have a use of their own; where some are used alike, pair two of them and look again."""
    while True:
        ids: dict[Hashable, int] = {}
        mine = left.colours({a: ("pair", a) for a in pairs}, ids)
        theirs = right.colours({b: ("pair", a) for a, b in pairs.items()}, ids)
        alike = [_grouped(mine[at], theirs[at]) for at in reversed(range(ROUNDS))]
        alone = next((found for groups in alike if (found := [(a[0], b[0]) for a, b in groups if len(a) == len(b) == 1])), [])
        if not alone:
            group = next((groups[0] for groups in alike if groups), None)
            if group is None:
                return
            alone = [_named_alike(left, right, *group)]
        pairs.update(alone)


def _grouped(mine: Mapping[int, int], theirs: Mapping[int, int]) -> list[tuple[list[int], list[int]]]:
    groups: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, colours in enumerate((mine, theirs)):
        for number, colour in colours.items():
            groups[colour][side].append(number)
    return [group for group in groups.values() if group[0] and group[1]]


def _named_alike(left: _Side, right: _Side, mine: list[int], theirs: list[int]) -> tuple[int, int]:
    names = {right.bindings[number].name: number for number in reversed(theirs)}
    same = next((number for number in mine if left.bindings[number].name in names), None)
    return (mine[0], theirs[0]) if same is None else (same, names[left.bindings[same].name])


def _overlapping(left: Code, right: Code, pairs: Pairs) -> None:
    """Pair what is left over and used much alike, the most alike first; the same name counts for something."""
    taken = set(pairs.values())
    mine, theirs = (_uses(units(code.root, _shape_without_literals)) for code in (left, right))
    scored = []
    for a in mine.keys() - pairs.keys():
        for b in theirs.keys() - taken:
            if left.bindings[a].depth == right.bindings[b].depth:
                named = 0.5 * (left.bindings[a].name == right.bindings[b].name)
                scored.append((_dice(mine[a], theirs[b]) + named, -a, -b))
    for score, a, b in sorted(scored, reverse=True):
        if score >= _ENOUGH and -a not in pairs and -b not in taken:
            pairs[-a] = -b
            taken.add(-b)


def _uses(found: Iterable[Unit]) -> dict[int, Counter[Hashable]]:
    uses: dict[int, Counter[Hashable]] = defaultdict(Counter)
    for shape, used in found:
        for at, number in enumerate(used):
            uses[number][(shape, at)] += 1
    return uses


def _dice(first: Counter[Hashable], second: Counter[Hashable]) -> float:
    total = first.total() + second.total()
    return 2 * (first & second).total() / total if total else 0.0
