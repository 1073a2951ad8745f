"""Code as a tree to compare: what it says, without its formatting and comments. The one module that needs libcst.

Every node knows its place in the file. Names of local variables are numbers of bindings (which scope, which name), so that
whether two variables are the same one is not for the spelling to decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import libcst as cst

    from opguard_core.evidence.source.enclosing import Mark

MAX_NODES = 60_000
BLOCK = "Block"
"""Kind of a node whose children are statements."""

_FORMATTING = frozenset(
    "leading_lines lines_after_decorators lpar rpar lbracket rbracket lbrace rbrace semicolon comma header footer indent dot colon equal"
    " first_colon second_colon start end open_quote trailing_whitespace whitespace lines_after_module_docstring encoding default_indent"
    " default_newline has_trailing_newline newline separator".split()
)
_BRANCHES = ("orelse", "finalbody", "handlers", "cases")
_PLAIN_NAMES = {("Attribute", "attr"), ("Arg", "keyword"), ("ImportAlias", "name"), ("ImportFrom", "module"), ("NamedAttribute", "name")}


class Unreadable(Exception):
    """The text cannot be made a tree; the message says why, in words that end a sentence."""


@dataclass(eq=False)
class Node:
    """A part of a program.

    Attributes:
        kind: What it is.
        role: What it is to the node above.
        value: What a leaf says.
        binding: Number of the local variable that a name is, or None.
        children: Parts in order.
        mark: Where it stands; None for what has no place of its own (an operator).
    """

    kind: str
    role: str
    value: str = ""
    binding: int | None = None
    children: tuple[Node, ...] = ()
    mark: Mark | None = None
    size: int = field(init=False)

    def __post_init__(self) -> None:
        """Count its nodes."""
        self.size = 1 + sum(child.size for child in self.children)

    @property
    def head(self) -> tuple[Node, ...]:
        """Parts that are no block: of a compound statement, what stands before the colon."""
        return tuple(child for child in self.children if child.kind != BLOCK and not _is_branch(child))

    @property
    def blocks(self) -> tuple[Node, ...]:
        """Blocks, and branches that hold blocks."""
        return tuple(child for child in self.children if child.kind == BLOCK or _is_branch(child))

    @cached_property
    def features(self) -> Counter[Hashable]:
        """What it is made of, names of local variables left out."""
        found: Counter[Hashable] = Counter()
        for part in self.walk():
            found[part.kind] += 1
            if part.value and part.binding is None:
                found[(part.kind, part.value)] += 1
        return found

    def walk(self) -> Iterator[Node]:
        """It and everything below."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass
class Binding:
    """A local variable.

    Attributes:
        name: As spelled.
        depth: Scopes around it.
        parameter: It is a parameter.
    """

    name: str
    depth: int
    parameter: bool


@dataclass
class Code:
    """One function.

    Attributes:
        root: Its tree; a module is a block.
        bindings: Its local variables by number.
    """

    root: Node
    bindings: list[Binding]


def _is_branch(node: Node) -> bool:
    return node.role in _BRANCHES and any(child.kind == BLOCK for child in node.children)


def read(text: str, first: int, last: int, *, module: bool) -> Code:
    """The tree of some lines that are a function, or of a whole module.

    Args:
        text: The file.
        first: First line of the function, 1-based.
        last: Last line.
        module: Take the whole text, and its global names as local ones.

    Raises:
        Unreadable: The lines are no function, or too many nodes.
    """
    import libcst as cst
    from libcst.metadata import MetadataWrapper, PositionProvider, ScopeProvider

    lines = text.splitlines(keepends=True)[first - 1 : last]
    inside = not module and lines[0][:1].isspace()
    # An indented function parses under a header of ours, and all columns stay what they are in the file.
    source = "if 1:\n" + "".join(lines) if inside else "".join(lines)
    try:
        parsed = cst.parse_module(source)
    except (cst.ParserSyntaxError, UnicodeError, RecursionError, ValueError) as error:
        raise Unreadable("the text does not parse here") from error
    wrapper = MetadataWrapper(parsed, unsafe_skip_copy=True)
    found = wrapper.resolve_many([PositionProvider, ScopeProvider])
    root: Any = parsed
    if not module:
        statements: Any = parsed.body[0].body.body if inside else parsed.body  # type: ignore[union-attr]
        root = statements[-1] if statements else None
        if not isinstance(root, cst.FunctionDef):
            raise Unreadable("its lines are no function")
    reader = _Reader(found[PositionProvider], found[ScopeProvider], (first - 1) - int(inside), module)
    try:
        made = reader.block(root.body, "body") if module else reader.node(root, "")
    except RecursionError as error:
        raise Unreadable("its syntax is nested too deeply") from error
    if not module:  # what a function is called is not what it does
        made = Node(made.kind, "", made.value, None, tuple(child for child in made.children if child.role != "name"), made.mark)
    return Code(made, reader.bindings)


