"""Judges stored pairs of traces against what is known of their cases, in one process.

    python -m tests.support.judge_cases TRACES [--cases DIR] [--only SLUG …] [--mirror] [--verbose]

TRACES holds `<slug>/{reference,suspect}`; the cases folder holds `<slug>/case.json` and the `check.py` whose `judge` gives
the marks. `--mirror` also swaps the sides and says where the answer is not mirrored.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from pathlib import Path
from typing import Any

from opguard_core.certify.answer import to_dict
from opguard_core.certify.compare import compare
from opguard_core.errors import OpGuardError
from opguard_core.trace.reader import Run

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"


def load_judge(cases: Path) -> Any:
    """The `judge` function of the cases' own checker."""
    path = cases / "check.py"
    spec = importlib.util.spec_from_file_location("case_check", path if path.exists() else CASES / "check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.judge


def answer_of(reference: Path, suspect: Path) -> dict[str, Any]:
    """Certify one stored pair."""
    return {**to_dict(compare(Run.open(reference), Run.open(suspect))), "seconds": {}}


def mirrored(answer: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Where the answer over swapped sides is not the mirror of the first."""
    faults = [] if answer["verdict"] == other["verdict"] else [f"verdict {answer['verdict']} / {other['verdict']}"]
    here, there = answer["pivot"], other["pivot"]
    if here is not None and there is not None:
        faults += [key for key in ("origin", "rank", "origin_alternatives") if here[key] != there[key]]
        faults += [side for side, opposite in (("reference", "suspect"), ("suspect", "reference")) if here[side] != there[opposite]]
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--cases", type=Path, default=CASES)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--mirror", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    judge = load_judge(args.cases)
    marks: dict[str, int] = {}
    for path in sorted(args.cases.glob("*/case.json")):
        case = json.loads(path.read_text())
        sides = [args.traces / case["slug"] / side for side in ("reference", "suspect")]
        if (args.only and case["slug"] not in args.only) or not all((side / "manifest.json").exists() for side in sides):
            continue
        started = time.monotonic()
        try:
            answer = answer_of(*sides)
        except OpGuardError as error:
            print(f"ERROR           {case['slug']:34s} {error}", flush=True)
            marks["ERROR"] = marks.get("ERROR", 0) + 1
            continue
        seconds = time.monotonic() - started
        mark, what = judge(case, answer)
        marks[mark] = marks.get(mark, 0) + 1
        slugs = ",".join(reason["slug"] for reason in answer["reasons"])
        print(f"{mark:8s} {seconds:5.1f} s  {case['slug']:34s} {what} {slugs}", flush=True)
        if args.verbose:
            print(json.dumps({key: answer[key] for key in ("pivot", "isolated", "reasons", "compared", "prefix")}, indent=1)[:6000])
        if args.mirror:
            faults = mirrored(answer, answer_of(*reversed(sides)))
            if faults:
                print(f"         not mirrored: {', '.join(faults)}")
    print(" ".join(f"{mark} {count}" for mark, count in sorted(marks.items())))


if __name__ == "__main__":
    main()
