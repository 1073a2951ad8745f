"""Edits of single statements: a subexpression gets a variable, a context that changes nothing, something looked at, a neighbour swapped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import libcst as cst
import numpy as np

from tests.variants.edits.purity import Purity
from tests.variants.program import Inapplicable, Program
from tests.variants.tree import blocks, changed, code, dotted, imports, is_docstring, names_in, nodes, only, picked, targets

MOST = 4


def split(program: Program, rng: np.random.Generator) -> None:
    """``y = f(g(x))`` becomes ``t = g(x); y = f(t)``, where ``g(x)`` is what was evaluated first."""
    for file, line, inner in _chosen(_splittable(program), rng):
        module = cst.parse_module(program.files[file])
        original = next((other for other in nodes(module, cst.SimpleStatementLine) if code(other) == line), None)
        if original is None:
            continue  # another expression of this statement was chosen as well
        found = next(node for node in _leftmost(_value(original)) if code(node) == inner)
        name = program.fresh("part")
        text = f"{name} = {inner}" if not inner.startswith("(") or found.lpar else f"{name} = ({inner})"
        program.inlined[name] = inner
        statement = cst.parse_statement(text)
        assert isinstance(statement, cst.SimpleStatementLine)
        first = statement.with_changes(leading_lines=original.leading_lines, trailing_whitespace=original.trailing_whitespace)
        second = original.with_changes(leading_lines=[]).deep_replace(found, cst.Name(name))
        program.files[file] = changed(module, {id(original): _becoming([first, second])}).code


def _becoming(lines: list[cst.BaseStatement]) -> Any:
    return lambda _: cst.FlattenSentinel(lines)


def _chosen(candidates: list[Any], rng: np.random.Generator, most: int = MOST) -> list[Any]:
    if not candidates:
        raise Inapplicable("no statement of that form")
    count = min(len(candidates), int(rng.integers(1, most + 1)))
    return [candidates[index] for index in sorted(rng.choice(len(candidates), count, replace=False))]


def _value(line: cst.CSTNode) -> cst.BaseExpression | None:
    small = only(line)
    return small.value if isinstance(small, cst.Assign | cst.Return | cst.Expr) else None


def _splittable(program: Program) -> list[tuple[str, str, str]]:
    found = []
    for file, module in program.modules().items():
        for _, body in blocks(module):
            for line in body:
                value = _value(line)
                if value is not None:
                    found += [(file, code(line), code(inner)) for inner in _leftmost(value) if "super" not in names_in(inner)]
    return found


def _leftmost(node: cst.BaseExpression | None) -> Iterator[cst.BaseExpression]:
    """Calls and operations below an expression that are evaluated before anything else of it that can have an effect."""
    inner: cst.BaseExpression | None = None
    if isinstance(node, cst.Call):
        if not dotted(node.func):
            inner = node.func.value if isinstance(node.func, cst.Attribute) else None
        elif node.args and node.args[0].star == "":
            inner = node.args[0].value
    elif isinstance(node, cst.BinaryOperation):
        inner = node.left
    elif isinstance(node, cst.Subscript | cst.Attribute):
        inner = node.value
    elif isinstance(node, cst.Comparison):
        inner = node.left
    elif isinstance(node, cst.UnaryOperation):
        inner = node.expression
    elif isinstance(node, cst.Tuple) and node.elements and isinstance(node.elements[0], cst.Element):
        inner = node.elements[0].value
    if isinstance(inner, cst.Call | cst.BinaryOperation):
        yield inner
    if inner is not None:
        yield from _leftmost(inner)


_CONTEXTS = (
    "with torch.set_grad_enabled(torch.is_grad_enabled()):\n    pass\n",
    "with torch.autograd.profiler.record_function('part'):\n    pass\n",
    "with torch.random.fork_rng(enabled=False):\n    pass\n",
    "if True:\n    pass\n",
    "try:\n    pass\nfinally:\n    pass\n",
    "for {name} in (0,):\n    pass\n",
)


def wrap(program: Program, rng: np.random.Generator) -> None:
    """Statements run inside a context, a branch or a loop of one turn that changes nothing."""
    modules = program.modules()
    candidates = [
        (file, line)
        for file, module in modules.items()
        for _, body in blocks(module)
        for line in body
        if isinstance(only(line), cst.Assign | cst.Return | cst.Expr | cst.AugAssign) and not is_docstring(line)
    ]
    changes: dict[str, dict[int, Any]] = {file: {} for file in modules}
    for file, line in picked(rng, candidates, 0.25):
        contexts = _CONTEXTS if "torch" in imports(modules[file]) else _CONTEXTS[3:]
        changes[file][id(line)] = _within(contexts[int(rng.integers(len(contexts)))].format(name=program.fresh("once")))
    _apply(program, modules, changes, "no statement to wrap")


def _apply(program: Program, modules: dict[str, cst.Module], changes: dict[str, dict[int, Any]], nothing: str) -> None:
    if not any(changes.values()):
        raise Inapplicable(nothing)
    for file, module in modules.items():
        program.files[file] = changed(module, changes[file]).code


def _within(context: str) -> Any:
    def change(line: cst.SimpleStatementLine) -> cst.BaseStatement:
        compound: Any = cst.parse_statement(context)
        return compound.with_changes(body=cst.IndentedBlock([line]))

    return change


_LOOKS = (
    "{seen} = {name}.abs().max()",
    "{seen} = {name}.clone()",
    "{seen} = {name}.clone() + 0",
    "{seen} = {name}.detach().clone()",
    "{seen} = {name}.norm()",
    "{seen} = {name}.sum().item()",
    "{seen} = [{name}.mean(), {name}.flatten()[:3].tolist()]",
    "{seen} = torch.isnan({name}).any().item()",
    "print('[watch] {name}', {name}.abs().max().item())",
    "print('[watch] {name}', {name}.detach().flatten()[:2])",
    "assert {name}.abs().max().item() >= 0 or {name}.isnan().any().item()",
    "assert {name}.isfinite().all().item() or True",
)


def observe(program: Program, rng: np.random.Generator) -> None:
    """Variables are looked at right after they get their value: reduced, copied, printed, asserted about."""
    modules = program.modules()
    candidates = [
        (file, line, name)
        for file, module in modules.items()
        if "torch" in imports(module)
        for _, body in blocks(module)
        for line in body
        for name in targets(line)
    ]
    changes: dict[str, dict[int, Any]] = {file: {} for file in modules}
    for file, line, name in picked(rng, candidates, 0.4):
        look = _LOOKS[int(rng.integers(len(_LOOKS)))].format(seen=program.fresh("seen"), name=name)
        guard = f"if isinstance({name}, torch.Tensor) and {name}.is_floating_point() and {name}.numel():\n    {look}\n"
        changes[file][id(line)] = _followed(guard)
    _apply(program, modules, changes, "no variable to look at")


def _followed(text: str) -> Any:
    return lambda line: cst.FlattenSentinel([line, cst.parse_statement(text)])


def swap(program: Program, rng: np.random.Generator) -> None:
    """Neighbouring statements that do not depend on each other, or neighbouring definitions, change places."""
    purity = Purity(program.modules().values())
    count = 0
    for file, module in program.modules().items():
        changes: dict[int, Any] = {}
        for owner, body in blocks(module):
            order = list(range(len(body)))
            at = 0
            while at + 1 < len(body):
                if purity.independent(body[at], body[at + 1]) and rng.random() < 0.8:
                    order[at], order[at + 1] = order[at + 1], order[at]
                    at += 1
                    count += 1
                at += 1
            if order != sorted(order):
                changes[id(owner)] = _ordered(order)
        program.files[file] = changed(module, changes).code
    if not count:
        raise Inapplicable("no independent neighbours")


def _ordered(order: list[int]) -> Any:
    return lambda owner: owner.with_changes(body=[owner.body[index] for index in order])
