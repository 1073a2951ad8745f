"""Faults inside kernels that torch's dispatcher never sees, through the command people use: each found at its kernel, with its name.

    python3 -m tests.gpu.outside [--device cpu | --dry-run] [--only SLUG ...] [--modes verify ...] [--out FILE]

One row for each program of `programs_outside` and mode. On a card the kernels of both sides have to be in the answer. Without one
(`--device cpu`) Triton's interpreter and the extension's own loop stand for the kernels; ``--dry-run`` only says what would run.
Exit code 0 only if all rows are right.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.gpu import must_find
from tests.gpu.rows import Rows, where

PROGRAMS = Path(__file__).parent / "programs_outside"
COLUMNS = ("program", "mode", "found", "engine", "seconds", "right")


def faults_of(case: Mapping[str, Any], mode: str, device: str, answer: Mapping[str, Any]) -> tuple[list[str], str]:
    """What is wrong with an answer, and what it says in short."""
    truth = must_find.wanted(dict(case), mode, device)
    found, said = must_find.judge(truth, answer)
    return [*found, *(_kernels(truth, answer) if device != "cpu" else [])], said


def _kernels(truth: Mapping[str, Any], answer: Mapping[str, Any]) -> Iterator[str]:
    """On a card the answer names the kernels that both sides launched in the differing call."""
    kernels = (answer.get("pivot") or {}).get("kernels") or {}
    for side in ("reference", "suspect"):
        if truth["kernels"] not in str(kernels.get(side, kernels)):
            yield f"the {side}'s kernels do not name {truth['kernels']}: {kernels}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="SLUG")
    parser.add_argument("--modes", nargs="+", default=[])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--engine", default="")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--timeout", type=float, default=300.0, help="Seconds a side may run; the extension is compiled in it.")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--out", type=Path, help="Rows are appended to this file.")
    options = parser.parse_args()
    rows, right = Rows(options.out), True
    if options.dry_run:
        for case in must_find.cases(options.only, PROGRAMS):
            rows.line(f"{case['slug']}: {case['summary']} Modes {', '.join(case['modes'])}.")
        return 0
    rows.head("Outside the dispatcher", where(options.device), COLUMNS)
    for case in must_find.cases(options.only, PROGRAMS):
        for mode in [one for one in case["modes"] if not options.modes or one in options.modes]:
            begun = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="opguard-outside-") as scratch:
                answer = must_find.compared(case, mode, options, Path(scratch), PROGRAMS)
                engine = must_find.engines(Path(scratch))
            if answer.get("error") or answer.get("verdict") is None:
                found, said = [str(answer.get("error"))], "ERROR"
            else:
                found, said = faults_of(case, mode, options.device, answer)
            rows.row(
                (case["slug"], mode, said, engine, f"{time.monotonic() - begun:.1f}", "yes" if not found else f"NO: {'; '.join(found)}")
            )
            right &= not found
    rows.line(f"\n{'All are right.' if right else 'NOT all are right.'}")
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
