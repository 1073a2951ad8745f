"""Files placed in a root, links out of it, and arguments that no honest caller sends: refused in our words, and nothing leaks."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import anyio
import pytest

from opguard_core.errors import OpGuardError, PlanError
from opguard_harness.access.rules import Access, using
from opguard_harness.answer.failures import of_a_call
from opguard_harness.answer.plain import dumps
from opguard_harness.compare.planned import read_plan
from opguard_harness.compare.request import CompareRequest, SideRequest
from opguard_harness.compare.sides import resolve
from opguard_harness.config import ANSWER_LIMIT_CHARS, runs_dir, state_dir
from opguard_harness.errors import OutsideRoots
from opguard_harness.interface.declaration import Kind, Role, roles_of
from opguard_harness.interface.parsing import parse_arguments
from opguard_harness.invoke import error_result, invoke
from opguard_harness.registry import TOOLS
from opguard_harness.workspace.guarded import existing_folder
from opguard_harness.workspace.stored import trace_of
from tests.support.hostile import BREAKOUTS, CANARY, HIDDEN, ORDER, strings
from tests.support.stored_case import stored_case

SECRET = "hunter2-outside-the-root"
DEEP = "[" * 100_000
GIANT = "A" * 1_000_000
TEXTS = [
    "../outside",
    "../../../../etc/passwd",
    "/etc/passwd",
    "~root/x",
    "link",
    "link/answer.json",
    f"{ORDER}{BREAKOUTS}",
    f"x{HIDDEN}y",
    "a\0b",
    "\ud800",
    "ev:000000000000/0/1",
    "src:000000000000/../../etc/passwd:1-9",
    "job:../../etc/passwd",
    "-",
    "--help",
    "$(id)",
    GIANT,
    f"[{'[' * 5_000}",
]
JOBS = [tool for tool in TOOLS if tool.kind is Kind.JOB]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A stored comparison and case, a root beside it, and a folder that nobody may read."""
    base = tmp_path_factory.mktemp("hostile-files")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(base / "state"))
        (base / "root").mkdir()
        (base / "outside").mkdir()
        (base / "outside" / "answer.json").write_text(json.dumps({"secret": SECRET}))
        (base / "outside" / "secret.txt").write_text(SECRET)
        stored = stored_case(base / "root")
        (base / "root" / "link").symlink_to(base / "outside")
        shutil.copytree(base / "root" / "suspect", base / "outside" / "trace")
        yield base, stored, Access(roots=(base / "root",))


def call(access, tool, arguments):
    """What an agent gets, an unexpected exception included; jobs are checked and not started."""
    try:
        if any(job.name == tool for job in JOBS):
            declared = next(job for job in JOBS if job.name == tool)
            access.admit(declared, parse_arguments(declared, arguments))
            return None
        return anyio.run(invoke, tool, arguments, access)
    except Exception as error:  # what the server does
        return error_result(of_a_call(error), access)


def decent(result, *, but=()):
    assert len(dumps(result)) <= ANSWER_LIMIT_CHARS
    assert len(result["summary"]) <= 400
    for text in strings(result):
        assert SECRET not in text
        assert all(char in "\n\t" or char.isprintable() for char in text), ascii(text)[:200]
    error = result.get("error") or {}
    assert error.get("slug") not in {"internal", *but}, result
    return result


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_no_text_argument_breaks_a_tool(place, tool):
    _base, stored, access = place
    roles = roles_of(tool.arguments)
    required = {
        item.name: {"comparison": stored.comparison, "case": stored.case.id, "job": "run-000000000000"}.get(item.name, "reference")
        for item in dataclasses.fields(tool.arguments)
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
    }
    tried = 0
    for item in dataclasses.fields(tool.arguments):
        kind = str(item.type)
        if kind not in ("str", "list[str]") or (tool.name == "doctor" and roles[item.name] is Role.PYTHON):
            continue
        for text in TEXTS:
            value = [text] if kind == "list[str]" else text
            given = {**{name: [held] if name == "evidence" and not isinstance(held, list) else held for name, held in required.items()}}
            result = call(access, tool.name, {**given, item.name: value})
            tried += 1
            if result is not None:
                decent(result)
    assert tried or not any(str(item.type) in ("str", "list[str]") for item in dataclasses.fields(tool.arguments)) or tool.name == "doctor"


def sides_of(path, base):
    resolve(CompareRequest(SideRequest(Path(path)), SideRequest(Path(path))), base / "scratch")


def folder_of_run(path, base):
    existing_folder(Path(path))


def trace_of_run(path, base):
    trace_of(path)


def lines_of_every_tool(access, comparison, run):
    """The tools that read a comparison or a run, on these."""
    for tool in TOOLS:
        names = roles_of(tool.arguments)
        given = {
            name: value for name, value in (("comparison", comparison), ("run", run), ("reference", run), ("suspect", run)) if name in names
        }
        if given and tool.kind is not Kind.JOB:
            yield tool.name, call(access, tool.name, given)


