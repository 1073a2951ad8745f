"""Measure everything that RESULTS.md states, with one command.

    python -m tests.benchmarks [--only SECTION ...] [--quick] [--no-write] [--scratch FOLDER]

Runs each section, prints its tables and whether its bounds hold, and puts the tables between the section's markers in
tests/benchmarks/RESULTS.md. Exit code 1 when a bound does not hold. Takes about ten minutes of one idle core, and
a minute with --quick.
"""

from __future__ import annotations

import os

# Before numpy and torch are imported: ratios are of one thread's work.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import importlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.report import RESULTS, Section, criteria_table, machine, replace_section

SECTIONS = ("capture", "align", "trace", "fingerprint", "matrix", "calls", "callsites", "server", "agent")


def quick_options(name: str) -> dict[str, Any]:
    """Sizes at which a section takes seconds: to see that it runs, not to quote."""
    if name == "capture":
        from tests.benchmarks.training import Shape

        return {"shape": Shape(1, 64, 64, 16, 2), "rounds": 1, "steps": 1, "widths": (64,)}
    if name == "matrix":
        from tests.benchmarks.matrix import TINY

        return {"shape": TINY, "steps": 3}
    options: dict[str, dict[str, Any]] = {
        "agent": {"runs": 2},
        "align": {"sizes": (500, 1_000), "layers": 2},
        "trace": {"steps": 3, "layers": 2, "repeat": 1},
        "fingerprint": {"mebibytes": 1, "many": 100},
        "calls": {"stored": 30, "rounds": 2},
        "callsites": {"rounds": 1, "turns": 10},
        "server": {"rounds": 1},
    }
    return options[name]


def run(name: str, folder: Path, progress: Callable[[str], None], *, quick: bool) -> Section:
    """Measure one section.

    Args:
        name: One of `SECTIONS`.
        folder: Scratch space.
        progress: Told what is being done.
        quick: At sizes that take seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    module = importlib.import_module(f"tests.benchmarks.{name}")
    section: Section = module.measure(folder, progress=progress, **(quick_options(name) if quick else {}))
    return section


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write.

    Returns:
        0 when every bound holds, else 1.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="tiny sizes; prints, never writes RESULTS.md")
    parser.add_argument("--no-write", action="store_true", help="print only")
    parser.add_argument("--scratch", type=Path, help="keep traces here and use those of an earlier call (align)")
    options = parser.parse_args(arguments)
    began = time.monotonic()

    def progress(text: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {text}", file=sys.stderr, flush=True)

    criteria = []
    with tempfile.TemporaryDirectory(prefix="opguard-bench-") as temporary:
        for name in options.only:
            section = run(name, (options.scratch or Path(temporary)) / name, progress, quick=options.quick)
            text = section.markdown(machine())
            print(f"## {name}\n\n{text}\n", flush=True)
            criteria += section.criteria
            if not (options.quick or options.no_write):
                RESULTS.write_text(replace_section(RESULTS.read_text("utf-8"), name, text), "utf-8")
    print(f"## all criteria\n\n{criteria_table(criteria)}")
    return 0 if all(criterion.holds for criterion in criteria) else 1


if __name__ == "__main__":
    sys.exit(main())
