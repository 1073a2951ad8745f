"""Stored work without any training: synthetic runs with a known fault in a state folder, and comparisons of them."""

from dataclasses import dataclass
from pathlib import Path

from opguard_harness.config import private_dir, runs_dir
from opguard_harness.interface.parsing import parse_arguments
from opguard_harness.registry import find
from opguard_harness.report.progress import Silent
from tests.support.synthetic import Corrupt, GptShape, Side, gpt, write_run


def _sites(program):
    """Every place of a program."""
    found = set()
    for instruction in (*program.prologue, *program.body, *program.epilogue):
        found |= {site for site in (instruction.site, instruction.library, *instruction.calls) if site is not None}
    return found


PROGRAM = gpt(GptShape(layers=1, steps=3))
FAULT = PROGRAM.find(1, operator="aten.gelu.default")[0]
BROKEN = Side(PROGRAM, [Corrupt(FAULT)])
LONG = {
    site: site._replace(file=f"{'deep/' * 30}{site.file}", function=f"{'Outer.' * 40}f", text=f"{'very_long_name(' * 200}x")
    for site in _sites(PROGRAM)
}
WIDE = Side(PROGRAM, renamed=LONG)
"""Long names everywhere."""
WIDE_BROKEN = Side(PROGRAM, [*(Corrupt(at) for at in PROGRAM.find(0, role="data")[:1]), Corrupt(FAULT)], renamed=LONG)


@dataclass(frozen=True)
class Planted:
    """Where the fault of ``BROKEN`` is, as an agent has to name it."""

    step: int = 1
    operator: str = "aten.gelu.default"
    file: str = PROGRAM[FAULT].site.file
    line: int = PROGRAM[FAULT].site.line


def write_side(folder: Path, side=PROGRAM, **options) -> Path:
    """A run that lies somewhere as its trace."""
    private_dir(folder)
    return write_run(folder / "trace", side, mode="verify", **options)


def store_run(name: str, side=PROGRAM, **options) -> str:
    """A run of the state folder; returns its id."""
    write_side(runs_dir() / name, side, **options)
    return name


class _InJob(Silent):
    def __init__(self, job):
        super().__init__()
        self.job = job


def store_comparison(name: str, reference: str, suspect: str) -> str:
    """A comparison of two stored runs, as a job of that id would have left it; returns the id."""
    tool = find("align")
    tool.run(parse_arguments(tool, {"reference": reference, "suspect": suspect}), _InJob(name))
    return name
