"""What is said to have changed between two functions: cases that occur in trainings, and texts that are no functions."""

from __future__ import annotations

import pytest

from opguard_core.evidence.source import Kind, compare_sources, enclosing, tree
from opguard_core.evidence.source.enclosing import MODULE
from tests.support.functions import place

ATTENTION = '''
import torch


class Attention(torch.nn.Module):
    @torch.no_grad()
    def forward(self, x, mask=None, *, scale=1.0):
        """What it does."""
        q = self.q(x)  # query
        k = self.k(x)
        v = self.v(x)
        att = torch.softmax(q @ k.transpose(-2, -1) * 0.125, dim=-1)
        if mask is not None:
            att = att.masked_fill(mask, 0.0)
        else:
            att = att * scale
        for i in range(3):
            att = att + i
            self.log(att)
        best = [torch.relu(row) for row in att if row is not None]
        key = sorted(best, key=lambda one: one.sum())

        def inner(z):
            return z * scale

        out = inner(att @ v)
        return self.drop(out, p=0.1, training=True), key
'''

SAME = {
    "comment": ("# query", "# something else"),
    "docstring": ('"""What it does."""', '"""Other words."""'),
    "parentheses": ("att * scale", "(att) * (scale)"),
    "line breaks": (
        "self.drop(out, p=0.1, training=True), key",
        "(\n            self.drop(\n                out, p=0.1, training=True,\n            ),\n            key,\n        )",
    ),
    "spelling of a number": ("0.125", "1.25e-1"),
    "order of keywords": ("p=0.1, training=True", "training=True, p=0.1"),
    "one line": ("            att = att * scale\n", "            att = att * scale; pass\n"),
    "else with an if": (
        "        else:\n            att = att * scale\n",
        "        else:\n            # more\n            att = att * scale\n",
    ),
    "name of the function": ("def forward(", "def compute("),
}
CHANGED = {
    "constant": ("0.125", "0.25", [("expression", "0.125", "0.25")]),
    "operator": ("* 0.125", "/ 0.125", [("argument", "q @ k.transpose(-2, -1) * 0.125", "q @ k.transpose(-2, -1) / 0.125")]),
    "argument": ("p=0.1", "p=0.2", [("argument", "p=0.1", "p=0.2")]),
    "argument gone": (", training=True", "", [("argument", "training=True", "")]),
    "argument by name": ("self.drop(out, p=0.1", "self.drop(out, 0.1", [("argument", "p=0.1", "0.1")]),
    "argument new": ("* 0.125, dim=-1", "* 0.125, dim=-1, dtype=torch.float32", [("argument", "", "dtype=torch.float32")]),
    "condition": ("mask is not None:", "mask is None:", [("expression", "is not None", "is None")]),
    "default": ("mask=None", "mask=0", [("parameter", "mask=None", "mask=0")]),
    "parameter new": ("mask=None,", "mask=None, extra=2,", [("parameter", "", "extra=2")]),
    "decorator": ("    @torch.no_grad()\n", "", [("decorator", "@torch.no_grad()", "")]),
    "in a lambda": ("one.sum()", "one.mean()", [("expression", "sum", "mean")]),
    "in a comprehension": ("torch.relu(row)", "torch.tanh(row)", [("expression", "relu", "tanh")]),
    "in a nested function": ("z * scale", "z + scale", [("expression", "z * scale", "z + scale")]),
    "statement gone": ("        v = self.v(x)\n", "", [("removed", "v = self.v(x)", "")]),
    "statement new": ("        out = inner", "        x = x.detach()\n        out = inner", [("inserted", "", "x = x.detach()")]),
    "another variable": ("inner(att @ v)", "inner(att @ k)", [("expression", "v", "k")]),
    "out of a loop": ("            self.log(att)\n", "        self.log(att)\n", [("relocated", "self.log(att)", "self.log(att)")]),
    "in a context": (
        "        out = inner(att @ v)\n",
        "        with torch.no_grad():\n            out = inner(att @ v)\n",
        [("inserted", "", "with torch.no_grad():"), ("relocated", "out = inner(att @ v)", "out = inner(att @ v)")],
    ),
    "in place": ("att = att * scale", "att *= scale", [("expression", "att = att * scale", "att *= scale")]),
    "branch gone": ("        else:\n            att = att * scale\n", "", [("removed", "else: ...", "")]),
}


