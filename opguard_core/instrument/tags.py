"""Tags of calls that survive a refactoring: what is called, with what, in which function, among which other calls; no line numbers.

A tag is found again in another version of the source by a score. Each of the tag's traits counts for itself, so renamed variables or
functions, moved functions, calls put into an ``if`` or ``with`` and added arguments each cost a part of it. A tag for which no call
reaches the threshold, or for which several do about equally, is reported as not found: there are no guesses.
"""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

THRESHOLD = 0.6  # the least score of a call that is taken for the tagged one
MARGIN = 0.04  # by which it must be ahead of every other call, and of every other tag for the same call
# What each trait is worth. The callee outweighs the rest: without it nothing reaches the threshold unless all else is equal.
_WEIGHTS = {"callee": 0.34, "arguments": 0.18, "constants": 0.06, "keywords": 0.04, "function": 0.12, "among": 0.10, "neighbours": 0.12}
_WEIGHTS.update(turn=0.04)
_TOTAL = sum(_WEIGHTS.values())


@dataclass(frozen=True)
class Tag:
    """A call, by its traits.

    Attributes:
        callee: What is called, through imported names: ``my_ext.scale_``; of a method ``.scale_``.
        function: Qualified name of the function it stands in.
        arguments: Kinds of its arguments, variables without their names: ``_``, ``f(_)``, ``_[_]``.
        constants: Constants among them, anywhere.
        keywords: Names of keyword arguments, sorted.
        among: Callees of the same function, sorted.
        before: Callee of the call before it in the function, in the order of the text.
        after: Callee of the call after it.
        turn: Which call of that callee in the function it is, from 0.
        line: Where it begins in the version that the tag was made of; no trait.
        column: The same.
        end: Line and column behind it.
    """

    callee: str
    function: str
    arguments: tuple[str, ...]
    constants: tuple[str, ...]
    keywords: tuple[str, ...]
    among: tuple[str, ...]
    before: str
    after: str
    turn: int
    line: int
    column: int
    end: tuple[int, int]

    @property
    def text(self) -> str:
        """The tag in short, as ``Block.forward: my_ext.scale_(_,float) #0``."""
        return f"{self.function or '<module>'}: {self.callee}({','.join(self.arguments)}) #{self.turn}"


@dataclass(frozen=True)
class Found:
    """A tag and the call that it names in another version of the source; ``score`` in 0..1."""

    tag: Tag
    call: Tag
    score: float


@dataclass(frozen=True)
class NotFound:
    """A tag that names no call there, or not one alone; ``best`` is the highest score that any call has."""

    tag: Tag
    reason: str
    best: float


def tags_of(source: str | bytes) -> list[Tag]:
    """Tags of all calls of a source, in the order of its text; decorators and annotations are left out.

    Raises:
        SyntaxError: The source is no Python.
    """
    tree = ast.parse(source)
    imported = _imported(tree)
    tags: list[Tag] = []
    for function, scope in _functions(tree):
        calls = sorted(_calls(scope), key=lambda call: (call.lineno, call.col_offset, -(call.end_col_offset or 0)))
        callees = [_callee(call.func, imported) for call in calls]
        turns: Counter[str] = Counter()
        for index, (call, callee) in enumerate(zip(calls, callees, strict=True)):
            before = callees[index - 1] if index else ""
            after = callees[index + 1] if index + 1 < len(callees) else ""
            tags.append(_tag(call, callee, function, tuple(sorted(callees)), (before, after), turns[callee]))
            turns[callee] += 1
    return sorted(tags, key=lambda tag: (tag.line, tag.column))


def _tag(call: ast.Call, callee: str, function: str, among: tuple[str, ...], around: tuple[str, str], turn: int) -> Tag:
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    constants = [repr(node.value)[:40] for argument in arguments for node in ast.walk(argument) if isinstance(node, ast.Constant)]
    return Tag(
        callee=callee,
        function=function,
        arguments=tuple(_shape(argument) for argument in arguments),
        constants=tuple(sorted(constants)),
        keywords=tuple(sorted(keyword.arg or "**" for keyword in call.keywords)),
        among=among,
        before=around[0],
        after=around[1],
        turn=turn,
        line=call.lineno,
        column=call.col_offset,
        end=(call.end_lineno or 0, call.end_col_offset or 0),
    )


def score(tag: Tag, call: Tag) -> float:
    """How much of a tag a call has, in 0..1; 1 for an unchanged call."""
    last, own = tag.callee.rpartition("."), call.callee.rpartition(".")
    same_callee = 1.0 if tag.callee == call.callee else 0.8 if last[2] == own[2] else 0.0
    old, new = tag.function.split("."), call.function.split(".")
    parts = {
        "callee": same_callee,
        "arguments": _likeness(tag.arguments, call.arguments),
        "constants": _likeness(tag.constants, call.constants),
        "keywords": _likeness(tag.keywords, call.keywords),
        "function": 1.0 if old == new else 0.7 if old[-1] == new[-1] else 0.3 * (old[0] == new[0]),
        "among": _likeness(tag.among, call.among),
        "neighbours": ((tag.before == call.before) + (tag.after == call.after)) / 2,
        "turn": 1.0 / (1 + abs(tag.turn - call.turn)),
    }
    return sum(_WEIGHTS[name] * part for name, part in parts.items()) / _TOTAL


