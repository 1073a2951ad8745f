"""The tools that start programs: what they make of their arguments, and where they lead, with work that is made up."""

from functools import partial
from types import SimpleNamespace

import anyio
import pytest

from opguard_core.errors import ConfigError, ConflictingOptions, OpGuardError
from opguard_core.plan.document import Plan
from opguard_harness.access.rules import Access
from opguard_harness.compare import pipeline
from opguard_harness.compare.request import SideRequest
from opguard_harness.config import plans_dir, runs_dir
from opguard_harness.errors import SideNotFound
from opguard_harness.interface.declaration import Kind
from opguard_harness.interface.parsing import parse_arguments
from opguard_harness.invoke import invoke
from opguard_harness.jobs.folder import jobs_dir
from opguard_harness.registry import find
from opguard_harness.report.progress import Silent
from opguard_harness.tools import sides
from opguard_harness.workspace import guarded
from opguard_harness.workspace.cases import note_job, open_or_resume
from opguard_harness.workspace.counterpart import counterpart
from opguard_harness.workspace.preflight import look
from tests.support.answers import answer
from tests.support.script import Script

JOB = "compare-0123456789ab"


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    runs_dir().mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "f"):
        (tmp_path / name).mkdir()


def work(name, job=JOB, **given):
    """Carry out the work of a job tool, as its supervisor does."""
    tool = find(name)
    assert tool.kind is Kind.JOB
    progress = Silent()
    progress.job = job
    return tool.run(parse_arguments(tool, given), progress)


@pytest.fixture
def asked(monkeypatch):
    """Requests that reach the pipeline; it answers what ``asked.answer`` says."""
    found = SimpleNamespace(requests=[], answer=answer("diverged"))

    def compare(request, progress):
        found.requests.append(request)
        return found.answer

    monkeypatch.setattr(pipeline, "compare", compare)
    return found


def test_compare_takes_everything_that_the_shell_takes(asked, tmp_path):
    work(
        "compare",
        reference="a",
        suspect="b",
        command=["torchrun", "t.py"],
        mode="verify",
        steps="2:4",
        reference_commit="HEAD~1",
        reference_args=["--lr", "1 2"],
        suspect_args=["--x"],
        reference_env=["A=1"],
        suspect_env=["B=2", "B=3"],
        narrow=True,
        deterministic=True,
        stop_on_contract=True,
        python="/py",
        timeout_s=5.0,
    )
    request = asked.requests[0]
    assert request.reference == SideRequest(request.reference.path, ("--lr", "1 2"), {"A": "1"}, "HEAD~1")
    assert (request.reference.path, request.suspect.path, request.suspect.env) == (tmp_path / "a", tmp_path / "b", {"B": "3"})
    assert (request.argv, request.narrow, request.out) == (("torchrun", "t.py"), True, runs_dir() / JOB)
    capture = request.capture
    assert (capture.mode, capture.steps, capture.deterministic, capture.timeout_s) == ("verify", (2, 4), True, 5.0)
    assert (capture.stop_on_contract, capture.attached, str(capture.python)) == (True, False, "/py")


def test_the_comparison_has_the_id_of_the_job(asked):
    result = work("compare", reference="a", suspect="b")
    assert result.comparison == JOB
    assert (result.next[0].tool, result.next[0].arguments) == ("first_difference", {"comparison": JOB})
    assert asked.requests[0].capture.mode == "full"


def test_outside_of_a_job_a_comparison_gets_a_name_of_its_own(asked):
    assert work("compare", job="", reference="a", suspect="b").comparison.split("-")[2] == "compare"


def test_a_side_may_be_the_id_of_a_stored_run(asked):
    Script(runs_dir() / "run-1" / "trace").close()
    work("compare", reference="run-1", suspect="b")
    assert asked.requests[0].reference.path == runs_dir() / "run-1" / "trace"


def test_a_comparison_is_no_side(asked):
    Script(runs_dir() / "compare-1" / "suspect" / "trace").close()
    (runs_dir() / "compare-1" / "answer.json").write_text("{}")
    with pytest.raises(SideNotFound, match="comparison of two runs") as caught:
        work("compare", reference="compare-1", suspect="b")
    assert str(runs_dir() / "compare-1" / "suspect") in str(caught.value)
    work("compare", reference=str(runs_dir() / "compare-1" / "suspect"), suspect="b")


