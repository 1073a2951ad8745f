"""The short path of an agent on a real pair: `compare`, `get_job`, `first_difference`; and what else hangs on that job."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import anyio
import pytest

from opguard_harness.access.rules import Access
from opguard_harness.answer.validate import faults
from opguard_harness.config import runs_dir
from opguard_harness.invoke import invoke
from tests.support.calls import answer_schema, finished
from tests.support.fake_training import REPOSITORY
from tests.support.family import family_of

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

PAIR = REPOSITORY / "examples" / "tiny_gpt"
SHORT_PATH_CHARS = 12_000


def environment(place):
    ours = {"OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(place / "state"), "XDG_CACHE_HOME": str(place / "cache")}
    return {**os.environ, **ours}


def call(place, tool, **arguments):
    """One call in a process of its own, as an agent with a shell makes it."""
    command = [sys.executable, "-m", "opguard_harness", "call", tool, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(place), cwd=REPOSITORY, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert faults(result, answer_schema(tool)) == []
    return result


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("job")
    for side in ("reference", "suspect"):
        shutil.copytree(PAIR / side, place / side, ignore=shutil.ignore_patterns("__pycache__"))
    return place


@pytest.fixture(scope="module")
def given(place):
    return {"reference": str(place / "reference"), "suspect": str(place / "suspect"), "python": sys.executable, "mode": "verify"}


@pytest.fixture(scope="module")
def compared(place, given):
    return finished(partial(call, place), "compare", **given)


@pytest.fixture
def here(place, monkeypatch):
    """Calls in this process."""
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, environment(place)[name])
    return lambda tool, **arguments: anyio.run(partial(invoke, tool, arguments, Access()))


def test_three_calls_lead_to_the_planted_place(place, compared):
    following = compared["next"][0]
    assert (following["tool"], following["arguments"]) == ("first_difference", {"comparison": compared["job"]})
    found = call(place, following["tool"], **following["arguments"])
    assert found["verdict"] == compared["verdict"] == "diverged"
    assert "token_loss(model, batch) * share" in json.dumps(found)
    assert len(json.dumps(compared)) + len(json.dumps(found)) <= SHORT_PATH_CHARS


def test_the_comparison_is_small_and_speaks_of_itself(compared):
    assert compared["comparison"] == compared["job"]
    assert compared["summary"].startswith("diverged at step 3, forward, rank 0, after ")
    assert (compared["mode"], compared["reasons"], compared["contract"]["differences"] > 0) == ("verify", [], True)
    assert len(json.dumps(compared["result"])) < 2_000
    assert compared["evidence"][0]["id"] == f"job:{compared['job']}/answer"


def test_asking_again_starts_nothing_and_gives_the_same_in_this_process_too(compared, given, here):
    again = finished(here, "compare", **given)
    assert again["summary"].startswith(compared["summary"])
    assert {**again, "summary": compared["summary"]} == compared
    assert [path.name for path in runs_dir().iterdir()] == [compared["job"]]


def test_results_lie_under_the_id_of_the_job(compared, here):
    answer = json.loads((runs_dir() / compared["job"] / "answer.json").read_text())
    assert answer["trace"]["suspect"] == str(runs_dir() / compared["job"] / "suspect" / "trace")
    assert answer["prefix"]["pairs"] == compared["pairs"]


def test_the_contracts_of_the_job_are_told_with_what_they_mean(place, compared):
    found = call(place, "compare_contracts", comparison=compared["job"])
    assert sum(found["counts"].values()) == compared["contract"]["differences"]
    assert {item["key"] for item in found["settings"]} >= {"source.tree"}
    assert all(item["means"] for item in found["settings"])


def test_the_sides_of_a_stored_comparison_are_compared_again_by_their_traces(place, compared):
    sides = {side: str(place / "state" / "opguard" / "runs" / compared["job"] / side) for side in ("reference", "suspect")}
    aligned = finished(partial(call, place), "align", **sides)
    assert (aligned["verdict"], aligned["pairs"]) == (compared["verdict"], compared["pairs"])
    assert aligned["job"].startswith("align-")


@pytest.mark.full
def test_a_preflight_leads_through_its_plan_to_the_place(place, given):
    looked = finished(partial(call, place), "launch_preflight", **given, planned_steps=6)
    (following,) = looked["next"]
    found = finished(partial(call, place), following["tool"], **following["arguments"])
    assert (found["verdict"], found["mode"]) == ("diverged", "verify")
    assert len(json.dumps(looked["result"])) < 3_000


@pytest.mark.full
def test_two_runs_of_one_folder_lead_to_their_comparison(place):
    given = {"folder": str(place / "reference"), "python": sys.executable}
    first = finished(partial(call, place), "run_guarded", **given)
    assert first["next"][0]["tool"] == "list_runs"
    second = finished(partial(call, place), "run_guarded", **given, token="again")
    (following,) = second["next"]
    assert following["arguments"] == {"reference": first["run"], "suspect": second["run"]}
    assert finished(partial(call, place), following["tool"], **following["arguments"])["verdict"] == "identical"


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found through /proc")
def test_nothing_of_a_killed_shell_stays(tmp_path):
    endless = tmp_path / "reference"
    shutil.copytree(PAIR / "reference", endless)
    train = endless / "train.py"
    train.write_text(train.read_text().replace("STEPS = 6", "STEPS = 1_000_000_000"))
    words = ["compare", "--reference", endless, "--suspect", endless, "--python", sys.executable, "--out", tmp_path / "out"]
    process = subprocess.Popen([sys.executable, "-m", "opguard_harness", *map(str, words)], env=environment(tmp_path), cwd=REPOSITORY)
    try:
        wait_for(lambda: any(tmp_path.glob(".out.partial-*/reference/trace/rank-00000/events-*")))
        assert len(family_of(tmp_path)) >= 3
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    wait_for(lambda: not family_of(tmp_path))


@pytest.mark.full
def test_the_steps_of_a_job_are_told_and_planned_by_the_reference(place, here):
    from opguard_harness.compare.pipeline import compare
    from opguard_harness.compare.request import CaptureRequest, CompareRequest, SideRequest
    from opguard_harness.report.progress import Silent

    said = []

    class Told(Silent):
        def steps(self, phase, done, planned):
            said.append((phase, done, planned))

    sides = SideRequest(place / "reference"), SideRequest(place / "suspect")
    compare(CompareRequest(*sides, capture=CaptureRequest(mode="trusted", python=Path(sys.executable)), out=place / "told"), Told())
    assert ("reference", 6, None) in said
    assert ("suspect", 6, 6) in said
    assert said[-1] == ("comparing", None, None)


def wait_for(condition):
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