def find(tags: Iterable[Tag], source: str | bytes, *, threshold: float = THRESHOLD) -> list[Found | NotFound]:
    """Find tagged calls in another version of their source.

    Args:
        tags: Of the first version, any of them.
        source: The other version.
        threshold: Least score.

    Returns:
        One answer for each tag, in their order. No call is the answer for two.

    Raises:
        SyntaxError: The source is no Python.

    Cost: the number of tags times that of calls.
    """
    wanted, calls = list(tags), tags_of(source)
    scores = [[score(tag, call) for call in calls] for tag in wanted]
    answers: list[Found | NotFound | None] = [None] * len(wanted)
    free_tags, free_calls = set(range(len(wanted))), set(range(len(calls)))
    pairs = sorted(
        ((value, tag, call) for tag, row in enumerate(scores) for call, value in enumerate(row) if value >= threshold), reverse=True
    )
    settled = True
    while settled:  # a pair that had a rival may be alone once the rival is found
        settled = False
        for value, tag, call in pairs:
            if tag in free_tags and call in free_calls:
                rivals = [scores[tag][other] for other in free_calls if other != call]
                claims = [scores[other][call] for other in free_tags if other != tag]
                if value - max([0.0, *rivals, *claims]) >= MARGIN:
                    answers[tag] = Found(wanted[tag], calls[call], value)
                    free_tags.discard(tag)
                    free_calls.discard(call)
                    settled = True
    for index in free_tags:
        best = max(scores[index], default=0.0)
        reached = sum(scores[index][call] >= threshold for call in free_calls)
        reason = f"{reached} calls are about as much like it" if reached > 1 else "no call is enough like it"
        if reached == 1:
            reason = "one call is like it, and another tag is about as much like that call"
        answers[index] = NotFound(wanted[index], reason, best)
    return [answer for answer in answers if answer is not None]


def _likeness(old: tuple[str, ...], new: tuple[str, ...]) -> float:
    """Share of two bags that is common; 1 for two empty ones."""
    if old == new:
        return 1.0
    common = sum((Counter(old) & Counter(new)).values())
    return 2 * common / (len(old) + len(new))


def _imported(tree: ast.Module) -> dict[str, str]:
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                package = alias.name.partition(".")[0]
                names.update({alias.asname: alias.name} if alias.asname else {package: package})
        elif isinstance(node, ast.ImportFrom):
            names.update({alias.asname or alias.name: f"{node.module or ''}.{alias.name}" for alias in node.names})
    return names


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Every scope with its qualified name: the module as "", functions, bodies of classes."""
    open_scopes: list[tuple[str, ast.AST]] = [("", tree)]
    while open_scopes:
        name, scope = open_scopes.pop()
        yield name, scope
        open_scopes += [(f"{name}.{inner.name}" if name else inner.name, inner) for inner in _inner(scope)]


_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _inner(scope: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in _children(scope):
        if isinstance(node, _NAMED):
            yield node
        else:
            yield from _inner(node)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """What belongs to a node's own scope or is a scope below it; no decorators, no annotations."""
    for name, value in ast.iter_fields(node):
        if name not in ("decorator_list", "annotation", "returns", "type_params"):
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, ast.AST):
                    yield one


def _calls(scope: ast.AST) -> Iterator[ast.Call]:
    for node in _children(scope):
        if not isinstance(node, _NAMED):
            if isinstance(node, ast.Call):
                yield node
            yield from _calls(node)


def _callee(function: ast.expr, imported: dict[str, str]) -> str:
    names: list[str] = []
    inner = function
    while isinstance(inner, ast.Attribute):
        names.append(inner.attr)
        inner = inner.value
    if not isinstance(inner, ast.Name):
        return f"{_shape(inner)}.{'.'.join(reversed(names))}" if names else _shape(inner)
    root = imported.get(inner.id, inner.id)
    if not names:
        return root
    # Of a variable only the method's name stays when it is renamed.
    rest = ".".join(reversed(names))
    return f"{root}.{rest}" if inner.id in imported or inner.id in ("self", "cls") else f".{rest}"


def _shape(node: ast.AST) -> str:
    """An expression without the names of variables and without constants."""
    if isinstance(node, ast.Name):
        return node.id if hasattr(builtins, node.id) else "_"
    if isinstance(node, ast.Constant):
        return type(node.value).__name__
    if isinstance(node, ast.Attribute):
        return f"{_shape(node.value)}.{node.attr}"
    if isinstance(node, ast.Call):
        return f"{_shape(node.func)}({','.join(map(_shape, node.args))})"
    inner = ",".join(_shape(child) for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr_context))
    return f"{type(node).__name__}({inner})" if inner else type(node).__name__
