"""Agents by rule, which know only what they are told, reach a planted fault from a symptom, two folders and a command."""

import ast
import importlib.util
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from opguard_core.ids import SIDES
from opguard_harness.config import runs_dir
from tests.support.driving import agent as agents
from tests.support.driving.agent import CALLS, CHARACTERS, Agent, Fact, transcript
from tests.support.driving.transports import InMemory, Stdio
from tests.support.driving.world import BROKEN, PROGRAM, Planted, write_side
from tests.support.raw_server import REPOSITORY

CASES = REPOSITORY / "tests" / "cases"
VARIED = {
    "scheduler-per-microbatch": "",  # its command line has options
    "recompute-reads-latest-microbatch": "",  # a module, in a backward pass
    "rope-positions-low-precision": "open_case",
    "packed-mask-cache-stale": "open_case",
    "gan-fake-not-detached": "",
}
"""Five cases, each with the tool that the agent starts with; empty: the one that the instructions name."""


def told(root, command=("python", "train.py")):
    """What a person says."""
    return [
        Fact("the symptom: what goes wrong", "From some step on the losses are not those of the reference."),
        Fact("the side that is right, the reference", str(root / "reference")),
        Fact("the side in question, the suspect", str(root / "suspect")),
        Fact("the command line of the training", list(command)),
        Fact("the root folder of the programs", str(root)),
    ]


@pytest.fixture
def root(tmp_path):
    """Two sides that are stored traces, and so need no training."""
    for side, program in zip(SIDES, (PROGRAM, BROKEN), strict=True):
        write_side(tmp_path / "root" / side, program)
        (tmp_path / "root" / side / "train.py").write_text("raise SystemExit('a trace is read, not run')\n")
    return tmp_path / "root"


def within_budget(agent):
    assert len(agent.made) <= CALLS, transcript(agent)
    assert agent.characters <= CHARACTERS, transcript(agent)
    assert not [one for one in agent.made if one.failed], transcript(agent)


def test_the_agents_know_nothing_of_ours():
    tree = ast.parse(Path(agents.__file__).read_text("ascii"))
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported <= sys.stdlib_module_names
    with InMemory(REPOSITORY) as server:
        names = {tool["name"] for tool in server.tools()}
    constants = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert not names & constants


@pytest.mark.parametrize("start", ["", "open_case"], ids=["compare", "open_case"])
def test_an_agent_reaches_the_planted_place_and_what_it_cites_resolves(root, start):
    with InMemory(root) as server:
        agent = Agent(server, told(root), start)
        report = agent.investigate()
    within_budget(agent)
    planted = Planted()
    assert agent.start == (start or "compare")
    assert (report.verdict, report.step) == ("diverged", planted.step)
    assert {side: (place["file"], place["line"]) for side, place in report.places.items()} == dict.fromkeys(
        SIDES, (planted.file, planted.line)
    )
    assert len(report.evidence) >= 2, transcript(agent)


def test_an_agent_that_also_writes_down_what_it_found_ends_with_a_report(root):
    with InMemory(root) as server:
        agent = Agent(server, told(root), "open_case", reports=True)
        assert agent.investigate(calls=12).verdict == "diverged"
        reports = [one.value["uri"] for one in agent.made if "uri" in one.value]
        assert len(reports) == 1, transcript(agent)
        page = server.read(reports[0])
    assert not [one for one in agent.made if one.failed], transcript(agent)
    planted = Planted()
    assert planted.operator in page
    assert f"{planted.file}:{planted.line}" in page or f"{planted.file}, line {planted.line}" in page, page


def test_equal_sides_end_in_identical_and_in_no_place(root):
    shutil.rmtree(root / "suspect")
    write_side(root / "suspect", PROGRAM)
    with InMemory(root) as server:
        agent = Agent(server, told(root))
        report = agent.investigate()
    within_budget(agent)
    assert (report.verdict, report.places) == ("identical", {})


def test_without_next_the_agent_gets_nowhere(root):
    with InMemory(root) as server:
        agent = Agent(server, told(root))
        whole = server.call
        agent._call_tool = lambda *call: (lambda reply: replace(reply, value={**reply.value, "next": []}))(whole(*call))
        assert not agent.investigate().places


def checker():
    spec = importlib.util.spec_from_file_location("case_check", CASES / "check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.torch
@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("slug", VARIED)
def test_an_agent_finds_the_fault_of_a_real_training(slug, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    case = json.loads((CASES / slug / "case.json").read_text())
    for side in SIDES:
        shutil.copytree(CASES / slug / side, tmp_path / "root" / side, ignore=shutil.ignore_patterns("__pycache__"))
    with Stdio(tmp_path / "root", python=sys.executable) as server:
        agent = Agent(server, told(tmp_path / "root", case["launch"]), VARIED[slug])
        report = agent.investigate()
    within_budget(agent)
    comparison = next(one.value["comparison"] for one in agent.made if one.value.get("comparison"))
    mark, what = checker().judge(case, json.loads((runs_dir() / comparison / "answer.json").read_text()))
    assert mark == "right", what
    assert report.verdict == "diverged"
    expected = [case["expected"], *case["also_acceptable"]]
    assert any(
        checker().same_place({**report.places["suspect"], "end_line": report.places["suspect"]["line"]}, place) for place in expected
    )
    assert report.evidence, transcript(agent)
