"""Tags of calls under generated refactorings: what is found is the very call, nearly all is found, and what is gone is said to be."""

import ast
import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opguard_core.instrument.tags import Found, NotFound, find, tags_of

CALLEES = ["ext.scale_", "ext.fused", "rotary.apply", "self.norm", "self.project", "math_ops.softcap", "x.view", "gather", "route"]
NAMES = ["x", "y", "hidden", "mask", "weight", "state"]
LEAST_SHARE = 0.95  # of the calls that are still there, over all examples of one kind of refactoring


class Draws:
    """Choices that a seed decides."""

    def __init__(self, seed):
        self.state = seed * 2 + 1

    def randrange(self, end):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % end

    def choice(self, values):
        return values[self.randrange(len(values))]

    def sample(self, values, count):
        rest = list(values)
        return [rest.pop(self.randrange(len(rest))) for _ in range(count)]

    def shuffle(self, values):
        values[:] = self.sample(values, len(values))


def program(seed):
    """A module of functions and a class, of calls that share callees but not all of their arguments."""
    draw = Draws(seed)
    lines = ["import ext", "import rotary", "import math_ops", ""]
    number = 0

    def call(depth=0):
        nonlocal number
        number += 1
        arguments = [draw.choice([draw.choice(NAMES), str(draw.randrange(10)), f"{draw.choice(NAMES)}[{draw.randrange(4)}]"])]
        if depth == 0 and draw.randrange(10) < 4:
            arguments.append(call(1))
        if draw.randrange(10) < 3:
            arguments.append(f"{draw.choice(['eps', 'dim', 'out'])}={draw.choice(NAMES)}")
        return f"{draw.choice(CALLEES)}({', '.join(arguments)})"

    def body(indent):
        return [f"{indent}{draw.choice(NAMES)} = {call()}" for _ in range(2 + draw.randrange(3))]

    for index in range(2 + draw.randrange(3)):
        lines += [f"def step_{index}(x, y, hidden, mask, weight, state):", *body("    "), ""]
    lines += ["class Block:"]
    for index in range(1 + draw.randrange(3)):
        lines += [f"    def part_{index}(self, x, y, hidden, mask, weight, state):", *body("        "), ""]
    return "\n".join(lines) + "\n"


class Renamed(ast.NodeTransformer):
    def __init__(self, names):
        self.names = names

    def visit_Name(self, node):
        node.id = self.names.get(node.id, node.id)
        return node

    def visit_arg(self, node):
        node.arg = self.names.get(node.arg, node.arg)
        return node


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def rename_variables(tree, draw):
    return Renamed({name: f"{name}_new" for name in draw.sample(NAMES, 3)}).visit(tree)


def rename_a_function(tree, draw):
    draw.choice(functions(tree)).name = "renamed"
    return tree


def insert_lines(tree, draw):
    for _ in range(4):
        body = draw.choice(functions(tree)).body
        body.insert((0 + draw.randrange(len(body) - 0 + 1)), ast.parse(f"note = {draw.randrange(100)}").body[0])
    return tree


def move_functions(tree, draw):
    draw.shuffle(tree.body)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            draw.shuffle(node.body)
    return tree


def wrap(tree, draw):
    function = draw.choice(functions(tree))
    at = draw.randrange(len(function.body))
    block = draw.choice(["if hidden:\n    pass", "with mask:\n    pass", "for _ in state:\n    pass"])
    wrapped = ast.parse(block).body[0]
    wrapped.body = function.body[at:]
    function.body[at:] = [wrapped]
    return tree


def add_arguments(tree, draw):
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in draw.sample(calls, min(2, len(calls))):
        call.keywords.append(ast.keyword("added", ast.Constant(True)))
    return tree


def alias_an_import(tree, draw):
    for node in tree.body:
        if isinstance(node, ast.Import) and node.names[0].name == "ext":
            node.names[0].asname = "native"
    return Renamed({"ext": "native"}).visit(tree)


REFACTORINGS = [rename_variables, rename_a_function, insert_lines, move_functions, wrap, add_arguments, alias_an_import]


def refactored(source, changes, draw):
    """The changed source, and for each call of the first its (line, column) in it; None if it is gone."""
    tree = ast.parse(source)
    order = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for node in order:
        node.was = (node.lineno, node.col_offset)
    for change in changes:
        tree = change(tree, draw)
    text = ast.unparse(ast.fix_missing_locations(tree))
    again = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    now = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert len(again) == len(now)
    places = {node.was: (new.lineno, new.col_offset) for node, new in zip(now, again, strict=True) if hasattr(node, "was")}
    return text, places


@pytest.mark.parametrize("change", REFACTORINGS, ids=lambda change: change.__name__)
def test_calls_are_found_across_a_refactoring_and_never_mistaken(change):
    shares = []

    @settings(max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.integers(0, 10**6))
    def check(seed):
        source = program(seed)
        text, places = refactored(source, [change], Draws(seed))
        answers = find(tags_of(source), text)
        found = [answer for answer in answers if isinstance(answer, Found)]
        assert all(places[answer.tag.line, answer.tag.column] == (answer.call.line, answer.call.column) for answer in found)
        shares.append(len(found) / len(answers))

    check()
    assert sum(shares) / len(shares) >= LEAST_SHARE


@settings(max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10**6), st.lists(st.sampled_from(REFACTORINGS), min_size=2, max_size=3, unique=True))
def test_several_refactorings_at_once_lose_calls_but_mistake_none(seed, changes):
    source = program(seed)
    text, places = refactored(source, changes, Draws(seed))
    answers = find(tags_of(source), text)
    for answer in answers:
        if isinstance(answer, Found):
            assert places[answer.tag.line, answer.tag.column] == (answer.call.line, answer.call.column)
        else:
            assert answer.reason


@settings(max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10**6))
def test_a_call_that_is_gone_is_reported_and_not_replaced_by_another(seed):
    source = program(seed)

    def delete(tree, draw):
        function = draw.choice(functions(tree))
        del function.body[draw.randrange(len(function.body))]
        return tree

    text, places = refactored(source, [delete], Draws(seed))
    for answer in find(tags_of(source), text):
        if (answer.tag.line, answer.tag.column) not in places:
            assert isinstance(answer, NotFound)
        elif isinstance(answer, Found):
            assert places[answer.tag.line, answer.tag.column] == (answer.call.line, answer.call.column)


def test_equal_calls_side_by_side_are_told_apart_by_their_turn_and_a_lost_one_makes_both_unsure():
    two = "def f(x):\n    ext.scale_(x, 2)\n    ext.scale_(x, 2)\n"
    assert [answer.call.line for answer in find(tags_of(two), "\n\n" + two)] == [4, 5]
    one = "def f(x):\n    ext.scale_(x, 2)\n"
    answers = find(tags_of(two), one)
    assert all(isinstance(answer, NotFound) for answer in answers), answers
    assert copy.copy(answers[0]).reason