@pytest.mark.parametrize(
    ("tool", "given", "slug"),
    [
        ("compare", {"reference": "a", "suspect": "gone"}, "side-not-found"),
        ("compare", {"reference": "a", "suspect": "compare-1"}, "side-not-found"),
        ("compare", {"reference": "a", "suspect": "b", "plan": "gone"}, "plan-not-found"),
        ("compare", {"reference": "a", "suspect": "b", "filters": "gone"}, "filters-damaged"),
        ("compare", {"reference": "a", "suspect": "b", "steps": "3:3"}, "config"),
        ("launch_preflight", {"reference": "gone", "suspect": "b"}, "side-not-found"),
        ("launch_preflight", {"reference": "a", "suspect": "b", "suspect_env": ["A"]}, "invalid-arguments"),
        ("run_guarded", {"folder": "gone"}, "side-not-found"),
        ("run_guarded", {"folder": "f", "plan": "gone"}, "plan-not-found"),
        ("run_guarded", {"folder": "f", "env": ["A"]}, "invalid-arguments"),
        ("align", {"reference": "run-1", "suspect": "gone"}, "side-not-found"),
        ("align", {"reference": "run-1", "suspect": "compare-1"}, "side-not-found"),
    ],
)
def test_what_cannot_work_is_refused_before_there_is_a_job(tool, given, slug):
    Script(runs_dir() / "run-1" / "trace").close()
    Script(runs_dir() / "compare-1" / "suspect" / "trace").close()
    (runs_dir() / "compare-1" / "answer.json").write_text("{}")
    with pytest.raises(OpGuardError) as caught:
        anyio.run(partial(invoke, tool, given, Access()))
    assert caught.value.as_dict()["slug"] == slug
    assert not jobs_dir().exists() or not any(jobs_dir().iterdir())


def test_a_plan_fixes_what_it_fixes(asked, tmp_path):
    Plan("verify", (2, 5), True, ()).save(tmp_path / "plan.json")
    work("compare", reference="a", suspect="b", plan=str(tmp_path / "plan.json"))
    assert (asked.requests[0].capture.mode, asked.requests[0].capture.steps) == ("verify", (2, 5))
    with pytest.raises(ConflictingOptions):
        work("compare", reference="a", suspect="b", plan=str(tmp_path / "plan.json"), mode="full")


def test_a_variable_without_a_value_is_told(asked):
    with pytest.raises(ConfigError, match="reference_env"):
        work("compare", reference="a", suspect="b", reference_env=["A"])


def test_an_inconclusive_comparison_offers_itself_with_something_changed(asked):
    asked.answer = answer("inconclusive", mode="full", reasons=[{"slug": "low-coverage", "text": "", "fix": ""}])
    result = work("compare", reference="a", suspect="b", suspect_args=["--x"], case="case-1")
    assert ("compare", {"reference": "a", "suspect": "b", "suspect_args": ["--x"], "case": "case-1", "mode": "verify"}) in [
        (item.tool, item.arguments) for item in result.next
    ]


@pytest.mark.parametrize("secret", [{"suspect_env": ["KEY=x"]}, {"suspect_args": ["--api-key", "hunter2"]}])
def test_values_that_must_not_be_written_down_are_not_offered_again(asked, secret):
    asked.answer = answer("inconclusive", mode="full", reasons=[{"slug": "low-coverage", "text": "", "fix": ""}])
    result = work("compare", reference="a", suspect="b", **secret)
    assert "compare" not in [item.tool for item in result.next]
    assert [item.tool for item in result.next] == ["first_difference", "list_differences"]


def test_align_takes_runs_by_id_and_keeps_the_comparison_under_its_job(asked):
    for name in ("run-1", "run-2"):
        Script(runs_dir() / name / "trace").close()
    result = work("align", job="align-1", reference="run-1", suspect="run-2")
    assert (asked.requests[0].reference.path, asked.requests[0].out) == (runs_dir() / "run-1" / "trace", runs_dir() / "align-1")
    assert (result.comparison, result.next[0].arguments) == ("align-1", {"comparison": "align-1"})


EXAMPLE = {"operator": "aten.mm", "phase": "forward", "every": 2, "text": "a @ b", "at": "m.py:3"}
FOUND = {
    "warnings": ["w"],
    "contract": [{"key": "source.tree", "severity": "cosmetic", "reference": 1, "suspect": 2}],
    "common": {"boundaries_per_step": 300},
    "alone": {side: {"boundaries_per_step": 1, "sites": 1, "examples": [EXAMPLE] * 8} for side in ("reference", "suspect")},
    "cost": {
        "mode": "full",
        **{
            side: {"step_s": 1.0, "observed_step_s": 2.0, "ratio": 2.0, "step_bytes": 5, "basis": "engine dispatch"}
            for side in ("reference", "suspect")
        },
        "disk": {"fits": True, "needed_bytes": None},
    },
    "sides": {side: {"how": "ended", "exit": None, "steps": 3, "boundaries_per_step": 300} for side in ("reference", "suspect")},
    "plan": {"file": "/plans/p.json", "hash": "h", "sites": 1, "mode": "full", "steps": None, "deterministic": False},
}


