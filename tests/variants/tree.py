"""Questions about libcst trees that several edits ask."""

from __future__ import annotations

import builtins
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import libcst as cst
import numpy as np

WRITES_IN_NAME = "_"  # methods that end in it write in place


class _Collector(cst.CSTVisitor):
    """Names read and written, in the order met; keywords of calls and names of attributes are neither."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[str] = []

    def visit_Name(self, node: cst.Name) -> None:
        self.all.append(node.value)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_Param(self, node: cst.Param) -> bool:
        self.all.append(node.name.value)
        if node.default is not None:
            node.default.visit(self)
        if node.annotation is not None:
            node.annotation.visit(self)
        return False


def names_in(node: cst.CSTNode) -> set[str]:
    """Every variable that occurs in a node."""
    collector = _Collector()
    node.visit(collector)
    return set(collector.all)


def nodes(node: cst.CSTNode, kind: Any) -> list[Any]:
    """Every node of a type (or union of types) below a node, it included; a node comes before what lies in it."""
    return [found for found in _walk(node) if isinstance(found, kind)]


def below(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Nodes right below a node, white space left out."""
    # Not `node.children`, which runs a visitor over each: that took minutes for the cases.
    found: list[cst.CSTNode] = []
    for name in _parts(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [item for item in value if isinstance(item, cst.CSTNode)]
    return found


@functools.cache
def _parts(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    """Fields of a kind of node that hold nodes with a meaning."""
    names = [field.name for field in dataclasses.fields(kind)]
    return tuple(
        name for name in names if not name.startswith(("whitespace", "leading_lines", "lines_after", "trailing_whitespace", "header"))
    )


def _walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    waiting = [node]
    while waiting:
        found = waiting.pop()
        yield found
        waiting += reversed(below(found))


def targets(statement: cst.BaseStatement) -> list[str]:
    """Names that a simple statement binds by plain assignment; empty if it binds anything else or does not assign."""
    assign = only(statement)
    if not isinstance(assign, cst.Assign):
        return []
    found: list[str] = []
    for target in assign.targets:
        elements: Sequence[Any] = [target.target]
        if isinstance(target.target, cst.Tuple):
            elements = [element.value for element in target.target.elements]
        if not all(isinstance(element, cst.Name) for element in elements):
            return []
        found += [element.value for element in elements]
    return found


def only(statement: cst.CSTNode) -> cst.BaseSmallStatement | None:
    """The one small statement of a line, None if it is a compound one or holds several."""
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
        return statement.body[0]
    return None


def dotted(node: cst.BaseExpression) -> str:
    """``a.b.c`` of a name or attribute chain, "" of anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr.value}" if before else ""
    return ""


def code(node: cst.CSTNode) -> str:
    """Source of a node."""
    return cst.Module([]).code_for_node(node)


def imports(module: cst.Module) -> dict[str, cst.SimpleStatementLine]:
    """The top-level import statement of each name that it binds."""
    found: dict[str, cst.SimpleStatementLine] = {}
    for statement in module.body:
        small = only(statement)
        if isinstance(small, cst.Import | cst.ImportFrom) and not isinstance(small.names, cst.ImportStar):
            assert isinstance(statement, cst.SimpleStatementLine)
            for alias in small.names:
                bound = alias.asname.name.value if alias.asname else dotted(alias.name).partition(".")[0]  # type: ignore[union-attr]
                found[bound] = statement
    return found


def is_import(statement: cst.CSTNode) -> bool:
    """Whether a statement is an import and nothing else."""
    return isinstance(only(statement), cst.Import | cst.ImportFrom)


def is_docstring(statement: cst.CSTNode) -> bool:
    """Whether a statement is a bare string."""
    small = only(statement)
    return isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString | cst.ConcatenatedString)


def globals_of(node: cst.CSTNode, module: cst.Module) -> set[str]:
    """Names in a node that the module binds at its top level (imports included)."""
    return names_in(node) & bound_at_top(module)


def bound_at_top(module: cst.Module) -> set[str]:
    """Names that the module's top level binds, compound statements included."""
    found = set(imports(module))
    for statement in module.body:
        if isinstance(statement, cst.FunctionDef | cst.ClassDef):
            found.add(statement.name.value)
        else:
            for target in nodes(statement, cst.AssignTarget):
                found |= names_in(target)
            for other in nodes(statement, cst.For):
                found |= names_in(other.target)
            for item in nodes(statement, cst.AsName):
                found |= names_in(item.name)
            for augmented in nodes(statement, cst.AugAssign) + nodes(statement, cst.NamedExpr) + nodes(statement, cst.AnnAssign):
                found |= names_in(augmented.target)
    return found


def is_builtin(name: str) -> bool:
    """Whether Python itself has the name."""
    return hasattr(builtins, name)


def functions(module: cst.Module) -> list[cst.FunctionDef]:
    """Every function and method, nested ones included."""
    return nodes(module, cst.FunctionDef)


def blocks(module: cst.Module) -> list[tuple[cst.Module | cst.IndentedBlock, Sequence[cst.BaseStatement]]]:
    """Every body of statements outside class bodies: the module's own and those of compound statements."""
    classes = {id(node.body) for node in nodes(module, cst.ClassDef)}
    found: list[tuple[cst.Module | cst.IndentedBlock, Sequence[cst.BaseStatement]]] = [(module, module.body)]
    return found + [(block, block.body) for block in nodes(module, cst.IndentedBlock) if id(block) not in classes]


def picked(rng: np.random.Generator, candidates: Sequence[Any], share: float) -> list[Any]:
    """About that share of the candidates, in order; at least one if there are any."""
    chosen = [candidate for candidate in candidates if rng.random() < share]
    return chosen or [candidates[int(rng.integers(len(candidates)))] for _ in candidates[:1]]


class _Replace(cst.CSTTransformer):
    def __init__(self, changes: dict[int, Any]) -> None:
        super().__init__()
        self._changes = changes

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        change = self._changes.get(id(original_node))
        return super().on_leave(original_node, updated_node) if change is None else change(updated_node)


def changed(module: cst.Module, changes: dict[int, Any]) -> cst.Module:
    """The module with nodes replaced.

    Args:
        module: A parsed file.
        changes: By identity of a node: function of what it has become by then, gives its replacement.
    """
    made = module.visit(_Replace(changes))
    assert isinstance(made, cst.Module)
    return made


def statement(text: str) -> cst.BaseStatement:
    """One statement of ours, without a number."""
    return cst.parse_statement(text)
