"""The shell on real programs: the shipped pair, every tool, and what the two folders look like afterwards."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from opguard_harness.answer.schema import compare_schema
from opguard_harness.answer.validate import faults
from opguard_harness.workspace.planted import find_pair
from tests.support.calls import answer_schema, finished
from tests.support.fake_training import REPOSITORY

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

PAIR = REPOSITORY / "examples" / "tiny_gpt"


def shell(state, *words, code=0, cwd=REPOSITORY, **variables):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(state), **variables}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # no byte code in the programs' folders must not depend on the caller
    command = [sys.executable, "-m", "opguard_harness", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def call(state, tool, code=0, **arguments):
    result = json.loads(shell(state, "call", tool, json.dumps(arguments), code=code))
    if code == 0:
        assert faults(result, answer_schema(tool)) == []
    return result


def job(state, tool, **arguments):
    return finished(partial(call, state), tool, **arguments)


def snapshot(folder):
    return {path.relative_to(folder): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """One comparison of copies of the shipped pair; several tests look at it."""
    place = tmp_path_factory.mktemp("shell")
    for side in ("reference", "suspect"):
        shutil.copytree(PAIR / side, place / side, ignore=shutil.ignore_patterns("__pycache__"))
    before = {side: snapshot(place / side) for side in ("reference", "suspect")}
    words = ["--reference", place / "reference", "--suspect", place / "suspect", "--python", sys.executable, "--mode", "verify"]
    text = shell(place / "state", "compare", "--json", *words, "--out", place / "out", code=1)
    return place, json.loads(text), before


def test_the_planted_difference_is_the_answer(compared):
    _, answer, _ = compared
    planted = find_pair("tiny_gpt").expected
    assert faults(answer, compare_schema()) == []
    assert (answer["verdict"], answer["pivot"]["step"], answer["pivot"]["origin"]) == ("diverged", planted["step"], "argument")
    assert answer["pivot"]["suspect"]["file"] == planted["file"]
    assert planted["text"] in answer["pivot"]["suspect"]["statement"]


def test_nothing_in_the_two_folders_is_new_or_changed_not_even_byte_code(compared):
    place, _, before = compared
    assert {side: snapshot(place / side) for side in before} == before


def test_the_programs_printed_what_they_print_without_us(compared):
    place, _, _ = compared
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    bare = subprocess.run(
        [sys.executable, "train.py"], capture_output=True, text=True, cwd=place / "reference", env=environment, check=True
    )
    assert (place / "out" / "reference" / "stdout.txt").read_text() == bare.stdout
    assert (place / "out" / "reference" / "stderr.txt").read_text() == bare.stderr


def test_first_difference_is_small_and_shows_both_sources(compared):
    place, answer, _ = compared
    result = call(place / "state", "first_difference", comparison=str(place / "out"))
    assert result["verdict"] == "diverged"
    assert "loss * share" in result["excerpts"]["reference"]
    assert "token_loss(model, batch) * share" in result["excerpts"]["suspect"]
    assert result["next"][0]["tool"] == "show_source"
    assert len(json.dumps(result)) <= 6_000
    again = call(place / "state", result["next"][0]["tool"], **result["next"][0]["arguments"])
    assert again["lines"] and ">" in again["text"]  # who called it: the lines of the pivot itself are in the excerpt
    assert f">{answer['pivot']['suspect']['line']} " in result["excerpts"]["suspect"]


def test_what_first_difference_cites_is_in_the_trace(compared):
    place, answer, _ = compared
    result = call(place / "state", "first_difference", comparison=str(place / "out"))
    cited = [call(place / "state", "get_evidence", id=entry["id"], comparison=str(place / "out")) for entry in result["evidence"]]
    boundaries = [entry["fact"] for entry in cited if entry["kind"] == "boundary"]
    assert [fact["operator"] for fact in boundaries] == [answer["pivot"]["operator"]] * 2
    assert [fact["seq"] for fact in boundaries] == [answer["pivot"]["seq"][side] for side in ("reference", "suspect")]


def test_the_source_shown_is_the_one_that_ran_not_the_one_on_disk(compared):
    place, _, before = compared
    (place / "reference" / "train.py").write_text("changed = True\n")
    try:
        result = call(place / "state", "show_source", run=str(place / "out" / "reference"), file="train.py", line=1)
    finally:
        (place / "reference" / "train.py").write_bytes(before["reference"][Path("train.py")])
    assert "Train the tiny GPT" in result["text"]


def test_a_trace_says_what_is_inside(compared):
    place, _, _ = compared
    page = shell(place / "state", "trace", place / "out" / "suspect")
    assert "mode verify, exit code 0" in page
    facts = json.loads(shell(place / "state", "trace", place / "out" / "suspect" / "trace", "--json"))
    assert facts["complete"] is True
    assert facts["per_rank"][0]["phases"]["optimizer"] > 0


def test_doctor_finds_this_python_ready(compared):
    place, _, _ = compared
    report = json.loads(shell(place / "state", "doctor", "--python", sys.executable, "--json"))
    assert report["ready"] is True
    assert {check["name"]: check["level"] for check in report["checks"]}["torch"] == "ok"


@pytest.mark.full
def test_the_demo_finds_its_difference_and_the_readme_shows_what_it_prints(tmp_path):
    printed = shell(tmp_path / "state", "demo", "--python", sys.executable).splitlines()
    tour = re.findall(r"^    (\w+ {2,}.*)$", (REPOSITORY / "README.md").read_text("utf-8"), re.MULTILINE)
    assert printed[:5] == tour[:5]
    assert printed[6].startswith("The planted difference was found: ")


@pytest.mark.full
def test_an_agent_gets_from_two_runs_to_the_source_by_following_next(tmp_path):
    state = tmp_path / "state"
    for side in ("reference", "suspect"):
        shutil.copytree(PAIR / side, tmp_path / side)
    common = {"python": sys.executable, "mode": "full"}
    preflight = job(
        state, "launch_preflight", reference=str(tmp_path / "reference"), suspect=str(tmp_path / "suspect"), python=sys.executable
    )
    assert preflight["common"]["boundaries_per_step"] > 0
    assert preflight["sides"]["reference"]["steps"] == 3
    runs = {side: job(state, "run_guarded", folder=str(tmp_path / side), **common) for side in ("reference", "suspect")}
    assert runs["reference"]["next"][0]["tool"] == "list_runs"  # the other side has not run yet
    aligned = job(state, "align", reference=runs["reference"]["run"], suspect=runs["suspect"]["run"])
    assert aligned["verdict"] == "diverged"
    following = aligned["next"][0]
    found = call(state, following["tool"], **following["arguments"])
    assert "token_loss(model, batch) * share" in found["excerpts"]["suspect"]
    listed = call(state, "list_runs")
    assert [row["kind"] for row in listed["runs"]] == ["compare", "run", "run", "preflight"]
    assert listed["next"][0]["arguments"] == following["arguments"]


@pytest.mark.full
def test_a_side_that_torchrun_starts_is_compared_rank_by_rank(tmp_path):
    program = tmp_path / "program"
    program.mkdir()
    (program / "train.py").write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "torch.manual_seed(0)\n"
        "model = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "data = torch.full((2, 4), 1.0 + dist.get_rank())\n"
        "for step in range(3):\n"
        "    loss = model(data).pow(2).mean() * float(os.environ.get('FACTOR', '1'))\n"
        "    loss.backward()\n"
        "    for parameter in model.parameters():\n"
        "        dist.all_reduce(parameter.grad)\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "dist.destroy_process_group()\n"
    )
    sides = ["--reference", program, "--suspect", program, "--python", sys.executable, "--mode", "verify", "--json"]
    argv = ["--", "torchrun", "--nproc-per-node", "2", "train.py"]
    same = json.loads(shell(tmp_path / "state", "compare", *sides, "--out", tmp_path / "same", *argv, code=0))
    assert same["verdict"] == "identical"
    assert [path.name for path in sorted((tmp_path / "same" / "suspect" / "trace").glob("rank-*"))] == ["rank-00000", "rank-00001"]
    other = json.loads(
        shell(tmp_path / "state", "compare", *sides, "--suspect-env", "FACTOR=2", "--out", tmp_path / "other", *argv, code=1)
    )
    assert other["pivot"]["origin"] == "argument"
    assert len(other["rank_firsts"]) == 2
