"""An agent that does everything wrong once, over a server that is killed in the middle, gets on by error texts alone."""

import contextlib
import os
import threading

import pytest

from opguard_core.ids import SIDES
from tests.support.driving.agent import Agent, Fact
from tests.support.driving.clumsy import Clumsy, Stuck, ids_in
from tests.support.driving.transports import InMemory, Stdio
from tests.support.driving.world import Planted
from tests.support.fake_training import fake_program, fake_python


@pytest.fixture
def gate(tmp_path):
    """A pipe that the suspect waits at, so that its job is in the middle for as long as a test likes."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    yield path
    with contextlib.suppress(OSError):  # nobody waits, unless the test failed before it let go
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    path.unlink()


@pytest.fixture
def root(tmp_path, gate):
    folder = tmp_path / "root"
    fake_program(folder / "reference")
    fake_program(folder / "suspect", corrupt=True, waits=str(gate))
    return folder


@pytest.fixture
def python(tmp_path):
    return str(fake_python(tmp_path))


def told(root):
    return [
        Fact("the symptom: what goes wrong", "The second step differs."),
        *(
            Fact(f"the side that is {word}, the {side}", str(root / side))
            for side, word in zip(SIDES, ("right", "in question"), strict=True)
        ),
        Fact("the command line of the training", ["python", "train.py"]),
    ]


def let_go(gate):
    """Open the gate; whoever comes to it later waits no more than whoever waits already."""
    opener = threading.Thread(target=gate.write_bytes, args=(b"",), daemon=True)
    opener.start()
    return opener


def report_of(value):
    pivot = value["pivot"]
    return pivot["step"], pivot["operator"], pivot["suspect"]["file"], pivot["suspect"]["line"]


@pytest.mark.timeout(240)
def test_it_recovers_from_error_texts_and_finds_the_same(root, python, gate):
    planted = Planted()
    server = Stdio(root, python)
    with server:
        agent = Clumsy(Agent(server, told(root)))
        started = agent.begin()
        assert {slip.value["error"]["slug"] for slip in agent.slips} == {"unknown-tool", "invalid-arguments"}
        job = started["job"]
        assert agent.begin()["job"] == job, "the same request twice is one job"
        early = agent.agent.call("first_difference", {"comparison": job})
        assert "error" in early, "there is no difference before both sides have run"
        assert (early["next"][0]["tool"], early["next"][0]["arguments"]["job"]) == ("get_job", job)
        server.kill()

    with Stdio(root, python) as server:
        agent = Clumsy(Agent(server, told(root)))  # knows nothing of the job any more
        known = agent.twice("list_run", {"limits": "100000", "cursor": "page 2"})
        assert job in set(ids_in(known))
        row = next(row for row in known["runs"] if row["id"] == job)
        assert row["state"] in ("queued", "running")
        assert agent.ask("tail_log", {"job": job, "lines": 10**9})["job"] == job
        waited = agent.ask("get_job", {"job_id": job, "wait_s": 0})
        assert waited["state"] in ("queued", "running")
        opener = let_go(gate)
        while waited["state"] in ("queued", "running"):
            waited = agent.ask("get_job", {"job": job, "wait_s": 10**6})
        opener.join()
        assert waited["state"] == "succeeded", waited
        found = agent.twice("first_diference", {"comparision": job})
        assert report_of(found) == (planted.step, planted.operator, planted.file, planted.line)
        known = [one["id"] for one in found["evidence"]]
        assert agent.ask("get_evidence", {"evidence": known[0]})["id"] == known[0]
        shown = agent.twice("show_source", {"evidence": known[0], "context": 10**6})
        assert f">{planted.line}" in shown["text"]


@pytest.mark.timeout(240)
def test_stale_names_lead_back_to_what_there_is(root, python, gate):
    planted = Planted()
    with InMemory(root, python=python) as server:
        agent = Clumsy(Agent(server, told(root)))
        job = agent.begin()["job"]
        opener = let_go(gate)
        while agent.ask("get_job", {"job": job})["state"] != "succeeded":
            pass
        opener.join()
        stale = job[:-1] + ("0" if job[-1] != "0" else "1")
        for tool, arguments in [
            ("get_job", {"job": stale}),
            ("tail_log", {"job": stale}),
            ("first_difference", {"comparison": stale}),
            ("explain_difference", {"comparison": stale}),
            ("list_differences", {"comparison": stale}),
            ("compare_contracts", {"comparison": stale}),
            ("get_evidence", {"id": "ev:000000000000/0/1"}),
            ("show_source", {"evidence": "ev:000000000000/0/1"}),
            ("show_source", {"run": "gone", "file": "model.py"}),
            ("search_source", {"run": "gone", "text": "gelu"}),
            ("open_case", {"case": "case-000000000000"}),
            ("write_report", {"case": "case-000000000000"}),
        ]:
            value = agent.ask(tool, arguments)
            for _ in range(4):
                if value.get("pivot"):
                    break
                value = agent.ask(value["next"][0]["tool"], value["next"][0]["arguments"])
            assert report_of(value) == (planted.step, planted.operator, planted.file, planted.line), (tool, value)


def test_an_error_without_help_would_be_noticed(root, python):
    with InMemory(root, python=python) as server:
        agent = Clumsy(Agent(server, told(root)))
        whole = agent.agent._call_tool

        def mute(tool, arguments):
            reply = whole(tool, arguments)
            if "error" in reply.value:
                reply.value.update(error={"slug": "x", "text": "No.", "fix": "No."}, next=[])
            return reply

        agent.agent._call_tool = mute
        with pytest.raises(Stuck):
            agent.begin()
