"""What people and agents are told about named boundaries: short text, tools, reports, the page of a trace, and evidence of them."""

import json
from pathlib import Path

import pytest

from opguard_core.errors import ConfigError, ConflictingOptions
from opguard_core.plan.document import Plan
from opguard_harness.answer.plain import dumps, plain
from opguard_harness.answer.schema import checked, checked_report
from opguard_harness.compare.planned import capture_under
from opguard_harness.compare.request import CaptureRequest
from opguard_harness.config import runs_dir
from opguard_harness.report.markdown_page import case_page
from opguard_harness.report.page import html_page
from opguard_harness.report.progress import Silent
from opguard_harness.report.short import short_answer
from opguard_harness.report.trace_page import trace_page
from opguard_harness.tools.align import AlignArguments, align
from opguard_harness.tools.comparisons import ANSWER_CHARS, FirstDifferenceArguments, first_difference
from opguard_harness.tools.evidence import GetEvidenceArguments, get_evidence
from opguard_harness.workspace.cases import note_job, open_or_resume
from opguard_harness.workspace.contents import contents
from opguard_harness.workspace.reporting.files import gather
from tests.support.named import Named

HOSTILE = "<script>alert(1)</script>`|#"


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def side(folder, changed, *, names=("embed", "rope", "head"), layers=1):
    """A step of named calls whose operators the other side does not have; ``changed``: rope gives something else."""
    script = Named(folder)
    w = script.given((4, 4), 1, name="param:w")
    x = script.given((4, 4), 2)
    for layer in range(layers):
        for at, name in enumerate(names):
            call = script.enter(name, x, at=f"self.{at}(x)")
            inner = script.op(f"aten.{'other' if changed else 'this'}.default", [x, w], (4, 4), 900 + 10 * at + changed, at="inner(x)")
            x = script.op("aten.end.default", [inner], (4, 4), 100 * layer + 10 * at + (5 if changed and at == 1 else 0), at="end(x)")
            script.leave(call, name, x)
    script.read(x)
    script.state(param__w=w)
    script.update()
    return script.close(engines={"semantic": {"active": True, "calls": 3, "names": 3, "patterns": {"absent.*": {"calls": 0}}}})


def compared(tmp_path, changed=1, **shape):
    for name, value in (("reference", 0), ("suspect", changed)):
        side(tmp_path / name, value, **shape)
    case, _ = open_or_resume(tmp_path, "They differ.")
    found = align(AlignArguments(str(tmp_path / "reference"), str(tmp_path / "suspect")), Silent())
    note_job(case.id, found.comparison)
    return case, found.comparison, json.loads((runs_dir() / found.comparison / "answer.json").read_text())


def test_the_answer_is_the_documented_object_and_says_where(tmp_path):
    _, _, answer = compared(tmp_path)
    told = checked(answer)["semantic"]
    assert (told["outcome"], told["first"]["name"], told["first"]["kind"]) == ("differs", "rope", "inside")
    (line,) = [line for line in short_answer(answer) if line.startswith("named ")]
    assert "first different at rope, exit, step 0, microbatch 0, rank 0: what it gets is equal, what it gives is not" in line
    assert "self.1(x)" in line
    assert "the pattern absent.* names nothing" in line


def test_equal_names_are_told_beside_the_verdict(tmp_path):
    _, comparison, answer = compared(tmp_path, changed=0)
    assert any("equal at all 3 named calls of 3 names: 6 entries" in line for line in short_answer(answer))
    found = plain(first_difference(FirstDifferenceArguments(comparison)))
    assert found["semantic"]["outcome"] == "equal"
    assert found["summary"].endswith("(6 tensors).")


def test_first_difference_carries_the_name_the_places_and_ids_that_resolve(tmp_path):
    _, comparison, _ = compared(tmp_path)
    found = plain(first_difference(FirstDifferenceArguments(comparison)))
    first = found["semantic"]["first"]
    assert (first["name"], first["at"], first["means"]) == ("rope", "exit", "what it gets is equal, what it gives is not")
    assert "self.1(x)" in first["suspect"]
    assert "Named boundaries: first different at rope, exit" in found["summary"]
    cited = [item["id"] for item in found["evidence"]]
    for id_ in first["ids"].values():
        assert id_ in cited
        told = plain(get_evidence(GetEvidenceArguments(id_)))
        assert "out.0" in dumps(told)
    whole = plain(get_evidence(GetEvidenceArguments(first["ids"]["suspect"].rsplit("/", 1)[0])))
    assert "semantic" in dumps(whole)
    assert len(dumps(found)) <= ANSWER_CHARS


def test_first_difference_stays_small_with_many_long_names(tmp_path):
    names = tuple(f"{'layers.' * 14}{at}" for at in range(24))
    _, comparison, answer = compared(tmp_path, names=names, layers=2)
    assert answer["semantic"]["names_total"] == 24
    assert len(dumps(plain(first_difference(FirstDifferenceArguments(comparison))))) <= ANSWER_CHARS


def test_every_form_of_the_report_tells_it_again_from_the_traces(tmp_path):
    case, comparison, _ = compared(tmp_path)
    model = gather(case, comparison).model
    assert checked_report(model)["semantic"]["first"]["ids"]["reference"].startswith("ev:")
    for text in (case_page(model), html_page(model)):
        assert "Named boundaries" in text
        assert "rope" in text
    assert any("Named boundaries" in point["text"] for point in model["confidence"])


def test_a_page_of_a_trace_says_how_many_calls_have_names(tmp_path):
    side(tmp_path / "one", 0)
    lines = trace_page(contents(Path(tmp_path / "one")))
    assert any("named boundaries: 3 calls of 3 names; named nothing: absent.*" in line for line in lines)


def test_orders_are_checked_before_anything_runs_and_a_plan_fixes_them(tmp_path):
    with pytest.raises(ConfigError, match="--semantic"):
        CaptureRequest(semantic=("a b",))
    with pytest.raises(ConflictingOptions, match="sentinel"):
        CaptureRequest(mode="sentinel", semantic=("a",))
    given = {"mode": None, "steps": None, "deterministic": False, "python": None, "timeout_s": None}
    path = tmp_path / "plan.json"
    plan = Plan("full", None, False, (), semantic=("a.*", "b.*=a.*"))
    plan.save(path)
    assert plan.hash != Plan("full", None, False, ()).hash
    assert capture_under(path, **given).semantic == ("a.*", "b.*=a.*")
    assert capture_under(path, **given, semantic=("a.*", "b.*=a.*")).plan is not None
    with pytest.raises(ConflictingOptions, match=r"semantic a\.\*, b\.\*=a\.\*, not c"):
        capture_under(path, **given, semantic=("c",))


def test_names_that_a_program_made_up_are_escaped(tmp_path):
    """The writer takes any text; ours are strict, those of a forged trace are not."""
    case, comparison, answer = compared(tmp_path, names=("embed", HOSTILE, "head"))
    assert HOSTILE not in case_page(gather(case, comparison).model)
    assert "<script>alert" not in html_page(gather(case, comparison).model)
    assert "a named boundary" in plain(first_difference(FirstDifferenceArguments(comparison)))["summary"]
    assert answer["semantic"]["first"]["name"] == HOSTILE
