"""Loops written another way: with a counter, as ``while``, unrolled; and one more turn of the loop over steps."""

from __future__ import annotations

import re
from typing import Any

import libcst as cst
import numpy as np

from tests.variants.program import Inapplicable, Program
from tests.variants.tree import changed, code, dotted, nodes, picked

MOST_TURNS = 4
_STEPS = re.compile(r"step|epoch|iter|round|length|^n$|schedule", re.IGNORECASE)


def squash(text: str) -> str:
    """A text without white space."""
    return "".join(text.split())


def _line(text: str) -> str:
    """A text on one line, as headers are looked up."""
    return " ".join(text.split())


def _header(loop: cst.For) -> str:
    return f"for {code(loop.target).strip()} in {code(loop.iter).strip()}"


def counted(program: Program, rng: np.random.Generator) -> None:
    """``for x in xs`` becomes ``for n, x in enumerate(xs)``, or a ``while`` over its iterator."""
    modules = program.modules()
    candidates = [
        (file, loop) for file, module in modules.items() for loop in nodes(module, cst.For) if isinstance(loop.body, cst.IndentedBlock)
    ]
    changes: dict[str, dict[int, Any]] = {file: {} for file in modules}
    for file, loop in picked(rng, candidates, 0.6):
        if loop.asynchronous is None:
            as_while = loop.orelse is None and rng.random() < 0.5
            changes[file][id(loop)] = _as_while(program, loop) if as_while else _with_counter(program, loop)
    if not any(changes.values()):
        raise Inapplicable("no loop")
    for file, module in modules.items():
        program.files[file] = changed(module, changes[file]).code


def _with_counter(program: Program, loop: cst.For) -> Any:
    name = program.fresh("turn")
    inner = code(loop.target).strip()
    inner = f"({inner})" if isinstance(loop.target, cst.Tuple) and not loop.target.lpar else inner
    target, iterated = f"{name}, {inner}", f"enumerate({code(loop.iter).strip()})"
    program.headers[_line(f"for ({target}) in {iterated}")] = _line(_header(loop))
    program.headers[_line(iterated)] = _line(code(loop.iter))
    return lambda node: node.with_changes(target=cst.parse_expression(f"({target})"), iter=cst.parse_expression(iterated))


def _as_while(program: Program, loop: cst.For) -> Any:
    name = program.fresh("turns")
    iterated = code(loop.iter).strip()
    program.headers[_line(f"next({name})")] = _line(_header(loop))
    program.headers[_line(f"iter({iterated})")] = _line(iterated)
    assert isinstance(loop.body, cst.IndentedBlock)
    tag = loop.body.header

    def change(node: cst.For) -> Any:
        begin: Any = cst.parse_statement(f"{name} = iter({iterated})")
        target = code(node.target).strip()
        loop: Any = cst.parse_statement(
            f"while True:\n    try:\n        {target} = next({name})\n    except StopIteration:\n        break\n"
        )
        attempt = loop.body.body[0]
        fetch = attempt.body.body[0].with_changes(trailing_whitespace=tag)
        attempt = attempt.with_changes(body=attempt.body.with_changes(body=[fetch]))
        assert isinstance(node.body, cst.IndentedBlock)
        begin = begin.with_changes(leading_lines=node.leading_lines, trailing_whitespace=tag)
        return cst.FlattenSentinel(
            [begin, loop.with_changes(body=node.body.with_changes(body=[attempt, *node.body.body], header=cst.TrailingWhitespace()))]
        )

    return change


def unrolled(program: Program, rng: np.random.Generator) -> None:
    """A loop of few turns whose number is in the text becomes its body, that many times."""
    modules = program.modules()
    candidates = [
        (file, loop, turns)
        for file, module in modules.items()
        for loop in nodes(module, cst.For)
        if (turns := _turns(loop, _constants(module))) and loop.orelse is None and not nodes(loop.body, cst.Break | cst.Continue)
    ]
    if not candidates:
        raise Inapplicable("no loop of few turns")
    file, loop, turns = candidates[int(rng.integers(len(candidates)))]
    program.files[file] = changed(modules[file], {id(loop): _repeated(turns)}).code


