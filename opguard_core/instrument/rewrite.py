"""A module's source as code whose calls can be observed: every statement and expression keeps its line and column.

    f(a, *b)      pick(SITE, f)(a, *b) if observing else f(a, *b)
    f(long)       (pick(SITE, f) if observing else f)(long')    a call that is long, or has calls in calls, stands only once
    g(long).h(b)  pick(SITE, g'(long').h)(b)                    and so does a callee with such calls in it
    x[i] = v      (owner(SITE, x) if observing else x)[i] = v   wherever a subscript is stored to: also +=, for, with, unpacking
    x += v        if observing and augments("__iadd__", x): x = augmented(SITE, "__iadd__", x, v) else: x += v

Only the callee is wrapped, never the call: arguments, stars and keywords, the calling frame and its error messages stay the
program's. No name is bound, no statement is added in front of another, docstrings and ``__future__`` imports stay first.

Trees, not texts: a rewritten text would move columns. What is left alone, with a count for each reason in `Rewritten.left`:
decorators, annotations and type parameters (their text can be read), bodies of classes (a metaclass may answer every name), bodies
that something compiles from their source, callees that look at their caller's frame, and, unless everything is asked for, calls that
can only reach builtins, the standard library or torch.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, TypeVar, cast

from opguard_core.instrument import runtime
from opguard_core.instrument.known import known_package
from opguard_core.instrument.names import Names
from opguard_core.instrument.runtime import Site

VERSION = 4  # of what is rewritten and how; part of the key of a cached module

FRAME_READERS = frozenset({"super", "locals", "vars", "dir", "eval", "exec", "globals", "breakpoint", "__import__"})
_FRAME_METHODS = frozenset({"_getframe", "_getframemodulename", "currentframe", "_current_frames"})
_LITERALS = (
    ast.Constant, ast.Tuple, ast.List, ast.ListComp, ast.Dict, ast.DictComp, ast.Set, ast.SetComp, ast.GeneratorExp, ast.JoinedStr,
)  # fmt: skip
_REPEATABLE = (
    ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Tuple, ast.Slice, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop,
    ast.expr_context,
)  # fmt: skip
_REPEATABLE_CALL = (
    *_REPEATABLE, ast.Call, ast.keyword, ast.Starred, ast.List, ast.Dict, ast.Set, ast.Compare, ast.cmpop, ast.BoolOp, ast.boolop,
    ast.IfExp, ast.JoinedStr, ast.FormattedValue,
)  # fmt: skip
_MOST_REPEATED_CALL = 80
_MOST_REPEATED = 24  # nodes of a callee that is written twice, of which one is evaluated
# Decorators and functions whose argument is compiled from its source, not run. Source: triton, torch.jit, numba, cupy, taichi, warp.
SOURCE_READERS = frozenset(
    {"jit", "njit", "script", "script_method", "script_if_tracing", "autotune", "heuristics", "kernel", "vectorize", "guvectorize", "cfunc"}
    | {"stencil", "rawkernel", "fuse", "cuda_jit"}
)
COMPILERS = frozenset({"numba", "triton", "taichi", "warp", "cupyx", "tilelang"})  # any decorator of theirs
_METHOD_STACK = 30  # Source: CPython Python/compile.c, STACK_USE_GUIDELINE: with more arguments a method call is a plain call


@dataclass(frozen=True)
class Rewritten:
    """A module's code.

    Attributes:
        code: To run in place of the module's own.
        sites: What was rewritten, by number.
        left: How many calls and stores were left alone, by reason.
    """

    code: CodeType
    sites: list[Site]
    left: dict[str, int] = field(default_factory=dict)


def rewrite(source: bytes, filename: str, digest: str, *, everything: bool = False, first: str = "") -> Rewritten:
    """Rewrite and compile one module.

    Args:
        source: The file's bytes; their encoding is found as Python finds it.
        filename: As the module's code objects name it.
        digest: What `runtime.describe` finds its sites by.
        everything: Also calls that can only reach builtins, the standard library or torch.
        first: Name of a function in ``builtins`` that the module calls before its first statement; "" for none.

    Raises:
        SyntaxError: The source is no Python; or ValueError, RecursionError, MemoryError of the compiler.

    Cost: 6 to 7 ms of a core for 100 lines, seven times what compiling them costs; once, see `cache`.
    Source: a module of 5306 lines with 777 sites, Python 3.11.
    """
    tree = cast("ast.Module", compile(source, filename, "exec", ast.PyCF_ONLY_AST, dont_inherit=True))
    rewriter = _Rewriter(Names(tree), filename, digest, everything=everything)
    rewriter.body(tree)
    if first:
        _call_first(tree, first)
    code = compile(tree, filename, "exec", dont_inherit=True)
    return Rewritten(code, rewriter.sites, dict(rewriter.left))


class _Choice(ast.IfExp):
    """A call that stands twice."""


_Made = TypeVar("_Made", bound=ast.AST)


class _Rewriter(ast.NodeTransformer):
    """Rewrites one tree in place."""

    def __init__(self, names: Names, filename: str, digest: str, *, everything: bool) -> None:
        self.sites: list[Site] = []
        self.left: Counter[str] = Counter()
        self._names, self._filename, self._digest, self._everything = names, filename, digest, everything
        self._function: list[str] = []
        self._in_class = False

    def body(self, tree: ast.Module) -> None:
        """Rewrite a module."""
        self.generic_visit(tree)

    # -- scopes ---------------------------------------------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._definition(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._definition(node)

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self._leave(node.decorator_list, "decorator")
        if node.name in self._names.read_again or any(self._reads_source(decorator) for decorator in node.decorator_list):
            self._leave(node.body, "compiled from its source")
            return node
        self._defaults(node.args)
        self._inside(node.name, node)
        return node

    def _inside(self, name: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outer, self._in_class = self._in_class, False
        self._function += [name, "<locals>"]
        node.body = [cast("ast.stmt", self.visit(statement)) for statement in node.body]
        del self._function[-2:]
        self._in_class = outer

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self._defaults(node.args)
        outer, self._in_class = self._in_class, False
        self._function += ["<lambda>", "<locals>"]
        node.body = self.visit(node.body)
        del self._function[-2:]
        self._in_class = outer
        return node

    def _defaults(self, arguments: ast.arguments) -> None:
        """Default values belong to the scope around; annotations are never looked at."""
        arguments.defaults = [self.visit(default) for default in arguments.defaults]
        arguments.kw_defaults = [None if default is None else self.visit(default) for default in arguments.kw_defaults]

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._leave(node.decorator_list, "decorator")
        if node.name in self._names.read_again or any(self._reads_source(decorator) for decorator in node.decorator_list):
            self._leave(node.body, "compiled from its source")
            return node
        node.bases = [self.visit(base) for base in node.bases]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        outer, self._in_class = self._in_class, True
        self._function.append(node.name)
        node.body = [cast("ast.stmt", self.visit(statement)) for statement in node.body]
        self._function.pop()
        self._in_class = outer
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self._leave([node.annotation], "annotation")
        node.target = self.visit(node.target)
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_TypeAlias(self, node: ast.AST) -> ast.AST:  # from 3.12 on; evaluated only when somebody asks
        self._leave([node], "annotation")
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        if node.guard is not None:
            node.guard = self.visit(node.guard)
        node.body = [cast("ast.stmt", self.visit(statement)) for statement in node.body]
        return node

    # -- sites ----------------------------------------------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if self._in_class:
            # Its names are looked up in what the metaclass made; of a function inside only the body is ours.
            self.left["class body"] += 1
            return self.generic_visit(node)
        why_not = self._why_left(node.func)
        if why_not:
            self.left[why_not] += 1
            return self.generic_visit(node)
        method_place = _method_place(node, self._names)
        repeatable, twice = _repeatable(node.func), _may_stand_twice(node)
        self.generic_visit(node)
        site = self._site(node, "call")
        observed = ast.Call(self._wrap(runtime.PICK, site, node.func, repeatable=repeatable and not twice), node.args, node.keywords)
        ast.copy_location(observed, method_place or node)
        return _at(node, _Choice(self._name(runtime.OBSERVING, node), observed, node)) if twice else observed

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        value = node.value
        if not isinstance(value, _Choice):
            return node
        # As statements: where both ways of an expression meet, Python 3.11 has an instruction without a line, and so one line event more.
        return _at(node, ast.If(value.test, [_at(node, ast.Expr(value.body))], [_at(node, ast.Expr(value.orelse))]))

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        stores = isinstance(node.ctx, ast.Store)
        repeatable = stores and _repeatable(node.value)
        self.generic_visit(node)
        if not stores or isinstance(node.value, _LITERALS):
            return node
        if self._in_class:
            self.left["class body"] += 1
            return node
        node.value = self._wrap(runtime.OWNER, self._site(node, "store"), node.value, repeatable=repeatable)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            if isinstance(node.target, ast.Attribute):
                self.left["augmented attribute"] += 1  # to look at its value would run a property once more
            return node
        if self._in_class:
            self.left["class body"] += 1
            return node
        target = node.target
        site = self._constant(self._site(node, "augment"), node)
        value = ast.copy_location(ast.Name(target.id, ast.Load()), target)
        method = self._constant(f"__i{_INPLACE[type(node.op)]}__", node)
        wanted = _at(node, ast.Call(self._name(runtime.AUGMENTS, node), [method, value], []))
        test = _at(node, ast.BoolOp(ast.And(), [self._name(runtime.OBSERVING, node), wanted]))
        result = _at(node, ast.Call(self._name(runtime.AUGMENTED, node), [site, method, value, node.value], []))
        return _at(node, ast.If(test, [_at(node, ast.Assign([target], result))], [node]))

    def _why_left(self, callee: ast.expr) -> str:
        """Why a call of this callee is left alone, "" if it is not."""
        if isinstance(callee, _LITERALS):
            return "literal"
        if isinstance(callee, ast.Name) and callee.id in FRAME_READERS:
            return "reads its caller's frame"
        if isinstance(callee, ast.Attribute) and callee.attr in _FRAME_METHODS:
            return "reads its caller's frame"
        if self._everything:
            return ""
        root = callee
        while isinstance(root, ast.Attribute):
            root = root.value
        if root is not callee and isinstance(root, (ast.Constant, ast.JoinedStr)):
            return "method of a literal"
        if not isinstance(root, ast.Name):
            return ""
        if root is callee and hasattr(builtins, root.id) and not self._names.may_be_bound(root.id):
            return "builtin"
        package = self._names.imported_from(root.id)
        return f"of {known_package(package)}" if package and known_package(package) else ""

    def _reads_source(self, decorator: ast.expr) -> bool:
        """Whether what is decorated with this is compiled from its source or byte code, under whatever name that was imported."""
        while isinstance(decorator, ast.Call):
            decorator = decorator.func
        name = decorator.attr if isinstance(decorator, ast.Attribute) else decorator.id if isinstance(decorator, ast.Name) else ""
        while isinstance(decorator, ast.Attribute):
            decorator = decorator.value
        module = self._names.imported_from(decorator.id) if isinstance(decorator, ast.Name) else ""
        return name in SOURCE_READERS or module.partition(".")[0] in COMPILERS or module.startswith("torch.jit")

    def _leave(self, nodes: Iterable[ast.AST], reason: str) -> None:
        count = sum(isinstance(inner, ast.Call) for node in nodes for inner in ast.walk(node))
        if count:
            self.left[reason] += count

    def _site(self, node: Any, kind: str) -> str:
        function = ".".join(self._function[:-1] if self._function[-1:] == ["<locals>"] else self._function)
        self.sites.append(Site(self._filename, node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, function, kind))
        return f"{self._digest}:{len(self.sites) - 1}"

    def _wrap(self, chooser: str, site: str, value: ast.expr, *, repeatable: bool) -> ast.expr:
        """``chooser(SITE, value)`` where somebody observes, else ``value``."""
        # The choice itself lies at the end of what it chose, so that lines come in the order in which they are evaluated.
        chosen = ast.Call(self._name(chooser, value), [self._constant(site, value), value], [])
        ast.copy_location(chosen, _last_line(value))
        if not repeatable:
            return chosen
        return _at(value, ast.IfExp(self._name(runtime.OBSERVING, value), chosen, value))

    @staticmethod
    def _name(name: str, place: ast.AST) -> ast.expr:
        return _at(_first_line(place), ast.Name(name, ast.Load()))

    @staticmethod
    def _constant(value: str, place: ast.AST) -> ast.expr:
        return _at(_first_line(place), ast.Constant(value))


_INPLACE = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.MatMult: "matmul", ast.Div: "truediv", ast.Mod: "mod", ast.Pow: "pow",
    ast.LShift: "lshift", ast.RShift: "rshift", ast.BitOr: "or", ast.BitXor: "xor", ast.BitAnd: "and", ast.FloorDiv: "floordiv",
}  # fmt: skip


def _call_first(tree: ast.Module, name: str) -> None:
    """Call a function before anything but the docstring and what must stand first."""
    after = next((index for index, statement in enumerate(tree.body) if not _stands_first(statement)), len(tree.body))
    place: ast.AST = ast.Pass(lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)
    if tree.body:
        place = _first_line(tree.body[after]) if after < len(tree.body) else _last_line(tree.body[-1])
    call = _at(place, ast.Call(_at(place, ast.Name(name, ast.Load())), [], []))
    tree.body.insert(after, _at(place, ast.Expr(call)))


def _stands_first(statement: ast.stmt) -> bool:
    """Whether a statement is a text or an import from ``__future__``."""
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_text or (isinstance(statement, ast.ImportFrom) and statement.module == "__future__")


def _at(place: ast.AST, made: _Made) -> _Made:
    return ast.copy_location(made, place)


def _first_line(place: Any) -> ast.AST:
    """A place that begins where ``place`` does and ends on that line."""
    if place.end_lineno == place.lineno:
        return cast("ast.AST", place)
    return ast.Pass(lineno=place.lineno, col_offset=place.col_offset, end_lineno=place.lineno, end_col_offset=place.col_offset)


def _last_line(place: Any) -> ast.AST:
    """A place on the line on which ``place`` ends."""
    if place.end_lineno == place.lineno:
        return cast("ast.AST", place)
    return ast.Pass(lineno=place.end_lineno, col_offset=0, end_lineno=place.end_lineno, end_col_offset=place.end_col_offset)


def _repeatable(value: ast.expr) -> bool:
    """Whether an expression may be written twice: short, and no call, binding or function in it."""
    nodes = list(ast.walk(value))
    return len(nodes) <= _MOST_REPEATED and all(isinstance(node, _REPEATABLE) for node in nodes)


def _may_stand_twice(call: ast.Call) -> bool:
    """Whether a whole call may be written twice: then it stays, unobserved, the instructions that it was, a method's call included.

    Code grows twofold with each call in a call, so not more than one level of them. Python 3.12 may tell a debugger of a line once more
    where two ways meet behind a call (seen with 3.12.1, not with 3.11 and 3.13), so not there.
    """
    if sys.version_info[:2] == (3, 12):
        return False
    nodes = [*ast.walk(call)]
    if len(nodes) > _MOST_REPEATED_CALL or not all(isinstance(node, _REPEATABLE_CALL) for node in nodes):
        return False
    inner = [node for node in nodes if isinstance(node, ast.Call) and node is not call]
    return not any(isinstance(node, ast.Call) for one in inner for node in ast.walk(one) if node is not one)


def _method_place(call: Any, names: Names) -> ast.AST | None:
    r"""Where the compiler places the call instruction of ``a\n.b()``, if it is not where the call is.

    It is on the line of the attribute's name. Source: CPython Python/compile.c, `maybe_optimize_method_call` and
    `update_start_location_to_match_attr`.
    """
    function: Any = call.func
    if not isinstance(function, ast.Attribute) or call.lineno == function.end_lineno:
        return None
    arguments = len(call.args) + len(call.keywords) + bool(call.keywords)
    starred = any(isinstance(one, ast.Starred) for one in call.args) or any(keyword.arg is None for keyword in call.keywords)
    if starred or arguments >= _METHOD_STACK or (sys.version_info < (3, 11) and call.keywords):
        return None
    if sys.version_info >= (3, 12) and isinstance(function.value, ast.Name) and names.imported_at_top(function.value.id):
        return None
    line, column = int(function.end_lineno or 0), int(function.end_col_offset or 0) - len(function.attr)
    if sys.version_info < (3, 11) or column < 0:
        column = call.col_offset
    end_line, end_column = (call.end_lineno, call.end_col_offset)
    return ast.Pass(lineno=line, col_offset=column, end_lineno=end_line, end_col_offset=end_column)
