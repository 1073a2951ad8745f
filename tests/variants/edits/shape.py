"""Edits of how a program hangs together: its script inside a function, its functions behind a decorator that only passes on."""

from __future__ import annotations

from typing import Any

import libcst as cst
import numpy as np

from tests.variants.program import Inapplicable, Program
from tests.variants.tree import bound_at_top, changed, code, is_docstring, is_import, nodes

_PASSING = """import functools


def {name}(function):
    @functools.wraps(function)
    def passed_on(*args, **kwargs):
        return function(*args, **kwargs)

    return passed_on
"""


def decorated(program: Program, rng: np.random.Generator) -> None:
    """Functions and methods are called through a decorator from a new file."""
    name, count = program.fresh("passing"), 0
    for file, module in program.modules().items():
        dot = "." if program.is_package_member(file) else ""
        changes: dict[int, Any] = {}
        for function in nodes(module, cst.FunctionDef):
            special = function.name.value.startswith("__") or function.decorators or nodes(function.body, cst.Yield)
            if not special and not _static(module, function) and rng.random() < 0.4:
                changes[id(function)] = lambda node: node.with_changes(decorators=[cst.Decorator(cst.Name(name))])
        if not changes:
            continue
        count += len(changes)
        edited = changed(module, changes)
        stem = f"{name}_here"
        program.files[program.beside(file, stem)] = _PASSING.format(name=name)
        at = next((index for index, line in enumerate(edited.body) if not is_docstring(line) and "__future__" not in code(line)), 0)
        back = cst.parse_statement(f"from {dot}{stem} import {name}")
        program.files[file] = edited.with_changes(body=[*edited.body[:at], back, *edited.body[at:]]).code
    if not count:
        raise Inapplicable("no plain function")


def _static(module: cst.Module, function: cst.FunctionDef) -> bool:
    """Whether a function lies in a class of torch's autograd functions, whose methods are looked at one by one."""
    for cls in nodes(module, cst.ClassDef):
        if any(line is function for line in cls.body.body):
            return any("Function" in code(base.value) for base in cls.bases)
    return False


def in_function(program: Program, rng: np.random.Generator) -> None:
    """The statements that a script ends with run inside a function; their names stay names of the module."""
    module = cst.parse_module(program.files[program.entry])
    body = list(module.body)
    at = len(body)
    while at and not isinstance(body[at - 1], cst.FunctionDef | cst.ClassDef) and not is_import(body[at - 1]):
        at -= 1
    last = body[at:]
    if not last or (len(last) == 1 and isinstance(last[0], cst.If) and "__name__" in code(last[0].test)):
        if not last or not isinstance(last[0], cst.If) or not isinstance(last[0].body, cst.IndentedBlock) or last[0].orelse is not None:
            raise Inapplicable("no script at the end")
        name = program.fresh("script")
        inner = list(last[0].body.body)
        body[at] = last[0].with_changes(body=last[0].body.with_changes(body=[cst.parse_statement(f"{name}()")]))
        made = _function(name, inner)
        program.files[program.entry] = module.with_changes(body=[*body[:at], made, *body[at:]]).code
        return
    name = program.fresh("script")
    made = _function(name, last)
    program.files[program.entry] = module.with_changes(body=[*body[:at], made, cst.parse_statement(f"{name}()")]).code


def _function(name: str, lines: list[Any]) -> cst.BaseStatement:
    names = sorted(bound_at_top(cst.Module(lines)))
    text = f"def {name}():\n" + (f"    global {', '.join(names)}\n" if names else "    pass\n")
    made: Any = cst.parse_statement(text)
    return made.with_changes(body=made.body.with_changes(body=[*made.body.body, *lines]))