def compared(first: str, second: str, needle: str = "return self.drop"):
    return compare_sources(place(first, needle), place(second, needle if needle in second else "self.drop"))


@pytest.mark.parametrize("case", SAME)
def test_what_is_written_otherwise_is_no_change(case):
    old, new = SAME[case]
    assert ATTENTION.count(old) == 1
    found = compared(ATTENTION, ATTENTION.replace(old, new), "self.drop")
    assert (found.method, found.changes, found.same) == ("structure", (), True)


@pytest.mark.parametrize("case", CHANGED)
def test_what_changed_is_named_and_nothing_else(case):
    old, new, expected = CHANGED[case]
    assert ATTENTION.count(old) == 1
    found = compared(ATTENTION, ATTENTION.replace(old, new))
    assert found.method == "structure"
    assert [(change.kind.value, change.before, change.after) for change in found.changes] == expected
    assert not found.same


def test_a_change_says_its_lines_on_both_sides():
    longer = ATTENTION.replace("import torch\n", "import torch\nimport os\n").replace("0.125", "0.5")
    (change,) = compared(ATTENTION, longer).changes
    assert "0.125" in ATTENTION.splitlines()[change.reference[0] - 1]
    assert change.suspect == (change.reference[0] + 1,) * 2
    assert change.within.startswith("att = torch.softmax(")


def test_two_variables_that_swap_names_are_two_names():
    swapped = ATTENTION.replace("q = self.q", "tmp = self.q").replace("k = self.k", "q = self.k").replace("tmp =", "k =")
    swapped = swapped.replace("q @ k.tr", "k @ q.tr").replace("inner(att @ v)", "inner(att @ v + q.sum() + q.mean() + q.max())")
    first = ATTENTION.replace("inner(att @ v)", "inner(att @ v + k.sum() + k.mean() + k.max())")
    found = compared(first, swapped)
    assert {(change.kind, change.before, change.after) for change in found.changes} == {(Kind.RENAMED, "q", "k"), (Kind.RENAMED, "k", "q")}


def test_another_order_is_told_apart_from_another_variable():
    first = "def f(load):\n    a = load()\n    b = load()\n    return a - b * 2\n"
    found = compare_sources(place(first, "return", "f"), place(first.replace("a - b", "b - b"), "return", "f"))
    assert [(change.before, change.after) for change in found.changes] == [("a", "b")]


def test_functions_of_other_names_in_other_files_are_compared():
    other = ATTENTION.replace("class Attention", "class Other").replace("def forward", "def run").replace("p=0.1", "p=0.3")
    found = compare_sources(place(ATTENTION, "self.drop"), place(other, "self.drop", "Other.run", "other.py"))
    assert [function.name for function in found.functions] == ["Attention.forward", "Other.run"]
    assert [change.after for change in found.changes] == ["p=0.3"]


def test_functions_that_share_little_say_so():
    first = "def f(a, b):\n    return a + b\n"
    second = "class M:\n    def g(self, batch):\n        for x in batch.items():\n            self.see(x, deep=True)\n        print(self)\n"
    found = compare_sources(place(first, "return", "f"), place(second, "print", "M.g"))
    assert "little in common" in found.notes[0]


