"""What differs between two functions, given which variable is which: statements by block, then the expressions inside of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from opguard_core.evidence.source.blocks import align
from opguard_core.evidence.source.expressions import Difference, Kind, differences
from opguard_core.evidence.source.naming import Pairs
from opguard_core.evidence.source.tree import BLOCK, Code, Node

MAX_IN_STATEMENT = 6
"""Differences in one statement above which the statement as a whole is the difference."""

_OPENED = 8


@dataclass(frozen=True)
class Found:
    """One change.

    Attributes:
        kind: What sort.
        reference: The part of the reference's function, or None.
        suspect: The part of the suspect's.
        statement: The statement it is in.
        header: Only what stands before the blocks of a statement.
    """

    kind: Kind
    reference: Node | None
    suspect: Node | None
    statement: Node | None = None
    header: bool = False


def changes(left: Code, right: Code, pairs: Pairs) -> list[Found]:
    """All changes between two functions, in the order of the suspect's lines where it has some.

    Args:
        left: The reference's function.
        right: The suspect's.
        pairs: Which variable of the reference is which of the suspect.

    Raises:
        Unreadable: They are too large.
    """
    return _Comparison(left, right, pairs).run()


class Keys:
    """Numbers that are equal for parts that say the same."""

    def __init__(self, left: Code, right: Code, pairs: Pairs) -> None:
        labels: tuple[dict[int, Hashable], dict[int, Hashable]] = (
            {a: ("both", a) for a in pairs},
            {b: ("both", a) for a, b in pairs.items()},
        )
        for side, (mine, theirs) in enumerate(((left, right), (right, left))):
            local = {binding.name for binding in theirs.bindings}
            for number, binding in enumerate(mine.bindings):
                # A variable that is not assigned on the other side is a global name there: the same one, as far as its uses go.
                labels[side].setdefault(number, (side, number) if binding.name in local else binding.name)
        self._labels = labels
        self._known: dict[Hashable, int] = {}
        self._of: dict[int, int] = {}

    def add(self, root: Node, side: int) -> None:
        """Number a tree."""
        parts = tuple(self._added(child, side) for child in root.children)
        name = root.value if root.binding is None else self._labels[side][root.binding]
        self._of[id(root)] = self._number((root.kind, root.role if root.role in ("orelse", "finalbody") else "", name, parts))

    def _added(self, node: Node, side: int) -> tuple[str, int]:
        self.add(node, side)
        return node.role, self._of[id(node)]

    def _number(self, value: Hashable) -> int:
        return self._known.setdefault(value, len(self._known))

    def __call__(self, node: Node) -> int:
        """The number of a part."""
        return self._of[id(node)]


class _Comparison:
    def __init__(self, left: Code, right: Code, pairs: Pairs) -> None:
        self._roots = (left.root, right.root)
        self._key = Keys(left, right, pairs)
        for side, root in enumerate(self._roots):
            self._key.add(root, side)
        counts = [Counter(self._key(node) for node in _statements(root)) for root in self._roots]
        self._surplus = (counts[0] - counts[1], counts[1] - counts[0])
        self._found: list[Found] = []
        self._removed: list[Node] = []
        self._inserted: list[Node] = []

    def run(self) -> list[Found]:
        left, right = self._roots
        if self._key(left) != self._key(right):
            if left.kind == BLOCK:
                self._block(left.children, right.children)
            else:
                self._statement(left, right)
        self._relocate()
        self._found += [Found(Kind.REMOVED, one, None) for one in self._removed]
        self._found += [Found(Kind.INSERTED, None, one) for one in self._inserted]
        return sorted(self._found, key=_where)

    def _block(self, left: Sequence[Node], right: Sequence[Node]) -> None:
        aligned = align(left, right, self._key, self._surplus)
        self._found += [Found(Kind.MOVED, a, b, b) for a, b in aligned.moved]
        self._removed += aligned.removed
        self._inserted += aligned.inserted
        for a, b in aligned.changed:
            self._statement(a, b)

    def _statement(self, left: Node, right: Node) -> None:
        """Two statements that stand for each other and differ."""
        inside = differences(left, right, self._key)
        whole = len(inside) > MAX_IN_STATEMENT or (len(inside) > 1 and _covers_all(left, inside))
        if whole and not left.blocks:
            inside = [Difference(Kind.EXPRESSION, left, right)]
        self._found += [Found(one.kind, one.reference, one.suspect, right) for one in inside]
        mine, theirs = ([block for block in node.blocks if block.kind == BLOCK] for node in (left, right))
        for a, b in zip(mine, theirs, strict=False):
            self._block(a.children, b.children)
        branches = [[block for block in node.blocks if block.kind != BLOCK] for node in (left, right)]
        if any(branches):
            self._block(branches[0], branches[1])

    def _relocate(self) -> None:
        """Pair what is gone in one block with what is new in another, looking into statements that are new or gone themselves."""
        for _ in range(_OPENED):
            self._pair_equal()
            opened = [self._open(mine, theirs) for mine, theirs in ((self._inserted, self._removed), (self._removed, self._inserted))]
            if not any(opened):
                return

    def _pair_equal(self) -> None:
        waiting: dict[int, list[Node]] = defaultdict(list)
        for one in self._inserted:
            waiting[self._key(one)].append(one)
        for one in list(self._removed):
            if waiting[self._key(one)]:
                other = waiting[self._key(one)].pop(0)
                self._removed.remove(one)
                self._inserted.remove(other)
                self._found.append(Found(Kind.RELOCATED, one, other, other))

    def _open(self, mine: list[Node], theirs: list[Node]) -> bool:
        """Take statements apart that hold one that is left over on the other side; what is before their blocks is told by itself."""
        there = {self._key(node) for one in theirs for node in _statements(one)}
        opened = [one for one in mine if one.blocks and any(self._key(node) in there for node in _inner(one))]
        for one in opened:
            at = mine.index(one)
            inner = [child for block in one.blocks for child in (block.children if block.kind == BLOCK else (block,))]
            mine[at : at + 1] = inner
            new = mine is self._inserted
            told = Found(Kind.INSERTED, None, one, header=True) if new else Found(Kind.REMOVED, one, None, header=True)
            self._found.append(told)
        return bool(opened)


def _statements(root: Node) -> Iterator[Node]:
    """All statements of a tree, and branches as far as they are aligned like statements."""
    if root.kind != BLOCK:
        yield root
    yield from _inner(root)


def _inner(root: Node) -> Iterator[Node]:
    waiting = list(root.children if root.kind == BLOCK else root.blocks)
    while waiting:
        node = waiting.pop(0)
        if node.kind != BLOCK:
            yield node
            waiting += node.blocks
        else:
            waiting += node.children


def _covers_all(statement: Node, inside: Sequence[Difference]) -> bool:
    """Whether little of a statement is left that is the same."""
    gone = sum(one.reference.size for one in inside if one.reference is not None)
    return gone > 0.7 * sum(part.size for part in statement.head)


def _where(found: Found) -> tuple[int, int, int]:
    """Suspect's line, else the reference's; what is gone before what is new."""
    node = found.suspect or found.reference
    mark = None if node is None else node.mark
    line, column = (0, 0) if mark is None else mark[:2]
    return line, column, int(found.reference is None)
