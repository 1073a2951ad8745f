"""Edits across files: definitions and expressions moved to a new one, imports written or placed elsewhere, layers made in another order."""

from __future__ import annotations

from typing import Any

import libcst as cst
import numpy as np

from tests.variants.program import Inapplicable, Program
from tests.variants.tree import (
    blocks,
    bound_at_top,
    changed,
    code,
    dotted,
    imports,
    is_builtin,
    is_docstring,
    is_import,
    names_in,
    nodes,
    only,
)

MOST = 3
_NO_DRAW = frozenset(
    """LayerNorm RMSNorm Dropout GELU ReLU SiLU Tanh Sigmoid Softmax ELU Identity BatchNorm1d BatchNorm2d GroupNorm Flatten
    MaxPool1d MaxPool2d ModuleDict""".split()
)


def moved(program: Program, rng: np.random.Generator) -> None:
    """Functions and classes of a file move to a new file beside it, which the old one imports them from."""
    modules = program.modules()
    candidates = [(file, group) for file, module in modules.items() for group in _movable(module)]
    if not candidates:
        raise Inapplicable("no definition that stands alone")
    file, group = candidates[int(rng.integers(len(candidates)))]
    module, stem = modules[file], program.fresh("moved")
    dot = "." if program.is_package_member(file) else ""
    definitions = [line for line in module.body if isinstance(line, cst.FunctionDef | cst.ClassDef) and line.name.value in group]
    needed = _imports_for(module, set().union(*(names_in(line) for line in definitions)))
    program.files[program.beside(file, stem)] = cst.Module([*needed, *definitions]).code
    back = cst.parse_statement(f"from {dot}{stem} import {', '.join(line.name.value for line in definitions)}")
    body: list[Any] = []
    for line in module.body:
        if line is definitions[0]:
            body.append(back)
        if line not in definitions:
            body.append(line)
    program.files[file] = module.with_changes(body=body).code


def _movable(module: cst.Module) -> list[set[str]]:
    """Sets of definitions that use nothing of their file but its imports and each other."""
    top, imported = bound_at_top(module), set(imports(module))
    uses = {line.name.value: names_in(line) & top for line in module.body if isinstance(line, cst.FunctionDef | cst.ClassDef)}
    groups: list[set[str]] = []
    for name in uses:
        group, waiting = {name}, [name]
        while waiting:
            for used in uses.get(waiting.pop(), ()):
                if used in uses and used not in group:
                    group.add(used)
                    waiting.append(used)
        if set().union(*(uses[member] for member in group)) <= imported | group and group not in groups:
            groups.append(group)
    return groups


def _imports_for(module: cst.Module, used: set[str]) -> list[cst.SimpleStatementLine]:
    lines: list[cst.SimpleStatementLine] = []
    for name, line in imports(module).items():
        if name in used and line not in lines:
            lines.append(line)
    future = [line for line in module.body if is_import(line) and "__future__" in code(line)]
    return [*[line for line in future if isinstance(line, cst.SimpleStatementLine) and line not in lines], *lines]


def extracted(program: Program, rng: np.random.Generator) -> None:
    """``y = expression`` becomes ``y = piece(...)``, with ``piece`` in a new file returning the expression."""
    done = 0
    for file, module in program.modules().items():
        stem = program.fresh("pieces")
        dot = "." if program.is_package_member(file) else ""
        pieces: list[cst.BaseStatement] = []
        used: set[str] = set()
        changes: dict[int, Any] = {}
        for line in _extractable(module):
            if rng.random() < 0.5 or len(pieces) >= MOST:
                continue
            small: Any = only(line)
            name = program.fresh("piece")
            arguments = ", ".join(_arguments(module, small.value))
            piece: Any = cst.parse_statement(f"def {name}({arguments}):\n    return ({code(small.value)})\n")
            result = piece.body.body[0].with_changes(trailing_whitespace=line.trailing_whitespace)
            result = result.with_changes(body=[result.body[0].with_changes(value=small.value)]) if _one_line(small.value) else result
            pieces.append(piece.with_changes(body=piece.body.with_changes(body=[result]), leading_lines=[cst.EmptyLine()]))
            used |= names_in(small.value)
            changes[id(line)] = _calling(f"{name}({arguments})")
            program.inlined[f"{name}()"] = code(small.value)
        if not pieces:
            continue
        done += len(pieces)
        program.files[program.beside(file, stem)] = cst.Module([*_imports_for(module, used), *pieces]).code
        names = ", ".join(piece.name.value for piece in pieces if isinstance(piece, cst.FunctionDef))
        edited = changed(module, changes)
        at = next((index for index, line in enumerate(edited.body) if not is_docstring(line) and "__future__" not in code(line)), 0)
        back = cst.parse_statement(f"from {dot}{stem} import {names}")
        program.files[file] = edited.with_changes(body=[*edited.body[:at], back, *edited.body[at:]]).code
    if not done:
        raise Inapplicable("no expression that stands alone")


def _one_line(value: cst.BaseExpression) -> bool:
    return "\n" not in code(value)


def _calling(call: str) -> Any:
    def change(line: cst.SimpleStatementLine) -> cst.SimpleStatementLine:
        small: Any = line.body[0]
        return line.with_changes(body=[small.with_changes(value=cst.parse_expression(call))])

    return change


