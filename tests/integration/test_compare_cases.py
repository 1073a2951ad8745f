"""The cases of ../shared/cases through the shell, each captured once; verdict, harmlessness and trace are read from that run.

Also run bare, in other copies, to see that a captured program prints, writes, draws and ends as it does alone. The variable
OPGUARD_CASES names another folder of cases.
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
from tests.support.harmless import OBSERVER, programs_own, read_reports

NAMED = os.environ.get("OPGUARD_CASES", "")
CASES = Path(NAMED or REPOSITORY.parent / "shared" / "cases").absolute()
SLUGS = sorted(path.parent.name for path in CASES.glob("*/case.json"))
NEVER = ("WRONG", "MISSED", "ERROR", "SCHEMA", "EXIT", "TOUCHED")
TRIES_OF_A_RACE = 3

pytestmark = [
    pytest.mark.torch,
    pytest.mark.full,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not SLUGS and not NAMED, reason=f"no cases lie in {CASES}; OPGUARD_CASES names their folder"),
]


@dataclass(frozen=True)
class Bare:
    """How a program ends, what it prints and leaves, and what its processes were like at exit, without us."""

    code: int
    stdout: str
    stderr: str
    files: dict[Path, bytes]
    reports: list[dict]


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


def reporting(folder):
    """Variables that have each Python process of a program write down what it was like at exit."""
    return {"PYTHONPATH": str(OBSERVER), "HARMLESS_REPORTS": str(folder)}


def run_once(case, folder):
    """Capture and judge a case in fresh copies below ``folder``."""
    for side in SIDES:
        shutil.copytree(CASES / case["slug"] / side, folder / side, ignore=shutil.ignore_patterns("__pycache__"))
    before = {side: snapshot(folder / side) for side in SIDES}
    sides = [word for side in SIDES for word in (f"--{side}", str(folder / side))]
    for side in SIDES:
        (folder / f"{side}-reports").mkdir()
        for name, value in reporting(folder / f"{side}-reports").items():
            sides += [f"--{side}-env", f"{name}={value}"]
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


def test_the_verdict_is_right(ran):
    """Of cases that nobody has looked at, less is asked: a place near the truth, or a refusal."""
    mark, found = checker().judge(ran.case, ran.answer)
    assert mark not in NEVER if NAMED else mark == "right", f"{mark}: {found}; reasons: {ran.answer['reasons']}"


def test_the_folder_of_the_environment_holds_cases():
    assert SLUGS, f"OPGUARD_CASES is {NAMED!r}, and no case lies there"


def test_both_programs_print_write_draw_and_end_as_they_do_alone(ran, tmp_path):
    for side in SIDES:
        alone = bare(ran, side, tmp_path / side)
        written = snapshot(ran.folder / side)
        if aborts(ran, alone.stderr) or aborts(ran, (ran.folder / "out" / side / "stderr.txt").read_text()):
            continue
        assert ran.answer["exit"][side] == alone.code
        assert written.keys() == alone.files.keys(), "a file more or less than without us"
        if ran.varies:
            continue
        printed, complained = ((ran.folder / "out" / side / name).read_text() for name in ("stdout.txt", "stderr.txt"))
        assert in_order(ran, printed) == in_order(ran, alone.stdout)
        here, there = str(ran.folder / side), str(tmp_path / side)
        assert in_order(ran, programs_own(complained.replace(here, "DIR"))) == in_order(
            ran, programs_own(alone.stderr.replace(there, "DIR"))
        )
        assert [path for path in written if written[path] != alone.files[path]] == []
        assert drawn(ran, read_reports(ran.folder / f"{side}-reports")) == drawn(ran, alone.reports)


def aborts(ran, stderr):
    """Gloo's threads abort about one run of several ranks in ten while the interpreter ends, bare as well (torch 2.13)."""
    return ran.case["launch"][0] == "torchrun" and ("SIGABRT" in stderr or "Signal 6" in stderr)


def drawn(ran, reports):
    """Where the random streams of each process stood at its exit; what starts ranks computes nothing and draws as it likes."""
    trains = [report for report in reports if ran.case["launch"][0] == "python" or report["rank"]]
    assert any("torch" in report for report in trains)
    return sorted(json.dumps([report["rank"], *(report.get(name) for name in ("random", "numpy", "torch"))]) for report in trains)


def bare(ran, side, folder):
    shutil.copytree(CASES / ran.case["slug"] / side, folder, ignore=shutil.ignore_patterns("__pycache__"))
    launch = [str(Path(sys.executable).with_name(word)) if number == 0 else word for number, word in enumerate(ran.case["launch"])]
    reports = folder.with_name(f"{side}-reports")
    reports.mkdir()
    variables = {**environment(), "PYTHONDONTWRITEBYTECODE": "1", **reporting(reports)}
    done = subprocess.run(launch, capture_output=True, text=True, cwd=folder, env=variables, stdin=subprocess.DEVNULL, check=False)
    return Bare(done.returncode, done.stdout, done.stderr, snapshot(folder), read_reports(reports))


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
        assert theirs["step"] == ours["step"]  # the phase is the suspect's own, which may be another than the reference's
        assert (theirs["reference"], theirs["suspect"]) == (ours["suspect"], ours["reference"])