def test_an_answer_in_a_root_cannot_name_traces_elsewhere(place):
    base, stored, access = place
    fake = base / "root" / "compare-fake"
    fake.mkdir()
    outside = str(base / "outside" / "trace")
    for trace in (outside, "../outside/trace", str(base / "root" / "link" / "trace"), "link/trace", "~", "/"):
        (fake / "answer.json").write_text(json.dumps({**stored.answer, "trace": {"reference": trace, "suspect": trace}}))
        found = 0
        for tool, result in lines_of_every_tool(access, "compare-fake", "compare-fake"):
            decent(result)
            assert result.get("error"), (tool, trace)
            found += 1
        assert found >= 4


def test_a_link_in_place_of_a_trace_or_a_part_of_it_is_refused(place):
    base, _, access = place
    whole = base / "root" / "suspect"
    for number, part in enumerate(["", "trace", "rank-00000", "rank-00000/manifest.json", "sources"]):
        run = base / "root" / f"linked-{number}"
        if not part:
            run.symlink_to(base / "outside" / "trace")
        elif part == "trace":
            run.mkdir()
            (run / "trace").symlink_to(base / "outside" / "trace")
        else:
            shutil.copytree(whole, run)
            target = run / part
            shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
            target.symlink_to(base / "outside" / "trace" / part)
        for tool, result in lines_of_every_tool(access, run.name, run.name):
            decent(result)
            if part in ("", "trace", "rank-00000"):
                assert result.get("error"), (tool, part)


def test_a_server_with_other_roots_reads_nothing_of_a_stored_comparison_s_traces(place):
    base, stored, _ = place
    (base / "other").mkdir()
    elsewhere = Access(roots=(base / "other",))
    cited = stored.cited("suspect")
    for tool, given in (
        ("first_difference", {"comparison": stored.comparison}),
        ("list_differences", {"comparison": stored.comparison}),
        ("compare_contracts", {"comparison": stored.comparison}),
        ("get_evidence", {"id": cited}),
        ("get_evidence", {"id": cited, "comparison": stored.comparison}),
        ("show_source", {"evidence": cited}),
        ("show_source", {"run": str(base / "root" / "suspect"), "file": "model.py"}),
    ):
        result = decent(call(elsewhere, tool, given))
        assert result["error"]["slug"] in ("outside-roots", "evidence-not-found"), (tool, result["error"])


@pytest.mark.parametrize("look", [sides_of, folder_of_run, trace_of_run], ids=["sides", "folder", "trace"])
def test_a_side_that_became_a_link_after_it_was_admitted_is_not_used(place, look):
    """Between the call and its job, or within it: a path is checked where it is used."""
    base, _, access = place
    side = base / "root" / "swapped"
    side.mkdir()
    (side / "train.py").write_text("")
    tool = next(tool for tool in TOOLS if tool.name == "compare")
    try:
        admitted = access.admit(tool, parse_arguments(tool, {"reference": "swapped", "suspect": "swapped"}))
        shutil.rmtree(side)
        side.symlink_to(base / "outside" / "trace")
        with using(Access.from_dict(access.to_dict())), pytest.raises(OutsideRoots):
            look(admitted.suspect, base)
    finally:
        side.unlink()


def test_what_is_no_answer_is_refused_in_our_words(place):
    base, stored, access = place
    fake = base / "root" / "compare-odd"
    fake.mkdir()
    hostile = {**stored.answer, "verdict": f"{ORDER}{BREAKOUTS}{HIDDEN}"}
    for text in (DEEP, "{", "[]", "null", json.dumps(hostile), "\xff", '{"trace": 1}', json.dumps({**stored.answer, ORDER: 1})):
        (fake / "answer.json").write_bytes(text.encode("latin-1"))
        for _, result in lines_of_every_tool(access, "compare-odd", "compare-odd"):
            decent(result)
            assert result["error"]
            assert CANARY not in result["summary"] + json.dumps(result["next"])
    (fake / "answer.json").unlink()
    os.mkfifo(fake / "answer.json")
    for _, result in lines_of_every_tool(access, "compare-odd", "compare-odd"):
        assert decent(result)["error"], "a pipe would be waited for"


def test_a_plan_in_a_root_is_data(place, tmp_path):
    base, _, access = place
    plan = base / "root" / "plan.json"
    for text in (DEEP, "{", "{}", json.dumps({"format": 1, "mode": f"{ORDER}{BREAKOUTS}" * 1_000}), '{"format": 1e999}', GIANT):
        plan.write_text(text)
        with using(access), pytest.raises(PlanError) as caught:
            read_plan(Path("plan.json"))
        result = error_result(caught.value, access)
        decent(result)
        assert CANARY not in result["summary"] + json.dumps(result["next"])
        assert len(str(caught.value)) < 2_000
    plan.unlink()
    plan.symlink_to(base / "outside" / "secret.txt")
    with using(access), pytest.raises(OutsideRoots):
        read_plan(Path("plan.json"))


