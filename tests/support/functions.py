"""Made-up functions to edit: straight work on local variables with branches and loops, as lines that a test can move and rename."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from opguard_core.evidence.source import Place

CALLS = ("torch.relu", "self.drop", "F.gelu", "mix", "self.norm")


@dataclass(frozen=True)
class Statement:
    """``{target} = call({reads}, constant)``, maybe in a block of its own."""

    target: int
    call: str
    reads: tuple[int, ...]
    constant: int
    header: str = ""

    def lines(self, names: list[str], indent: str) -> list[str]:
        reads = ", ".join(names[read] for read in self.reads)
        line = f"{names[self.target]} = {self.call}({reads}, {self.constant})"
        if not self.header:
            return [f"{indent}{line}"]
        return [f"{indent}{self.header.format(names[self.reads[0]])}", f"{indent}    {line}"]


@dataclass(frozen=True)
class Made:
    """Statements; variable 0 is ``self`` and variables up to `num_parameters` are parameters."""

    statements: tuple[Statement, ...]
    num_parameters: int
    num_variables: int

    def names(self, prefix: str = "v") -> list[str]:
        return ["self", *(f"{prefix}{number}" for number in range(1, self.num_variables))]

    def text(self, names: list[str] | None = None, order: list[int] | None = None, *, plain: bool = True) -> str:
        names = names or self.names()
        rows = ["import torch", "", "class Model(torch.nn.Module):", f"    def forward({', '.join(names[: self.num_parameters + 1])}):"]
        for at in order if order is not None else range(len(self.statements)):
            rows += self.statements[at].lines(names, " " * 8)
            if not plain:
                rows += ["", f"        # step {at}"]
        rows.append(f"        return {', '.join(names[1:])}")
        text = "\n".join(rows) + "\n"
        return text if plain else text.replace(", ", ",  ").replace(" = ", "=")


@st.composite
def functions(draw: st.DrawFn) -> Made:
    """A function in which every variable is written once, so that statements can be told apart by what they write."""
    parameters = draw(st.integers(1, 3))
    count = draw(st.integers(3, 9))
    statements = []
    for at in range(count):
        known = 1 + parameters + at
        reads = tuple(draw(st.lists(st.integers(1, known - 1), min_size=1, max_size=3)))
        header = draw(st.sampled_from(["", "", "", "if {0}:", "with torch.no_grad():", "for _ in range(3):"]))
        statements.append(Statement(known, draw(st.sampled_from(CALLS)), reads, draw(st.integers(0, 9)), header))
    return Made(tuple(statements), parameters, 1 + parameters + count)


def place(text: str, needle: str = "return", function: str = "Model.forward", file: str = "model.py") -> Place:
    """The place of the last occurrence of some text."""
    lines = text.splitlines()
    line = max(number for number, row in enumerate(lines, 1) if needle in row)
    column = len(lines[line - 1][: lines[line - 1].index(needle)].encode())
    return Place(text, file, line, line, column, column + len(needle.encode()), function)