@pytest.mark.parametrize(
    ("needle", "name"),
    [("z * scale", "Attention.forward.inner"), ("torch.relu(row)", "Attention.forward"), ("one.sum()", "Attention.forward"),
     ("torch.no_grad()", MODULE), ("class Attention", MODULE), ("q = self.q(x)", "Attention.forward")],
)  # fmt: skip
def test_the_innermost_definition_is_the_function(needle, name):
    found = enclosing.enclosing(place(ATTENTION, needle, ""))
    assert found.function.name == name
    if name.startswith("Attention.forward") and not name.endswith("inner"):
        assert ATTENTION.splitlines()[found.function.first - 1] == "    @torch.no_grad()"


def test_a_function_known_by_name_only_is_found_where_it_is_defined_last():
    text = "if x:\n    def f():\n        return 1\nelse:\n    def f():\n        return 2\n"
    only = enclosing.Place(text, "a.py", 0, 0, 0, 0, "f")
    assert enclosing.enclosing(only).function.first == 5
    assert enclosing.enclosing(enclosing.Place(text, "a.py", 0, 0, 0, 0, "g")) is None


def test_the_mark_counts_characters():
    text = 'def f(x):\n    name = "größe"; return x.relu()\n'
    found = enclosing.enclosing(place(text, "x.relu()", "f"))
    line, start, _, end = found.function.mark
    assert text.splitlines()[line - 1][start:end] == "x.relu()"


def test_code_outside_of_functions_is_compared_as_a_whole():
    text = "import torch\nlr = 0.1\nfor step in range(3):\n    loss = step * lr\n    print(loss)\n"
    found = compare_sources(place(text, "print", MODULE), place(text.replace("loss", "total").replace("0.1", "0.2"), "print", MODULE))
    assert [(change.kind.value, change.after) for change in found.changes] == [("renamed", "total"), ("expression", "0.2")]


@pytest.mark.parametrize("broken", ["    retrn x x", "    return (", "    return x\x00"], ids=["words", "bracket", "nul"])
def test_a_text_that_does_not_parse_is_compared_by_lines(broken):
    first = "def f(x):\n    # c\n    y = x\n    return x\n"
    second = f"def f(x):\n    y = x\n{broken}\n"
    found = compare_sources(place(first, "return", "f"), place(second, broken.strip(), "f"))
    assert found.method == "lines"
    assert "suspect: the text does not parse here" in found.notes[0]
    (change,) = found.changes
    assert (change.kind, change.before, change.reference) == (Kind.LINE, "return x", (4, 4))
    assert not found.same


def test_a_text_that_nobody_has_is_compared_with_nothing():
    found = compare_sources(None, place(ATTENTION, "self.drop"))
    assert (found.method, found.changes, found.same) == ("none", (), False)
    assert found.functions[0] is None
    assert "source of the reference is not there" in found.notes[0]


def test_what_is_nested_too_deeply_never_reaches_the_parser_that_has_no_limit(monkeypatch):
    monkeypatch.setattr(tree, "read", lambda *_, **__: pytest.fail("read"))
    text = f"def f(x):\n    return {'-' * 3_000}x\n"
    found = compare_sources(place(text, "return", "f"), place(text.replace("x\n", "x + 1\n"), "return", "f"))
    assert found.method == "lines"
    assert "nested too deeply" in found.notes[0] or "does not parse" in found.notes[0]


def test_a_huge_function_is_compared_by_lines_around_the_place():
    rows = "".join(f"    x = x + {number}\n" for number in range(6_000))
    text = f"def f(x):\n{rows}    return x\n"
    changed = text.replace("x + 5990\n", "x + 1\n").replace("x + 3\n", "x + 4\n")
    found = compare_sources(place(text, "return", "f"), place(changed, "return", "f"))
    assert found.method == "lines"
    assert [change.before for change in found.changes] == ["x = x + 5990"]
    assert any("Only" in note for note in found.notes)


def test_too_many_nodes_are_compared_by_lines(monkeypatch):
    monkeypatch.setattr(tree, "MAX_NODES", 20)
    found = compared(ATTENTION, ATTENTION.replace("0.125", "0.25"))
    assert found.method == "lines"
    assert "too large" in found.notes[0]
    assert len(found.changes) == 1