class _Reader:
    """Makes nodes of libcst's."""

    def __init__(self, positions: Any, scopes: Any, shift: int, module: bool) -> None:
        from libcst.metadata import ComprehensionScope, FunctionScope, GlobalScope

        self.bindings: list[Binding] = []
        self._positions = positions
        self._scopes = scopes
        self._shift = shift
        self._owners = (FunctionScope, ComprehensionScope, *((GlobalScope,) if module else ()))
        self._numbers: dict[tuple[int, str], int] = {}
        self._count = 0

    def node(self, node: cst.CSTNode, role: str) -> Node:
        """One node with what is below."""
        self._count += 1
        if self._count > MAX_NODES:
            raise Unreadable("it is too large to compare by structure")
        special = getattr(self, f"_{type(node).__name__.lower()}", None)
        if special is not None:
            made: Node = special(node, role)
            return made
        return self._general(node, role)

    def block(self, statements: Any, role: str, mark: Mark | None = None) -> Node:
        """Statements, flattened; texts that stand alone say nothing to the interpreter, and ``pass`` only fills a block."""
        import libcst as cst

        found: list[Node] = []
        for statement in statements:
            small = statement.body if isinstance(statement, cst.SimpleStatementLine) else [statement]
            for one in small:
                if isinstance(one, cst.Pass) or (
                    isinstance(one, cst.Expr) and isinstance(one.value, (cst.SimpleString, cst.ConcatenatedString))
                ):
                    continue
                found.append(self.node(one, "statement"))
        return Node(BLOCK, role, children=tuple(found), mark=mark)

    def _general(self, node: cst.CSTNode, role: str) -> Node:
        import libcst as cst

        kind = type(node).__name__
        values, children = [], []
        for name in node.__dataclass_fields__:
            if name in _FORMATTING or name.startswith("whitespace"):
                continue
            value = getattr(node, name)
            if isinstance(value, str):
                values.append(value)
            elif isinstance(value, (cst.IndentedBlock, cst.SimpleStatementSuite)):
                children.append(self.block(value.body, name, self._mark(value)))
            elif isinstance(value, cst.CSTNode):
                children.append(self._child(value, name, kind))
            elif isinstance(value, (list, tuple)):
                children += [self.node(item, name) for item in value if isinstance(item, cst.CSTNode)]
        return Node(kind, role, "\0".join(values), None, tuple(children), self._mark(node))

    def _child(self, node: cst.CSTNode, role: str, above: str) -> Node:
        import libcst as cst

        if isinstance(node, cst.Name) and (above, role) in _PLAIN_NAMES:
            return Node("Name", role, node.value, None, (), self._mark(node))
        return self.node(node, role)

    def _name(self, node: cst.Name, role: str) -> Node:
        return Node("Name", role, node.value, self._binding(node), (), self._mark(node))

    def _else(self, node: cst.Else, role: str) -> Node:
        """``else`` with nothing but an ``if`` in it is the ``elif`` it could have been written as."""
        import libcst as cst

        made = self._general(node, role)
        inner = made.children[0].children if made.children else ()
        only = len(inner) == 1 and inner[0].kind == "If" and role == "orelse" and isinstance(node.body, cst.IndentedBlock)
        return Node("If", role, "", None, inner[0].children, inner[0].mark) if only else made

    def _param(self, node: cst.Param, role: str) -> Node:
        """A parameter stands where all its parts are, not its name alone."""
        made = self._general(node, role)
        marks = [child.mark for child in (made, *made.children) if child.mark is not None]
        whole = (*min(mark[:2] for mark in marks), *max(mark[2:] for mark in marks))
        return Node(made.kind, role, made.value, None, made.children, whole)

    def _evaluated(self, node: Any, role: str) -> Node:
        """A literal by what it is, however it is spelled."""
        try:
            value = node.evaluated_value
        except (SyntaxError, ValueError, RecursionError):
            value = None
        if value is None:
            return self._general(node, role)
        kind = "String" if isinstance(value, (str, bytes)) else type(node).__name__
        return Node(kind, role, repr(value), None, (), self._mark(node))

    _integer = _float = _imaginary = _simplestring = _concatenatedstring = _evaluated

    def _call(self, node: cst.Call, role: str) -> Node:
        """Keywords in the order of their names: the order they are written in matters only where working them out could."""
        made = self._general(node, role)
        named = [child for child in made.children if child.kind == "Arg" and any(part.role == "keyword" for part in child.children)]
        calls = sum(any(part.kind in ("Call", "Await", "Yield", "NamedExpr") for part in child.walk()) for child in named)
        if len(named) < 2 or calls > 1 or any(child.value for child in named):
            return made
        others = [child for child in made.children if child not in named]
        named.sort(key=lambda child: next(part.value for part in child.children if part.role == "keyword"))
        return Node(made.kind, role, made.value, None, (*others, *named), made.mark)

    def _mark(self, node: cst.CSTNode) -> Mark | None:
        at = self._positions.get(node)
        if at is None or at.start == at.end:
            return None
        return at.start.line + self._shift, at.start.column, at.end.line + self._shift, at.end.column

    def _binding(self, node: cst.Name) -> int | None:
        from libcst.metadata import ImportAssignment

        scope = self._scopes.get(node)
        if scope is None:
            return None
        try:
            assigned = list(scope[node.value])
        except (KeyError, RecursionError):
            return None
        owners = [one.scope for one in assigned]
        if not owners or not all(isinstance(owner, self._owners) for owner in owners):
            return None
        if any(isinstance(one, ImportAssignment) for one in assigned):
            return None
        owner = owners[0]
        key = (id(owner), node.value)
        if key not in self._numbers:
            self._numbers[key] = len(self.bindings)
            self.bindings.append(Binding(node.value, _depth(owner), any(_is_parameter(one) for one in assigned)))
        return self._numbers[key]


def _is_parameter(assignment: Any) -> bool:
    import libcst as cst

    return isinstance(getattr(assignment, "node", None), cst.Param)


def _depth(scope: Any) -> int:
    count = 0
    while scope.parent is not scope and count < 100:
        scope, count = scope.parent, count + 1
    return count