def test_a_filter_file_in_a_root_is_data_and_is_not_written(place):
    base, stored, access = place
    path = base / "root" / "filters.json"
    for text in (
        DEEP,
        "{",
        "{}",
        json.dumps({"format": 1, "filters": [{"id": ORDER, "reason": BREAKOUTS}]}),
        json.dumps({"format": ORDER, "filters": []}),
    ):
        path.write_text(text)
        result = decent(call(access, "list_filters", {"filters": "filters.json"}))
        assert result["error"]["slug"] == "filters-damaged"
        assert CANARY not in result["summary"]
        assert path.read_text() == text
    path.unlink()
    evidence = [stored.cited("suspect")]
    given = {"comparison": stored.comparison, "evidence": evidence, "slot": "out.0", "reason": "because"}
    for target in ("filters.json", "../outside/filters.json", "link/filters.json", "/tmp/filters.json"):
        result = decent(call(access, "add_benign_filter", {**given, "filters": target, "apply": True}))
        assert result["error"], "nothing is written into a root"
        assert not path.exists()
        assert not (base / "outside" / "filters.json").exists()


def test_a_case_that_was_changed_by_hand_is_data(place):
    _base, stored, access = place
    path = stored.case.folder / "case.json"
    before = path.read_text()
    try:
        for text in (
            DEEP,
            "{",
            "[]",
            json.dumps({"format": 1, "symptom": ORDER}),
            json.dumps({**json.loads(before), "root": "/etc", "symptom": f"{ORDER}{BREAKOUTS}{HIDDEN}"}),
        ):
            path.write_text(text)
            for tool in ("open_case", "write_report"):
                result = decent(call(access, tool, {"case": stored.case.id}))
                assert CANARY not in result["summary"] + json.dumps(result["next"])
    finally:
        path.write_text(before)


def test_odd_names_in_the_state_folder_are_no_rows_that_speak(place):
    _, _, access = place
    names = [ORDER, "a\nb", f"x{HIDDEN}", "`rm`", "compare-" + "y" * 200]
    for name in names:
        (runs_dir() / name).mkdir()
        (runs_dir() / name / "answer.json").write_text("{}")
    try:
        result = decent(call(access, "list_runs", {}))
        assert CANARY not in result["summary"] + json.dumps(result["next"])
    finally:
        for name in names:
            shutil.rmtree(runs_dir() / name)


@pytest.mark.parametrize(
    "text", [DEEP, json.dumps({"verdict": ORDER, "mode": BREAKOUTS, "trace": {"reference": "/etc", "suspect": 5}}), "\u00e4"]
)
def test_an_answer_in_the_state_folder_that_we_did_not_write(place, text):
    """A training could put it there: whatever looks over all that is stored passes over it."""
    _, stored, access = place
    folder = runs_dir() / "compare-0123456789ab"
    folder.mkdir()
    (folder / "answer.json").write_text(text)
    try:
        for tool, given in (
            ("list_runs", {}),
            ("get_evidence", {"id": stored.cited("suspect")}),
            ("get_evidence", {"id": "ev:000000000000/0/1"}),
            ("get_evidence", {"id": f"job:{folder.name}/answer"}),
            ("first_difference", {"comparison": folder.name}),
        ):
            result = decent(call(access, tool, given))
            assert CANARY not in result["summary"] + json.dumps(result["next"])
        assert not call(access, "get_evidence", {"id": stored.cited("suspect")}).get("error")
    finally:
        shutil.rmtree(folder)


def test_a_stored_run_that_is_a_link_out_is_refused(place):
    base, _, access = place
    link = runs_dir() / "run-0123456789ab"
    link.symlink_to(base / "outside")
    try:
        for _, result in lines_of_every_tool(access, link.name, link.name):
            assert decent(result)["error"]
        decent(call(access, "list_runs", {}))
    finally:
        link.unlink()
    assert state_dir().is_dir()


def test_the_error_class_is_ours_whatever_is_asked(place):
    _, _, access = place
    for given in (
        {"limit": 10**400},
        {"limit": -1},
        {"cursor": GIANT},
        {GIANT: 1},
        {"limit": [[]]},
        [],
        None,
        "x",
        7,
        {"limit": float("inf")},
    ):
        with pytest.raises(OpGuardError) as caught:
            anyio.run(invoke, "list_runs", given, access)
        result = decent(error_result(caught.value, access))
        assert len(dumps(result)) < 6_000
