# ruff: noqa: E402  (torch may be missing)
"""`compare` of an uninterrupted training against one that was restored from our snapshot: identical over the common steps."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.full]

from tests.support.capturing import ROOT

PROGRAMS = ROOT / "tests" / "programs" / "resumed"


def run(work, *words):
    """One command of the harness; its answer and its standard error."""
    env = {**os.environ, "XDG_STATE_HOME": str(work / "state"), "XDG_CACHE_HOME": str(work / "cache"), "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = str(ROOT)
    command = [
        sys.executable,
        "-m",
        "opguard_harness",
        "compare",
        "--json",
        "--mode",
        "verify",
        "--python",
        sys.executable,
        *map(str, words),
    ]
    done = subprocess.run(command, env=env, cwd=work, capture_output=True, text=True, timeout=300, check=False)
    return json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("resumed")


@pytest.fixture(scope="module")
def resumed_at_once(work):
    """Answer and standard error of the first comparison; leaves a snapshot and the trace of the uninterrupted run."""
    words = ("--reference", PROGRAMS / "through.py", "--suspect", PROGRAMS / "inside.py", "--suspect-args", work / "at3.state")
    return run(work, *words, "--out", work / "once")


@pytest.mark.timeout(600)
def test_a_training_resumed_in_one_process_is_identical(resumed_at_once):
    answer, said = resumed_at_once
    assert answer["verdict"] == "identical", answer
    assert set(range(8)) <= set(answer["compared"]["steps"])
    assert answer["compared"]["paired_share"]["reference"] == 1.0
    assert "warning: contract" not in said


@pytest.mark.timeout(600)
def test_a_training_resumed_by_another_process_is_identical_over_the_common_steps(work, resumed_at_once):
    suspect = ("--suspect", PROGRAMS / "later.py", "--suspect-args", work / "at3.state")
    answer, said = run(work, "--reference", PROGRAMS / "through.py", *suspect, "--steps", "3:8", "--out", work / "later")
    assert answer["verdict"] == "identical", answer
    assert answer["compared"]["steps"] == [3, 4, 5, 6, 7]
    assert answer["compared"]["parameter_updates"] > 0
    assert "warning: contract" not in said


@pytest.mark.timeout(600)
def test_what_is_not_restored_is_found(work, resumed_at_once):
    folder = work / "broken"
    folder.mkdir()
    for path in PROGRAMS.glob("*.py"):
        (folder / path.name).write_text(path.read_text().replace('"scheduler": self.scheduler, ', ""))
    suspect = ("--suspect", folder / "inside.py", "--suspect-args", work / "without.state")
    answer, _ = run(work, "--reference", work / "once" / "reference" / "trace", *suspect, "--out", work / "broken-out")
    assert answer["verdict"] == "diverged", answer
    assert answer["pivot"]["step"] == 4, "the first update after a learning rate that starts anew"
    assert answer["pivot"]["origin"] == "argument"
