"""What each idea of the aligner is worth: the stored pairs of the cases, judged with one idea taken away at a time.

    python -m tests.benchmarks.ablations --traces DIR DIR [--sums DIR] [--only NAME ...]

A pair counts against the answer that all rules give, which the cases' own checker finds right. Nothing in the product knows of
this: what a variant takes away is taken out of the loaded columns, or replaced in the aligner's module for the time of one
comparison. One variant needs other traces: a sum instead of a digest is captured anew, into the folder `--sums`.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opguard_core.trace.reader import Run
from tests.benchmarks.report import machine, table
from tests.benchmarks.taken_away import VARIANTS, Variant
from tests.faults.injection.truth import Events, answer
from tests.support.judge_cases import CASES, load_judge

HELD = Path(__file__).resolve().parents[1] / "cases"
EXACT, CONSUMER, LATE, MISSED, FALSE_ALARM, REFUSED, QUIET = (
    "exact", "first consumer", "late", "missed", "false alarm", "refused", "rightly quiet",
)  # fmt: skip
COLUMNS = (EXACT, CONSUMER, LATE, MISSED, FALSE_ALARM, REFUSED, QUIET)


@dataclass(frozen=True)
class Stored:
    """One case with its traces.

    Attributes:
        case: Its `case.json`.
        folder: Where its two programs lie.
        reference, suspect: Its traces.
        judge: The checker's judgement of an answer.
    """

    case: dict[str, Any]
    folder: Path
    reference: Path
    suspect: Path
    judge: Any

    @property
    def has_bug(self) -> bool:
        return self.case["expected"].get("divergence") != "none"


def stored(traces: Path, cases: Path) -> Iterator[Stored]:
    """The cases of a folder whose traces are stored."""
    judge = load_judge(cases)
    for path in sorted(cases.glob("*/case.json")):
        case = json.loads(path.read_text())
        sides = [traces / case["slug"] / side for side in ("reference", "suspect")]
        if all((side / "manifest.json").exists() for side in sides):
            yield Stored(case, path.parent, *sides, judge)


def mark(pair: Stored, right: dict[str, Any], given: dict[str, Any]) -> str:
    """Mark an answer against the one that all rules give."""
    if given["verdict"] == "inconclusive":
        return QUIET if right["verdict"] == "inconclusive" else REFUSED
    if not pair.has_bug:
        return QUIET if given["verdict"] == "identical" else FALSE_ALARM
    if given["verdict"] == "identical":
        return MISSED
    here, there = right["pivot"], given["pivot"]
    if here["rank"] == there["rank"] and any(here["seq"][side] == there["seq"][side] is not None for side in ("reference", "suspect")):
        return EXACT
    if pair.judge(pair.case, {**given, "seconds": {}})[0] == "right":
        return EXACT
    side = next((side for side in ("suspect", "reference") if here["seq"][side] is not None and there["seq"][side] is not None), None)
    if here["rank"] != there["rank"] or side is None:
        return FALSE_ALARM
    if there["seq"][side] < here["seq"][side]:
        return FALSE_ALARM
    return CONSUMER if there["seq"][side] in _readers(getattr(pair, side), here["rank"], here["seq"][side]) else LATE


def _readers(trace: Path, rank: int, seq: int) -> set[int]:
    """Events that read what an event wrote."""
    events = Events(Run.open(trace).ranks[rank])
    event = events.by_seq[seq]
    window = event.window
    return {
        reader
        for row in event.rows(written=True)
        for reader in events.readers(int(window.storage[row]), int(window.lo[row]), int(window.hi[row]), seq)
    }


def measure(pairs: list[Stored], variant: Variant, rights: dict[str, dict[str, Any]]) -> Counter[str]:
    """Judge all pairs under one variant."""
    marks: Counter[str] = Counter()
    for pair in pairs:
        with variant.applied(pair.reference, pair.suspect):
            given = answer(pair.reference, pair.suspect)
        found = mark(pair, rights[pair.case["slug"]], given)
        marks[found] += 1
        if found not in (EXACT, QUIET):
            pivot = given["pivot"]
            said = f"{pivot['operator']} {pivot['seq']}" if pivot else ",".join(reason["slug"] for reason in given["reasons"])
            print(f"    {variant.name}: {found} {pair.case['slug']} {said}", flush=True)
    return marks


def rows(found: dict[str, Counter[str]]) -> str:
    """The table."""
    return table(
        ("taken away", "pairs", *COLUMNS), [(name, sum(marks.values()), *(marks[one] for one in COLUMNS)) for name, marks in found.items()]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--traces", type=Path, nargs=2, required=True, help="traces of the shared cases and of tests/cases; captured there when missing"
    )
    parser.add_argument("--sums", type=Path, help="folder of traces with a sum instead of a digest; captured there when missing")
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args()
    from tests.benchmarks.capture_cases import capture, sums  # imports torch

    places = list(zip(args.traces, (CASES, HELD), strict=True))
    for folder, cases in places:
        capture(cases, folder)
    pairs = [pair for folder, cases in places for pair in stored(folder, cases)]
    rights = {pair.case["slug"]: answer(pair.reference, pair.suspect) for pair in pairs}
    found = {"nothing": Counter(mark(pair, rights[pair.case["slug"]], rights[pair.case["slug"]]) for pair in pairs)}
    wrong = [pair.case["slug"] for pair in pairs if pair.judge(pair.case, {**rights[pair.case["slug"]], "seconds": {}})[0] != "right"]
    print(f"{len(pairs)} pairs; with all rules not right: {wrong or 'none'}")
    for variant in VARIANTS:
        if not args.only or variant.name in args.only:
            found[variant.name] = measure(pairs, variant, rights)
    if args.sums is not None:
        summed = []
        for number, (_, cases) in enumerate(places):
            capture(cases, args.sums / str(number), prepare=sums)
            summed += list(stored(args.sums / str(number), cases))
        # Events are counted as in a run of its own, so its own pivot under all rules is no yardstick: the checker is.
        found["a sum instead of a digest"] = Counter(_checked(pair) for pair in summed)
    print(f"\n{machine()}\n\n{rows(found)}")


def _checked(pair: Stored) -> str:
    """Mark an answer by the checker alone: traces of another capture have other events."""
    given = answer(pair.reference, pair.suspect)
    judged = pair.judge(pair.case, {**given, "seconds": {}})[0]
    if judged == "right":
        return EXACT if pair.has_bug else QUIET
    if given["verdict"] == "inconclusive":
        return REFUSED
    if given["verdict"] == "identical":
        return MISSED
    print(f"    a sum: {pair.case['slug']} {given['pivot']['operator']} {given['pivot']['suspect']}", flush=True)
    return LATE if pair.has_bug else FALSE_ALARM


if __name__ == "__main__":
    main()
