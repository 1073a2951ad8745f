"""A trace whose every name and source line gives instructions: it may be shown, as data, and speaks in no voice of ours."""

import json

import anyio
import pytest

from opguard_core.errors import OpGuardError
from opguard_harness.access.rules import Access, using
from opguard_harness.answer.plain import dumps, plain
from opguard_harness.config import ANSWER_LIMIT_CHARS
from opguard_harness.invoke import error_result, invoke
from opguard_harness.registry import TOOLS
from opguard_harness.report.progress import Silent
from opguard_harness.tools.align import AlignArguments, align
from tests.support.hostile import CANARY, hostile_runs, strings

STARTS_PROGRAMS = {"compare", "launch_preflight", "run_guarded", "align", "confirm_difference", "doctor"}
DISTANCE = 60


@pytest.fixture(scope="module", params=["diverged", "inconclusive"])
def compared(tmp_path_factory, request):
    """One comparison of hostile traces, in a state folder of its own."""
    place = tmp_path_factory.mktemp("hostile")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(place / "state"))
        reference, suspect = hostile_runs(place / "root", conflict=request.param == "inconclusive")
        access = Access(roots=(place / "root",))
        with using(access):
            found = plain(align(AlignArguments(str(reference), str(suspect)), Silent()))
        assert found["verdict"] == request.param
        yield access, found, (str(reference), str(suspect))


def call(access, tool, arguments):
    try:
        return anyio.run(invoke, tool, arguments, access)
    except OpGuardError as error:
        return error_result(error, access)


def harmless(result):
    """Check one result: our voice is ours, hidden characters are visible, what a run wrote in lines is fenced."""
    ours = [result["summary"], json.dumps(result["next"]), *(text for text in strings(result.get("truncated") or ""))]
    assert not any(CANARY in text for text in ours), ours
    assert len(result["summary"]) <= 400
    assert len(dumps(result)) <= ANSWER_LIMIT_CHARS
    for text in strings(result):
        assert all(char in "\n\t" or char.isprintable() for char in text), ascii(text)[:300]
        if CANARY in text and "\n" in text:
            assert text.startswith("<<untrusted-"), text[:300]
        assert "hunter2" not in text
    for item in result["evidence"]:
        assert CANARY not in item["id"] + item["uri"]
    return result


def test_the_comparison_itself(compared):
    _, found, _ = compared
    harmless(found)


def test_every_call_that_results_lead_to(compared):
    """From the comparison on, every ``next`` and every evidence id, and the tools that take a comparison or a run."""
    access, found, sides = compared
    comparison = found["comparison"]
    root = str(access.roots[0])
    queue = [
        ("first_difference", {"comparison": comparison}),
        ("explain_difference", {"comparison": comparison}),
        ("list_differences", {"comparison": comparison}),
        ("list_runs", {}),
        ("list_filters", {}),
        ("open_case", {"root": root, "symptom": "It differs."}),
        ("compare_contracts", {"reference": sides[0], "suspect": sides[1]}),
        ("search_source", {"run": sides[1], "text": CANARY}),
        ("show_source", {"run": sides[1], "file": "train.py"}),
        ("get_evidence", {"id": "ev:000000000000/0/1"}),
        *(("get_evidence", {"id": item["id"]}) for item in found["evidence"]),
        *((item["tool"], item["arguments"]) for item in found["next"]),
    ]
    known = {tool.name for tool in TOOLS}
    done, seen = set(), ""
    while queue and len(done) < DISTANCE:
        tool, arguments = queue.pop(0)
        if tool in STARTS_PROGRAMS or tool not in known or (tool, json.dumps(arguments)) in done:
            continue
        done.add((tool, json.dumps(arguments)))
        result = harmless(call(access, tool, arguments))
        seen += json.dumps(result)
        queue += [(item["tool"], item["arguments"]) for item in result["next"]]
        queue += [("get_evidence", {"id": item["id"]}) for item in result["evidence"] if "/" in item["id"]]
        queue += [("show_source", {"evidence": item["id"]}) for item in result["evidence"] if item["id"].startswith("ev:")]
    assert CANARY in seen, "the hostile text was reached"
    assert {"first_difference", "explain_difference", "list_differences", "get_evidence", "compare_contracts"} <= {tool for tool, _ in done}


def test_what_is_written_down_of_it(compared):
    """A finding about the hostile place, a filter of it, and the report: data everywhere, and nothing rendered in the report."""
    access, found, _ = compared
    case = call(access, "open_case", {"root": str(access.roots[0]), "symptom": "It differs."})
    evidence = [item["id"] for item in found["evidence"]][:2]
    for tool, arguments in (
        ("record_finding", {"case": case["case"], "claim": f"{CANARY} `x` <script> it is the gelu", "evidence": evidence}),
        ("add_benign_filter", {"comparison": found["comparison"], "evidence": evidence, "slot": "out.0", "reason": f"{CANARY} why"}),
        ("write_report", {"case": case["case"]}),
    ):
        harmless(call(access, tool, arguments))
    for page in access.path(case_folder(case)).rglob("*.md"):
        text = page.read_text()
        assert "<script>" not in text
        assert "](javascript" not in text
        assert "\n```\n</result>" not in text


def case_folder(case):
    from opguard_harness.workspace.cases import require_case

    return require_case(case["case"]).folder
