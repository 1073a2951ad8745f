"""Make variants of cases, prove each neutral, judge it, and say what moved."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from opguard_core.ids import SIDES
from tests.variants.edits import EDITS
from tests.variants.program import Inapplicable, Program
from tests.variants.runs import Expected, Runner, Shown
from tests.variants.truth import Answer, Edited, mapped_case, moved

TRIES = 5  # to find a neutral variant of a kind
RUNS, RUNS_OF_A_RACE = 2, 6  # of a program as it is
SAME, MOVED, REFUSED, NOT_NEUTRAL, NONE = "same", "moved", "refused", "not neutral", "no place"


@dataclass
class Case:
    """One pair of programs, as it was: what both sides do, their traces, and the answer.

    Attributes:
        slug: Its name.
        facts: Its case.json.
        folder: Holds `reference` and `suspect`, not to be written to.
        traces: Trace of each side.
        shown: What each side shows whenever it runs without observation.
        answer: The answer over the pair.
        judge: The cases' own judge, or None.
    """

    slug: str
    facts: dict[str, Any]
    folder: Path
    traces: dict[str, Path] = field(default_factory=dict)
    shown: dict[str, Expected] = field(default_factory=dict)
    answer: Answer = field(default_factory=dict)
    judge: Callable[[dict[str, Any], Answer], tuple[str, str]] | None = None

    @property
    def varies(self) -> bool:
        """Whether it is a real race."""
        return bool(self.facts["expected"].get("varies"))


@dataclass(frozen=True)
class Outcome:
    """What came of one variant.

    Attributes:
        slug: The case.
        kind: The edit.
        sides: The edited sides.
        seed: Makes the same variant again.
        mark: One of `SAME`, `MOVED`, `REFUSED`, `NOT_NEUTRAL`, `NONE`.
        what: For humans.
        true: Whether the place is a true one all the same, by the case's own judge; None if that was not asked.
    """

    slug: str
    kind: str
    sides: tuple[str, ...]
    seed: int
    mark: str
    what: str = ""
    true: bool | None = None


def read_cases(folder: Path, only: Sequence[str] = ()) -> list[Case]:
    """The cases of a folder."""
    spec = importlib.util.spec_from_file_location("variants_case_check", folder / "check.py")
    assert spec is not None and spec.loader is not None
    check = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check)
    facts = [json.loads(path.read_text()) for path in sorted(folder.glob("*/case.json"))]
    return [Case(fact["slug"], fact, folder / fact["slug"], judge=check.judge) for fact in facts if not only or fact["slug"] in only]


def prepare(case: Case, runner: Runner, work: Path) -> None:
    """Run both sides as they are, bare and observed, and judge them; fills in the case."""
    work.mkdir(parents=True)
    for side in SIDES:
        copy = work / side
        shutil.copytree(case.folder / side, copy, ignore=shutil.ignore_patterns("__pycache__"))
        case.shown[side] = Expected.of([_bare(runner, copy, case) for _ in range(RUNS_OF_A_RACE if case.varies else RUNS)])
        if set(case.shown[side].ended) != {0}:
            raise RuntimeError(f"{case.slug}: {side} ended with {case.shown[side].ended}")
        case.traces[side] = work / f"{side}-trace"
        _observe(runner, copy, case, case.traces[side])
    case.answer = runner.judge(case.traces["reference"], case.traces["suspect"])


def _bare(runner: Runner, folder: Path, case: Case) -> Shown:
    """Run in a copy: a program may leave files behind that its next run finds."""
    copy = folder.with_name(folder.name + "-bare")
    shutil.copytree(folder, copy)
    try:
        return runner.bare(copy, case.facts)
    finally:
        shutil.rmtree(copy)


def _observe(runner: Runner, folder: Path, case: Case, trace: Path) -> None:
    codes = runner.observed(folder, case.facts, trace)
    if set(codes) != {0}:
        raise RuntimeError(f"{case.slug}: {folder} ran bare and ended with {codes} when it was observed")


def variants(case: Case, runner: Runner, work: Path, kinds: Sequence[str], wanted: int, seed: int) -> Iterator[Outcome]:
    """Neutral variants of one case, each of the next kind, each edited on one side or both; what was not neutral comes as well.

    Args:
        case: Prepared.
        runner: Runs programs.
        work: Folder for copies and traces; they are removed.
        kinds: Names of edits, in turn.
        wanted: Number of variants that are neutral; fewer if the kinds run out before.
        seed: Of everything that is chosen.
    """
    judged = 0
    for number, kind in enumerate(kinds):
        if judged == wanted:
            return
        places = 0
        for attempt in range(TRIES):
            drawn = seed * 1_000_003 + number * 101 + attempt
            rng = np.random.default_rng([drawn, *case.slug.encode()])
            sides = (("suspect",), ("reference",), SIDES)[int(rng.choice(3, p=(0.5, 0.25, 0.25)))]
            folder = work / f"{number}-{attempt}"
            try:
                outcome = variant(case, runner, folder, kind, tuple(sides), rng, drawn)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            yield outcome
            if outcome.mark not in (NOT_NEUTRAL, NONE):
                judged += 1
                break
            places += outcome.mark == NONE
            if places == 2:  # neither side, or nearly so
                break


def variant(case: Case, runner: Runner, folder: Path, kind: str, sides: tuple[str, ...], rng: np.random.Generator, seed: int) -> Outcome:
    """Make one variant, prove it neutral, judge it."""
    edited: dict[str, Edited] = {}
    for side in sides:
        program = Program.read(case.folder / side, case.facts["launch"])
        before = program.written()[1]
        try:
            EDITS[kind](program, rng)
        except Inapplicable as why:
            return Outcome(case.slug, kind, sides, seed, NONE, str(why))
        after = program.write(case.folder / side, folder / side)
        edited[side] = Edited(before, after, program)
        shown = _bare(runner, folder / side, case)
        if not case.shown[side].matches(shown, longer=program.steps_added):
            return Outcome(case.slug, kind, sides, seed, NOT_NEUTRAL, f"{side} ended with {shown.ended}")
    traces = dict(case.traces)
    for side in sides:
        traces[side] = folder / f"{side}-trace"
        _observe(runner, folder / side, case, traces[side])
    answer = runner.judge(traces["reference"], traces["suspect"])
    return _outcome(case, kind, sides, seed, answer, edited)


def _outcome(case: Case, kind: str, sides: tuple[str, ...], seed: int, answer: Answer, edited: dict[str, Edited]) -> Outcome:
    faults = moved(case.answer, answer, edited)
    true = None if case.judge is None else case.judge(mapped_case(case.facts, edited), answer)[0] in ("right", "near")
    if case.varies and answer["verdict"] == "diverged" and true:
        faults = []  # a race shows now here, now there
    if not faults:
        return Outcome(case.slug, kind, sides, seed, SAME, true=true)
    mark = REFUSED if answer["verdict"] == "inconclusive" else MOVED
    return Outcome(case.slug, kind, sides, seed, mark, "; ".join(faults), true)


def table(outcomes: Sequence[Outcome]) -> str:
    """Kinds against marks, in Markdown."""
    marks = (SAME, MOVED, REFUSED, NOT_NEUTRAL)
    rows = [f"| kind | {' | '.join(marks)} |", "|---|" + "---|" * len(marks)]
    for kind in [*EDITS, ""]:
        mine = [outcome for outcome in outcomes if not kind or outcome.kind == kind]
        counts = [sum(outcome.mark == mark for outcome in mine) for mark in marks]
        if any(counts):
            rows.append(f"| {kind or '**all**'} | {' | '.join(map(str, counts))} |")
    return "\n".join(rows)
