"""The cases of ../shared/cases through the shell, each captured once; verdict, harmlessness and trace are read from that run.

Also run bare, in other copies, to see that a captured program prints, writes and ends as it does alone.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from opguard_core.certify.answer import to_dict
from opguard_core.certify.compare import compare
from opguard_core.ids import SIDES
from opguard_core.trace.reader import Run
from opguard_harness.answer.schema import compare_schema
from opguard_harness.answer.validate import faults
from tests.support.fake_training import REPOSITORY

CASES = REPOSITORY.parent / "shared" / "cases"
SLUGS = sorted(path.parent.name for path in CASES.glob("*/case.json"))
NEVER = ("WRONG", "MISSED", "ERROR", "SCHEMA", "EXIT", "TOUCHED")
LEAST_RIGHT_SHARE = 21 / 24
TRIES_OF_A_RACE = 3

pytestmark = [
    pytest.mark.torch,
    pytest.mark.full,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not SLUGS, reason="the cases do not lie beside this checkout"),
]
marks: dict[str, tuple[str, str]] = {}


@dataclass(frozen=True)
class Bare:
    """How a program ends, and what it prints and leaves, without us."""

    code: int
    stdout: str
    files: dict[Path, bytes]


@dataclass(frozen=True)
class Ran:
    """One case, run once (a race: until it shows)."""

    case: dict
    folder: Path
    answer: dict
    code: int
    before: dict[str, dict[Path, bytes]]

    @property
    def varies(self):
        return bool(self.case["expected"].get("varies"))


def checker():
    spec = importlib.util.spec_from_file_location("case_check", CASES / "check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def snapshot(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def environment():
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    return variables


def run_once(case, folder):
    """Capture and judge a case in fresh copies below ``folder``."""
    for side in SIDES:
        shutil.copytree(CASES / case["slug"] / side, folder / side, ignore=shutil.ignore_patterns("__pycache__"))
    before = {side: snapshot(folder / side) for side in SIDES}
    sides = [word for side in SIDES for word in (f"--{side}", str(folder / side))]
    options = ["--mode", "verify", "--python", sys.executable, "--json", "--out", str(folder / "out"), "--timeout", "300"]
    command = [sys.executable, "-m", "opguard_harness", "compare", *sides, *options, "--", *case["launch"]]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=REPOSITORY, check=False)
    return Ran(case, folder, json.loads(done.stdout), done.returncode, before)


@pytest.fixture(scope="module", params=SLUGS)
def ran(request, tmp_path_factory):
    check = checker()
    case = json.loads((CASES / request.param / "case.json").read_text())
    lacking = check.missing(case, sys.executable)
    if lacking:
        pytest.skip(f"needs {', '.join(lacking)}")
    for attempt in range(TRIES_OF_A_RACE if case["expected"].get("varies") else 1):
        found = run_once(case, tmp_path_factory.mktemp(f"{request.param}-{attempt}"))
        if check.judge(case, found.answer)[0] != "MISSED":
            break
    yield found
    shutil.rmtree(found.folder, ignore_errors=True)


def test_the_answer_is_the_documented_object_and_the_exit_code_fits(ran):
    assert "error" not in ran.answer, ran.answer
    assert faults(ran.answer, compare_schema()) == []
    assert checker().faults_of(ran.answer) == []
    assert ran.code == {"identical": 0, "diverged": 1, "inconclusive": 3}[ran.answer["verdict"]]


def test_the_verdict_is_never_wrong(ran):
    mark, found = checker().judge(ran.case, ran.answer)
    marks[ran.case["slug"]] = (mark, found)
    assert mark not in NEVER, f"{mark}: {found}; reasons: {ran.answer['reasons']}"


def test_both_programs_print_write_and_end_as_they_do_alone(ran, tmp_path):
    for side in SIDES:
        alone = bare(ran, side, tmp_path / side)
        assert ran.answer["exit"][side] == alone.code
        assert snapshot(ran.folder / side).keys() == alone.files.keys(), "a file more or less than without us"
        if not ran.varies:
            printed = (ran.folder / "out" / side / "stdout.txt").read_text()
            assert in_order(ran, printed) == in_order(ran, alone.stdout)


def bare(ran, side, folder):
    shutil.copytree(CASES / ran.case["slug"] / side, folder, ignore=shutil.ignore_patterns("__pycache__"))
    launch = [str(Path(sys.executable).with_name(word)) if number == 0 else word for number, word in enumerate(ran.case["launch"])]
    variables = {**environment(), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(launch, capture_output=True, text=True, cwd=folder, env=variables, stdin=subprocess.DEVNULL, check=False)
    return Bare(done.returncode, done.stdout, snapshot(folder))


def in_order(ran, text):
    """Lines of several ranks come in any order."""
    lines = text.splitlines()
    return lines if ran.case["launch"][0] == "python" else sorted(lines)


def test_no_file_that_was_there_is_touched(ran):
    for side in SIDES:
        now = snapshot(ran.folder / side)
        assert {path: now.get(path) for path in ran.before[side]} == ran.before[side]


def test_the_traces_are_whole_and_judged_alike_from_the_other_side(ran):
    runs = {side: Run.open(ran.answer["trace"][side]) for side in SIDES}
    for run in runs.values():
        assert run.torn is None
        assert [rank.torn for rank in run.ranks.values()] == [None] * len(run.ranks)
    mirrored = to_dict(compare(runs["suspect"], runs["reference"]))
    assert mirrored["verdict"] == ran.answer["verdict"]
    if ran.answer["verdict"] == "diverged":
        ours, theirs = ran.answer["pivot"], mirrored["pivot"]
        assert (theirs["step"], theirs["phase"]) == (ours["step"], ours["phase"])
        assert (theirs["reference"], theirs["suspect"]) == (ours["suspect"], ours["reference"])


def test_enough_of_the_cases_are_right():
    if len(marks) < len(SLUGS):
        pytest.skip("not all cases were run")
    right = sum(mark == "right" for mark, _ in marks.values())
    assert right / len(marks) >= LEAST_RIGHT_SHARE, marks