def _extractable(module: cst.Module) -> list[cst.SimpleStatementLine]:
    found = []
    for _, body in blocks(module):
        for line in body:
            small = only(line)
            if not isinstance(small, cst.Assign | cst.Return) or not isinstance(small.value, cst.Call | cst.BinaryOperation):
                continue
            unwanted = (cst.Lambda, cst.Await, cst.Yield, cst.NamedExpr, cst.CompFor, cst.Ellipsis)
            if not any(nodes(small.value, kind) for kind in unwanted) and not names_in(small.value) & {"super", "locals", "globals"}:
                found.append(line)
    return found


def _arguments(module: cst.Module, value: cst.BaseExpression) -> list[str]:
    """Names that an expression needs from where it stands: all but imports and what Python has."""
    rebound = {parameter.name.value for parameter in nodes(module, cst.Param)}
    rebound |= {name for target in nodes(module, cst.AssignTarget) for name in names_in(target)}
    imported = set(imports(module)) - rebound
    bound = rebound | bound_at_top(module)
    return sorted(name for name in names_in(value) if name not in imported and (name in bound or not is_builtin(name)))


def reimported(program: Program, rng: np.random.Generator) -> None:
    """Imports are written in another form, in another order, or stand in the one function that needs them."""
    count = 0
    for file, module in program.modules().items():
        lines = [line for line in module.body if is_import(line) and "__future__" not in code(line)]
        if not lines:
            continue
        edited = _inside(module, lines, rng) if rng.random() < 0.5 else None
        edited = edited or _shuffled(module, lines, rng)
        rewritten = {id(line): _other_form for line in edited.body if is_import(line)}
        program.files[file] = changed(edited, rewritten).code
        count += 1
    if not count:
        raise Inapplicable("no import")


def _shuffled(module: cst.Module, lines: list[Any], rng: np.random.Generator) -> cst.Module:
    order = iter([lines[index] for index in rng.permutation(len(lines))])
    return module.with_changes(body=[next(order) if any(line is other for other in lines) else line for line in module.body])


def _inside(module: cst.Module, lines: list[Any], rng: np.random.Generator) -> cst.Module | None:
    """Move one import into the only top-level function that uses what it binds."""
    bound = imports(module)
    choices = []
    for line in lines:
        names = {name for name, where in bound.items() if where is line}
        users = [other for other in module.body if other is not line and names_in(other) & names]
        if len(users) == 1 and isinstance(users[0], cst.FunctionDef) and isinstance(users[0].body, cst.IndentedBlock):
            function = users[0]
            if not names_in(function.params) & names and not any(names_in(decorator) & names for decorator in function.decorators):
                choices.append((line, function))
    if not choices:
        return None
    line, function = choices[int(rng.integers(len(choices)))]
    body = list(function.body.body)
    at = 1 if is_docstring(body[0]) else 0
    inner = function.with_changes(body=function.body.with_changes(body=[*body[:at], line.with_changes(leading_lines=[]), *body[at:]]))
    return module.with_changes(body=[inner if other is function else other for other in module.body if other is not line])


def _other_form(line: cst.SimpleStatementLine) -> cst.SimpleStatementLine:
    """``import a.b as c`` becomes ``from a import b as c``."""
    small = only(line)
    if isinstance(small, cst.Import) and len(small.names) == 1 and small.names[0].asname is not None:
        before, dot, last = dotted(small.names[0].name).rpartition(".")  # type: ignore[arg-type]
        if dot:
            made: Any = cst.parse_statement(f"from {before} import {last} as {code(small.names[0].asname.name)}")
            return line.with_changes(body=made.body)
    return line


def constructed(program: Program, rng: np.random.Generator) -> None:
    """Layers are made in another order where one of two neighbours draws no random number."""
    count = 0
    for file, module in program.modules().items():
        changes: dict[int, Any] = {}
        for function in nodes(module, cst.FunctionDef):
            if function.name.value != "__init__" or not isinstance(function.body, cst.IndentedBlock):
                continue
            body = list(function.body.body)
            at, before = 0, count
            while at + 1 < len(body):
                kinds = [_layer(body[at]), _layer(body[at + 1])]
                if all(kinds) and set(kinds) & _NO_DRAW and rng.random() < 0.7:
                    body[at], body[at + 1] = body[at + 1], body[at]
                    at, count = at + 1, count + 1
                at += 1
            if count > before:
                order = [list(function.body.body).index(line) for line in body]
                changes[id(function.body)] = _ordered(order)
        program.files[file] = changed(module, changes).code
    if not count:
        raise Inapplicable("no layers to exchange")


def _ordered(order: list[int]) -> Any:
    return lambda owner: owner.with_changes(body=[owner.body[index] for index in order])


def _layer(line: cst.BaseStatement) -> str:
    """Class of the layer that ``self.x = nn.X(...)`` makes, "" of anything else."""
    small = only(line)
    if isinstance(small, cst.Assign) and dotted(small.targets[0].target).startswith("self.") and isinstance(small.value, cst.Call):
        name = dotted(small.value.func)
        if name.startswith(("nn.", "torch.nn.")) and "self" not in names_in(small.value):
            return name.rpartition(".")[2]
    return ""
