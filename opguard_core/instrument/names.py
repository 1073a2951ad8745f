"""What a module's names can stand for, as far as its own text says."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

# Calls whose arguments are compiled from their source, as `torch.jit.script(f)`.
_COMPILES = frozenset({"script", "jit", "njit", "rawkernel"})
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class Names:
    """The names that a module binds anywhere, in whatever scope.

    Args:
        tree: The module; not changed.

    Attributes:
        read_again: Names of functions and classes that something in the module compiles from their source.

    Cost: two walks over the tree.
    """

    def __init__(self, tree: ast.Module) -> None:
        self._bound: Counter[str] = Counter()
        self._imported: dict[str, str] = {}
        self._any = False
        self.read_again: set[str] = set()
        for node in ast.walk(tree):
            for name in self._binds(node):
                self._bound[name] += 1
        self._at_top = set(_imports(tree))

    def may_be_bound(self, name: str) -> bool:
        """Whether the name can stand for something other than the builtin."""
        return self._any or name in self._bound

    def imported_from(self, name: str) -> str:
        """Module that a name is imported from or as, if the module binds it in no other way; else ""."""
        return self._imported.get(name, "") if self._bound[name] == 1 else ""

    def imported_at_top(self, name: str) -> bool:
        """Whether the module's own scope imports a name."""
        return name in self._at_top

    def _binds(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from self._import(node)
        elif isinstance(node, ast.ExceptHandler):
            if node.name:
                yield node.name
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            yield from node.names
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)):
            if node.name:
                yield node.name
        elif isinstance(node, ast.MatchMapping):
            if node.rest:
                yield node.rest
        elif isinstance(node, ast.Call):
            self._compiled(node)

    def _import(self, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        for alias in node.names:
            if alias.name == "*":
                self._any = True
                continue
            if isinstance(node, ast.ImportFrom):
                name, module = alias.asname or alias.name, "" if node.level else node.module or ""
            else:
                name, module = alias.asname or alias.name.partition(".")[0], alias.name
            # A second import of the same package says the same.
            if self._imported.get(name, "").partition(".")[0] != module.partition(".")[0] or not module:
                yield name
            self._imported[name] = module

    def _compiled(self, node: ast.Call) -> None:
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        if name in _COMPILES:
            self.read_again.update(argument.id for argument in node.args if isinstance(argument, ast.Name))


def _imports(scope: ast.AST) -> Iterator[str]:
    """Names that a scope itself imports, not the functions and classes in it."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif not isinstance(node, _SCOPES):
            yield from _imports(node)
