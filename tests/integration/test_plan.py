"""Plans on real programs: a preflight of two endless trainings, and what the plan is worth afterwards."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from opguard_core.plan.document import load_plan
from opguard_harness.__main__ import main
from opguard_harness.answer.schema import compare_schema
from opguard_harness.answer.validate import faults
from tests.support.calls import answer_schema, finished
from tests.support.fake_training import REPOSITORY
from tests.support.family import family_of

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

PAIR = REPOSITORY / "examples" / "tiny_gpt"
REFACTORED = REPOSITORY / "tests" / "support" / "refactored"
ENDLESS = 1_000_000_000


def environment(place):
    ours = {"OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(place / "state"), "XDG_CACHE_HOME": str(place / "cache")}
    return {**os.environ, **ours}


def shell(place, *words, code=0):
    command = [sys.executable, "-m", "opguard_harness", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(place), cwd=REPOSITORY, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def call(place, tool, code=0, **arguments):
    result = json.loads(shell(place, "call", tool, json.dumps(arguments), code=code))
    if code == 0:
        assert faults(result, answer_schema(tool)) == []
    return result


def job(place, tool, **arguments):
    return finished(partial(call, place), tool, **arguments)


def compare(place, *words, code):
    answer = json.loads(shell(place, "compare", "--json", "--python", sys.executable, *words, code=code))
    assert faults(answer, compare_schema()) == []
    return answer


def copy_of(source, target, **constants):
    """A copy of a program, with other numbers in it."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    for old, new in constants.values():
        train = target / "train.py"
        assert old in train.read_text()
        train.write_text(train.read_text().replace(old, new))
    return target