@pytest.fixture
def looked(monkeypatch):
    requests = []
    monkeypatch.setattr(look, "preflight", lambda request, progress: requests.append(request) or FOUND)
    return requests


def test_a_preflight_leads_to_the_comparison_under_its_plan(looked):
    result = work(
        "launch_preflight", job="preflight-1", reference="a", suspect="b", command=["python", "t.py"], suspect_args=["--x"], steps=4,
        window="0:9", python="/py",
    )  # fmt: skip
    expected = {"reference": "a", "suspect": "b", "command": ["python", "t.py"], "suspect_args": ["--x"], "python": "/py"}
    assert [(item.tool, item.arguments) for item in result.next] == [("compare", {**expected, "plan": "/plans/p.json"})]
    parse_arguments(find("compare"), result.next[0].arguments)
    assert looked[0].plan == plans_dir() / "preflight-1.json"
    assert (looked[0].first, looked[0].recorded_steps, looked[0].compare.argv) == (4, 9, ("python", "t.py"))
    assert result.alone["suspect"]["examples"] == ["aten.mm in forward, 2 a step: a @ b (m.py:3)"] * 3
    assert result.cost["disk"] == {"fits": True}


def test_a_preflight_with_variables_says_what_to_call_and_repeats_no_value(looked):
    result = work("launch_preflight", reference="a", suspect="b", suspect_env=["KEY=hunter2"])
    assert result.next == []
    assert "`compare` with the same sides" in result.summary
    assert len(result.summary) <= 400
    assert "hunter2" not in str(result)


def captured(name, folder, *, plan_hash="h", case=""):
    """A stored run."""
    script = Script(runs_dir() / name / "trace")
    script.close()
    from opguard_core.trace.manifest import RunManifest, write_manifest

    write_manifest(runs_dir() / name / "trace", RunManifest(cwd=folder, mode="full", complete=True, extra={"plan_hash": plan_hash}))
    note_job(case, name)


@pytest.fixture
def ran(monkeypatch):
    """`run_guarded` leaves a run that captured nothing in /f."""

    def capture(folder, argv, request, *, env, out, progress):
        captured(out.name, str(folder))
        return out, SimpleNamespace(exit_code=0, seconds=1.0, trace=out / "trace"), {"events": 5, "ranks": 1}

    monkeypatch.setattr(guarded, "capture_once", capture)


def test_a_run_leads_to_the_newest_other_run_of_its_folder(ran):
    captured("run-1", "f")
    captured("run-2", "/elsewhere")
    result = work("run_guarded", job="run-3", folder="f")
    assert (result.run, result.exit) == ("run-3", 0)
    assert [(item.tool, item.arguments) for item in result.next] == [("align", {"reference": "run-1", "suspect": "run-3"})]


def test_a_run_that_has_no_counterpart_leads_to_the_list(ran):
    captured("run-1", "f", plan_hash="another")
    following = work("run_guarded", job="run-3", folder="f").next[0]
    assert following.tool == "list_runs"
    parse_arguments(find("list_runs"), following.arguments)


def test_runs_of_the_same_case_are_compared_before_those_of_the_same_folder(ran, tmp_path):
    case, _ = open_or_resume(tmp_path, "it diverges")
    captured("run-1", "/reference", case=case.id)
    captured("run-2", "f")
    following = work("run_guarded", job="run-3", folder="f", case=case.id).next[0]
    assert following.arguments == {"reference": "run-1", "suspect": "run-3", "case": case.id}


def test_what_is_no_finished_run_is_no_counterpart():
    captured("run-3", "f")
    for name in ("run-1.failed", ".run-2.partial-1-abc"):
        captured(name, "f")
    (runs_dir() / "compare-1").mkdir()
    assert counterpart("run-3") is None
    assert counterpart("gone") is None
    captured("run-4", "f")
    assert counterpart("run-3", "case-000000000000") == "run-4"


def test_what_is_offered_again_is_less_the_defaults():
    arguments = parse_arguments(find("compare"), {"reference": "a", "suspect": "b", "mode": "verify", "command": ["python", "train.py"]})
    assert sides.repeatable(arguments) == {"reference": "a", "suspect": "b", "mode": "verify"}