def _constants(module: cst.Module) -> dict[str, int]:
    """Integers that the module binds once."""
    found: dict[str, list[int]] = {}
    for assign in nodes(module, cst.Assign):
        for name, value in _pairs(assign):
            if isinstance(name, cst.Name):
                found.setdefault(name.value, []).append(int(value.value, 0) if isinstance(value, cst.Integer) else -1)
    return {name: values[0] for name, values in found.items() if len(values) == 1 and values[0] >= 0}


def _turns(loop: cst.For, numbers: dict[str, int]) -> list[str]:
    if isinstance(loop.iter, cst.Call) and dotted(loop.iter.func) == "range" and len(loop.iter.args) == 1:
        bound = loop.iter.args[0].value
        number = int(bound.value) if isinstance(bound, cst.Integer) else numbers.get(dotted(bound), 0)
        return [str(turn) for turn in range(number)] if 0 < number <= MOST_TURNS else []
    if isinstance(loop.iter, cst.Tuple | cst.List) and 0 < len(loop.iter.elements) <= MOST_TURNS:
        simple = all(isinstance(element.value, cst.Integer | cst.Float | cst.SimpleString | cst.Name) for element in loop.iter.elements)
        return [code(element.value) for element in loop.iter.elements] if simple else []
    return []


def _repeated(turns: list[str]) -> Any:
    def change(loop: cst.For) -> Any:
        assert isinstance(loop.body, cst.IndentedBlock)
        target = code(loop.target).strip()
        lines: list[cst.BaseStatement] = []
        for turn in turns:
            lines += [cst.parse_statement(f"{target} = {turn}"), *[line.deep_clone() for line in loop.body.body]]
        return cst.FlattenSentinel(lines)

    return change


def one_more(program: Program, rng: np.random.Generator) -> None:
    """A number that may say how many steps there are is one larger, or a list of steps one longer."""
    modules = program.modules()
    likely = [(file, node) for file, module in modules.items() for node in _counts(module)]
    other = [(file, node) for file, module in modules.items() for call in nodes(module, cst.Call) for node in _arguments(call)]
    found = likely if likely and (not other or rng.random() < 0.8) else other
    if not found:
        raise Inapplicable("no number of steps")
    file, node = found[int(rng.integers(len(found)))]
    longer: Any
    if isinstance(node, cst.Integer):
        longer = node.with_changes(value=str(int(node.value, 0) + 1))
    else:
        longer = node.with_changes(elements=[*node.elements[:-1], cst.Element(node.elements[-1].value), node.elements[-1]])
    program.steps_added = True
    program.files[file] = changed(modules[file], {id(node): lambda _: longer}).code


def _counts(module: cst.Module) -> list[Any]:
    """Numbers and lists that look like a number of steps, or like one entry a step."""
    found: list[Any] = []
    for loop in nodes(module, cst.For):
        if isinstance(loop.iter, cst.Call) and dotted(loop.iter.func) in ("range", "enumerate"):
            found += [value for argument in loop.iter.args[-1:] for value in [argument.value] if isinstance(value, cst.Integer | cst.List)]
    for assign in nodes(module, cst.Assign):
        for name, value in _pairs(assign):
            if _STEPS.search(code(name)) and isinstance(value, cst.Integer | cst.List):
                found.append(value)
    for parameter in nodes(module, cst.Param):
        if isinstance(parameter.default, cst.Integer) and _STEPS.search(parameter.name.value):
            found.append(parameter.default)
    return [node for node in found if not isinstance(node, cst.List) or node.elements]


def _pairs(assign: cst.Assign) -> list[tuple[Any, Any]]:
    """Targets of an assignment with their values, where each has one."""
    pairs: list[tuple[Any, Any]] = []
    for target in assign.targets:
        if isinstance(target.target, cst.Tuple) and isinstance(assign.value, cst.Tuple):
            pairs += [(one.value, other.value) for one, other in zip(target.target.elements, assign.value.elements, strict=False)]
        else:
            pairs.append((target.target, assign.value))
    return pairs


def _arguments(call: cst.Call) -> list[Any]:
    return [argument.value for argument in call.args if isinstance(argument.value, cst.Integer)]