def snapshot(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def looked(tmp_path_factory):
    """One preflight of two trainings that never end, with a plan."""
    place = tmp_path_factory.mktemp("plan")
    reference = copy_of(PAIR / "reference", place / "reference", steps=("STEPS = 6", f"STEPS = {ENDLESS}"))
    suspect = copy_of(PAIR / "suspect", place / "suspect", steps=('"steps": 6', f'"steps": {ENDLESS}'))
    before = snapshot(reference), snapshot(suspect)
    words = ["--reference", reference, "--suspect", suspect, "--python", sys.executable, "--mode", "verify", "--plan", place / "plan.json"]
    found = json.loads(shell(place, "preflight", "--json", "--planned-steps", 100, *words))
    assert (snapshot(reference), snapshot(suspect)) == before
    return place, found


def test_both_endless_trainings_are_ended_after_the_steps_asked_for(looked):
    place, found = looked
    for side in found["sides"].values():
        assert (side["how"], side["exit"], side["steps"]) == ("ended", None, 3)
    assert list((place / "cache" / "opguard" / "scratch").iterdir()) == []


def test_it_says_what_is_shared_and_what_each_side_has_alone(looked):
    _, found = looked
    assert found["common"]["share"]["reference"] > 0.95
    assert found["common"]["boundaries_per_step"] > 300
    lonely = {example["text"] for example in found["alone"]["suspect"]["examples"]}
    assert any("norm()" in text for text in lonely), lonely
    assert found["contract"] == [item for item in found["contract"] if item["severity"] != "arithmetic"]
    assert not [text for text in found["warnings"] if "arithmetic" in text]


def test_it_says_what_observing_costs(looked):
    _, found = looked
    for side in ("reference", "suspect"):
        cost = found["cost"][side]
        assert cost["step_s"] > 0
        assert cost["modes"]["verify"]["measured"] is True
        added = [cost["modes"][mode]["added_s"] for mode in ("verify", "full", "trusted", "sentinel")]
        assert added == sorted(added, reverse=True)
        assert cost["step_bytes"] > 1000
    disk = found["cost"]["disk"]
    assert disk["needed_bytes"] == disk["start_bytes"] + 100 * disk["step_bytes"]
    assert found["cost"]["fits"] is True


def test_the_plan_is_the_one_it_tells_of(looked):
    place, found = looked
    plan = load_plan(place / "plan.json")
    assert (plan.hash, len(plan.sites), plan.mode, plan.steps) == (found["plan"]["hash"], found["plan"]["sites"], "verify", None)
    assert any(site.other is not None for site in plan.sites)


def test_an_option_that_contradicts_the_plan_is_refused_before_anything_runs(looked, tmp_path):
    place, _ = looked
    words = ["--reference", place / "reference", "--suspect", place / "suspect", "--plan", place / "plan.json", "--out", tmp_path / "out"]
    for options, said in ((["--mode", "full"], "mode verify, not full"), (["--steps", "1:2"], "steps all, not 1:2")):
        error = json.loads(shell(place, "compare", "--json", *words, *options, code=2))["error"]
        assert error["slug"] == "conflicting-options"
        assert said in error["text"]
    assert not (tmp_path / "out").exists()


def test_a_plan_inside_a_side_is_refused(looked):
    place, _ = looked
    words = ["--reference", place / "reference", "--suspect", place / "suspect", "--plan", place / "suspect" / "p.json"]
    assert json.loads(shell(place, "preflight", "--json", *words, code=2))["error"]["slug"] == "out-refused"


@pytest.mark.full
def test_the_plan_works_unchanged_on_a_refactored_side(looked, tmp_path):
    place, found = looked
    reference = copy_of(PAIR / "reference", tmp_path / "reference")
    refactored = copy_of(REFACTORED, tmp_path / "refactored")
    words = ["--reference", reference, "--suspect", refactored, "--plan", place / "plan.json"]
    answer = compare(place, *words, code=1)
    assert answer["mode"] == "verify"
    assert (answer["verdict"], answer["pivot"]["origin"]) == ("diverged", "argument")
    told = answer["plan"]
    assert (told["hash"], told["sites"]) == (found["plan"]["hash"], found["plan"]["sites"])
    assert (told["reference"]["found"], told["reference"]["missing_total"]) == (told["sites"], 0)
    suspect = told["suspect"]
    assert suspect["found"] + suspect["moved"] + suspect["missing_total"] == told["sites"]
    assert (suspect["found"] + suspect["moved"]) / told["sites"] >= 0.95
    assert len(suspect["missing"]) == suspect["missing_total"]
    assert suspect["moved"] > 50, "it was refactored"
    manifests = [json.loads((Path(trace) / "manifest.json").read_text()) for trace in answer["trace"].values()]
    manifests += [json.loads((Path(trace) / "rank-00000" / "manifest.json").read_text()) for trace in answer["trace"].values()]
    assert {manifest["plan_hash"] for manifest in manifests} == {told["hash"]}


@pytest.mark.full
def test_a_guarded_run_under_another_plan_or_none_is_never_called_equal(looked, tmp_path, monkeypatch, capsys):
    """One program, four times: twice under one plan, once under another one, once under none."""
    place, _ = looked
    folder = copy_of(PAIR / "reference", tmp_path / "program", steps=("STEPS = 6", "STEPS = 2"))
    plan = load_plan(place / "plan.json")
    other = tmp_path / "other.json"
    dataclasses.replace(plan, sites=plan.sites[1:]).save(other)
    traces = {}
    for name, file in {"one": place / "plan.json", "again": place / "plan.json", "other": other, "none": None}.items():
        given = {"plan": str(file)} if file else {"mode": "verify"}
        result = job(tmp_path, "run_guarded", folder=str(folder), python=sys.executable, token=name, **given)
        assert (result["plan"] is None) == (file is None)
        traces[name] = result["trace"]
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def verdict(name, *options, code):
        assert main(["compare", "--json", "--reference", traces["one"], "--suspect", traces[name], *map(str, options)]) == code
        answer = json.loads(capsys.readouterr().out)
        return answer["verdict"], [reason["slug"] for reason in answer["reasons"]][:1]

    assert verdict("again", code=0)[0] == "identical"
    assert verdict("again", "--plan", place / "plan.json", code=0)[0] == "identical"
    assert verdict("again", "--plan", other, code=3) == ("inconclusive", ["plan-mismatch"])
    assert verdict("other", code=3) == ("inconclusive", ["plan-mismatch"])
    assert verdict("none", code=3) == ("inconclusive", ["plan-mismatch"])


@pytest.mark.full
def test_ranks_end_together_after_their_steps(tmp_path):
    program = tmp_path / "program"
    program.mkdir()
    (program / "train.py").write_text(
        "import itertools, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "torch.manual_seed(0)\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in itertools.count():\n"
        "    model(torch.full((2, 4), 1.0 + dist.get_rank())).pow(2).mean().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    words = ["--reference", program, "--suspect", program, "--python", sys.executable, "--steps", 2, "--json"]
    found = json.loads(shell(tmp_path, "preflight", *words, "--", "torchrun", "--nproc-per-node", "2", "train.py"))
    assert {side["how"] for side in found["sides"].values()} == {"ended"}
    assert found["common"]["share"] == {"reference": 1.0, "suspect": 1.0}
    assert family_of(tmp_path) == []


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found through /proc")
def test_an_interrupted_preflight_leaves_neither_files_nor_processes(tmp_path):
    program = copy_of(
        PAIR / "reference", tmp_path / "program", steps=("STEPS = 6", f"STEPS = {ENDLESS}"), optimizer=("optimizer.step()", "pass")
    )
    words = ["preflight", "--reference", program, "--suspect", program, "--python", sys.executable, "--plan", tmp_path / "p.json"]
    process = subprocess.Popen([sys.executable, "-m", "opguard_harness", *map(str, words)], env=environment(tmp_path), cwd=REPOSITORY)
    deadline = time.monotonic() + 100
    while not list((tmp_path / "cache").rglob("rank-00000")) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert family_of(tmp_path) == []
    assert list((tmp_path / "cache" / "opguard" / "scratch").iterdir()) == []
    assert not (tmp_path / "p.json").exists()
