"""Edits that change no instruction of what runs: comments, blank lines, docstrings, annotations, code that never runs."""

from __future__ import annotations

from typing import Any

import libcst as cst
import numpy as np

from tests.variants.program import Inapplicable, Program
from tests.variants.tree import blocks, changed, is_docstring, is_import, nodes, only

SHARE = 0.4
_ANNOTATION = cst.Annotation(cst.SimpleString('"object"'))


def comments(program: Program, rng: np.random.Generator) -> None:
    """Comments and blank lines before statements, docstrings for functions that have none."""
    for file, module in program.modules().items():
        changes: dict[int, Any] = {}
        for node in nodes(module, cst.SimpleStatementLine) + nodes(module, cst.BaseCompoundStatement):
            if rng.random() < SHARE:
                changes[id(node)] = _commented(int(rng.integers(1, 5)))
        for function in nodes(module, cst.FunctionDef):
            if isinstance(function.body, cst.IndentedBlock) and not is_docstring(function.body.body[0]) and rng.random() < SHARE:
                changes[id(function.body)] = _documented
        program.files[file] = changed(module, changes).code


def _commented(lines: int) -> Any:
    def change(node: Any) -> Any:
        extra = [cst.EmptyLine(indent=False), *[cst.EmptyLine(comment=cst.Comment(f"# remark {number}")) for number in range(lines)]]
        return node.with_changes(leading_lines=[*extra, *node.leading_lines])

    return change


def _documented(block: cst.IndentedBlock) -> cst.IndentedBlock:
    return block.with_changes(body=[cst.parse_statement('"""What it does is said elsewhere."""'), *block.body])


def annotate(program: Program, rng: np.random.Generator) -> None:
    """Type annotations on parameters, results and local variables."""
    count = 0
    for file, module in program.modules().items():
        changes: dict[int, Any] = {}
        for function in nodes(module, cst.FunctionDef):
            shared = {name for node in nodes(function, cst.Global) + nodes(function, cst.Nonlocal) for name in _listed(node)}
            if function.returns is None:
                changes[id(function)] = lambda node: node.with_changes(returns=_ANNOTATION)
            for parameter in function.params.params:
                if parameter.annotation is None and parameter.name.value not in ("self", "cls", "ctx"):
                    changes[id(parameter)] = lambda node: node.with_changes(annotation=_ANNOTATION)
            for line in nodes(function.body, cst.SimpleStatementLine):
                small = only(line)
                if isinstance(small, cst.Assign) and len(small.targets) == 1 and isinstance(small.targets[0].target, cst.Name):
                    if small.targets[0].target.value not in shared and rng.random() < SHARE:
                        changes[id(small)] = _annotated
        for cls in nodes(module, cst.ClassDef):  # there an annotation may make a field
            for line in cls.body.body:
                changes.pop(id(only(line)), None)
        count += len(changes)
        program.files[file] = changed(module, changes).code
    if not count:
        raise Inapplicable("nothing to annotate")


def _listed(node: cst.Global | cst.Nonlocal) -> list[str]:
    return [item.name.value for item in node.names]


def _annotated(assign: cst.Assign) -> cst.AnnAssign:
    return cst.AnnAssign(target=assign.targets[0].target, annotation=_ANNOTATION, value=assign.value)


_DEAD = (
    "if False:\n    raise AssertionError('never')\n",
    "{name} = 3\n",
    "if 1 > 2:\n    {name} = [number * 2 for number in range(3)]\n",
    "def {name}(x):\n    return x * 2\n",
    "while False:\n    pass\n",
    "for {name} in ():\n    print({name})\n",
    "class {name}:\n    size = 4\n",
    "{name} = lambda x: x + 1\n",
)


def dead(program: Program, rng: np.random.Generator) -> None:
    """Statements that never run, and names that nobody reads."""
    for file, module in program.modules().items():
        changes: dict[int, Any] = {}
        for _, body in blocks(module):
            for line in body:
                if isinstance(line, cst.SimpleStatementLine) and not is_import(line) and not is_docstring(line) and rng.random() < SHARE:
                    changes[id(line)] = _before(_DEAD[int(rng.integers(len(_DEAD)))].format(name=program.fresh("unused")))
        program.files[file] = changed(module, changes).code


def _before(text: str) -> Any:
    return lambda line: cst.FlattenSentinel([cst.parse_statement(text), line])
