"""A pack opened elsewhere: the same evidence, the same verdict, a report of its own; read only, and nothing in it runs."""

from __future__ import annotations

import json
import shutil
import threading
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from opguard_core.errors import EvidenceNotFound, EvidenceStale, OpGuardError
from opguard_core.evidence.refs import EventRef
from opguard_core.evidence.repro.bundle import TEMPLATE
from opguard_harness.access.opened import MARK, opened
from opguard_harness.access.rules import Access
from opguard_harness.cli.app import dispatch
from opguard_harness.config import runs_dir, state_dir
from opguard_harness.errors import FiltersUnapproved, OpenedReadOnly, PackConflict, ReportRefused, SpaceShort
from opguard_harness.invoke import invoke
from opguard_harness.report.progress import Silent
from opguard_harness.tools.align import AlignArguments, align
from opguard_harness.tools.confirming import ConfirmDifferenceArguments, confirm_difference
from opguard_harness.workspace.cases import note_job, open_or_resume, require_case
from opguard_harness.workspace.citations import cite_all
from opguard_harness.workspace.counterpart import counterpart
from opguard_harness.workspace.evidence import trace_named
from opguard_harness.workspace.facts import resolve
from opguard_harness.workspace.filter_evidence import filter_of
from opguard_harness.workspace.filter_file import add_filter
from opguard_harness.workspace.findings import finding_of, findings_of, record, withdraw
from opguard_harness.workspace.packs import opening
from opguard_harness.workspace.packs.opening import OpenedCase, open_pack
from opguard_harness.workspace.packs.writing import pack
from opguard_harness.workspace.repro import find_repro
from opguard_harness.workspace.stored import answer_of
from tests.support.packs import CANARY, forged, nothing_was_opened
from tests.support.stored_case import StoredCase


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Goes to a machine of its own: an empty state folder."""

    def move(name: str = "elsewhere") -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / name))

    return move


def call(name: str, arguments: dict[str, Any], access: Access | None = None) -> dict[str, Any]:
    return anyio.run(partial(invoke, name, arguments, access or Access()))


@pytest.fixture
def moved(made: StoredCase, tmp_path: Path, elsewhere: Any) -> OpenedCase:
    """The case, packed without sources and opened on another machine."""
    pack(made.case.id, tmp_path / "a.zip")
    elsewhere()
    return open_pack(tmp_path / "a.zip")


def test_every_citation_resolves_to_the_same_fact(made: StoredCase, tmp_path: Path, elsewhere: Any) -> None:
    before = {one.id: resolve(one.id) for finding in findings_of(made.case.id) for one in finding.evidence}
    pack(made.case.id, tmp_path / "a.zip", sources=True)
    elsewhere()
    for cited in before:
        with pytest.raises(OpGuardError):
            resolve(cited)
    found = open_pack(tmp_path / "a.zip")
    assert len(before) == 3 and {cited: resolve(cited).digest for cited in before} == {cited: fact.digest for cited, fact in before.items()}
    assert [one.claim for one in findings_of(found.case.id)] == ["They part in `aten.gelu.default`."]
    for side in ("reference", "suspect"):
        short = EventRef(str(made.answer["digests"][side])[:12], 0, 0).trace
        assert trace_named(short).is_relative_to(state_dir()), "the traces of the other machine are not looked at"


def test_a_page_comes_along_only_where_it_is_what_the_report_gives(made: StoredCase, tmp_path: Path, elsewhere: Any) -> None:
    call("write_report", {"case": made.case.id, "comparison": made.comparison})
    page, data = (made.case.folder / f"report.{kind}" for kind in ("html", "json"))
    pack(made.case.id, tmp_path / "ours.zip", sources=True)
    ours = page.read_bytes()
    page.write_bytes(ours.replace(b"<body>", b"<body><script>alert(1)</script>"))
    pack(made.case.id, tmp_path / "strange.zip", sources=True)
    page.write_bytes(ours)
    data.write_text('{"schema": 1}')
    pack(made.case.id, tmp_path / "unfounded.zip", sources=True)
    elsewhere()
    kept = open_pack(tmp_path / "ours.zip")
    assert (kept.case.folder / "report.html").read_bytes() == ours
    assert "case/report.html" not in [item["what"] for item in kept.left_out]
    for name in ("strange.zip", "unfounded.zip"):
        found = open_pack(tmp_path / name)
        assert not (found.case.folder / "report.html").exists()
        assert found.left_out[0]["what"] == "case/report.html" and found.left_out_total == len(found.left_out)


@pytest.mark.parametrize("ours", [True, False])
def test_a_program_that_came_along_is_handed_out_only_if_it_is_the_one_that_we_write(
    made: StoredCase, tmp_path: Path, elsewhere: Any, ours: bool
) -> None:
    result, cited = runs_dir() / made.comparison, made.cited("suspect")
    kept = {"events": {"suspect": [cited]}, "repro": {"script": "repro.py", "data": "repro.safetensors"}}
    (result / "kept.json").write_text(json.dumps(kept))
    (result / "repro.safetensors").write_bytes(b"data")
    if ours:
        shutil.copyfile(TEMPLATE, result / "repro.py")
    pack(made.case.id, tmp_path / "a.zip")
    assert find_repro(cited).job == made.comparison, "what was made here is not asked"
    elsewhere()
    open_pack(tmp_path / "a.zip")
    for name in (cited, made.comparison):
        if ours:
            assert find_repro(name).script.read_bytes() == TEMPLATE.read_bytes()
        else:
            with pytest.raises(OpenedReadOnly, match="may do anything"):
                find_repro(name)


def test_a_boundary_that_was_kept_here_is_not_looked_for_in_a_pack(made: StoredCase, tmp_path: Path, elsewhere: Any) -> None:
    cited = made.cited("suspect")
    kept = json.dumps({"events": {"suspect": [cited]}, "repro": {"script": "repro.py", "data": "repro.safetensors"}})
    for name in ("kept.json", "repro.py", "repro.safetensors"):
        (runs_dir() / made.comparison / name).write_text(kept)
    pack(made.case.id, tmp_path / "a.zip")
    elsewhere()
    mine = runs_dir() / "confirm-0123456789ab"
    mine.mkdir(parents=True)
    for name in ("kept.json", "repro.py", "repro.safetensors"):
        (mine / name).write_text(kept)
    open_pack(tmp_path / "a.zip")
    assert find_repro(cited).job == mine.name


def test_the_tools_that_read_work_on_it_and_the_report_is_checked_here(moved: OpenedCase, made: StoredCase) -> None:
    answer = call("first_difference", {"comparison": made.comparison})
    assert answer["verdict"] == "diverged" and answer["pivot"]["operator"] == made.answer["pivot"]["operator"]
    assert not [step for step in answer["next"] if step["tool"] in ("confirm_difference", "compare", "record_finding", "open_case")]
    evidence = call("get_evidence", {"id": answer["evidence"][0]["id"], "comparison": made.comparison})
    assert evidence["kind"] == "boundary"
    report = call("write_report", {"case": moved.case.id, "verdict": "diverged"})
    assert len(report["findings"]) == 1 and (moved.case.folder / "report.md").read_text() != "# the report"
    advised = [item["command"] for item in json.loads((moved.case.folder / "report.json").read_text())["again"]]
    assert len(advised) == 2 and all(command.startswith("opguard-harness ") and "train.py" not in command for command in advised)
    listed = call("list_runs", {"case": moved.case.id})
    assert made.comparison in [row["id"] for row in listed["runs"]]


@pytest.mark.full
def test_source_says_that_the_pack_has_none_and_is_shown_where_it_has(made: StoredCase, tmp_path: Path, elsewhere: Any) -> None:
    lines = resolve(made.cited("suspect"), made.comparison).data["source"]
    pack(made.case.id, tmp_path / "without.zip")
    pack(made.case.id, tmp_path / "with.zip", sources=True)
    elsewhere()
    open_pack(tmp_path / "without.zip")
    for asked in ({"evidence": lines}, {"evidence": made.cited("suspect")}):
        with pytest.raises(EvidenceNotFound, match="made without source texts"):
            call("show_source", asked)
    with pytest.raises(EvidenceNotFound, match="made without source texts"):
        call("show_source", {"run": made.comparison, "side": "suspect", "file": "model.py"})
    open_pack(tmp_path / "with.zip")  # of the same case, so what is missing comes along
    assert "gelu" in call("show_source", {"evidence": lines})["text"]
    assert "gelu" in call("show_source", {"evidence": made.cited("suspect")})["text"]


def test_it_is_a_case_of_its_own_which_no_folder_resumes(made: StoredCase, moved: OpenedCase) -> None:
    assert moved.case.id != made.case.id and moved.of == made.case.id and moved.new
    assert moved.case.symptom == made.case.symptom
    own, resumed = open_or_resume(made.case.root, made.case.symptom)
    assert not resumed and own.id == made.case.id
    shown = call("open_case", {"case": moved.case.id})
    assert shown["done"]["pack"] == {"of": made.case.id, "read_only": True, "sources": False, "filters_approved": False, "left_out": 4}
    assert [step["tool"] for step in shown["next"]] == ["first_difference", "write_report"]


def test_opening_twice_gives_the_same_case(moved: OpenedCase, tmp_path: Path) -> None:
    files = {path: path.read_bytes() for path in state_dir().rglob("*") if path.is_file()}
    again = open_pack(tmp_path / "a.zip")
    assert again.case == moved.case and not again.new
    assert {path: path.read_bytes() for path in state_dir().rglob("*") if path.is_file()} == files


def test_two_that_open_it_at_once_agree(made: StoredCase, tmp_path: Path, elsewhere: Any) -> None:
    pack(made.case.id, tmp_path / "a.zip")
    elsewhere()
    found: list[OpenedCase] = []
    threads = [threading.Thread(target=lambda: found.append(open_pack(tmp_path / "a.zip"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.case.id for one in found}) == 1 and sorted(one.new for one in found) == [False, False, False, True]
    assert not list(state_dir().glob(".opening-*"))


@pytest.mark.full
def test_where_it_was_packed_it_opens_beside_its_own_case(made: StoredCase, tmp_path: Path) -> None:
    pack(made.case.id, tmp_path / "a.zip")
    found = open_pack(tmp_path / "a.zip")
    assert found.case.id != made.case.id and not opened(runs_dir() / made.comparison)
    assert answer_of(made.comparison)["trace"] == made.answer["trace"], "what was made here stays as it is"
    record(made.case.id, finding_of("Still mine.", "externally reported", ()))
    call("write_report", {"case": found.case.id})


def test_what_a_job_left_resolves_from_the_pack(made: StoredCase, tmp_path: Path, elsewhere: Any) -> None:
    job = state_dir() / "jobs" / "compare-0123456789ab"
    job.mkdir(parents=True)
    (job / "log.txt").write_text("all went well")
    note_job(made.case.id, "compare-0123456789ab")
    cited = cite_all(require_case(made.case.id), "It said so.", ["job:compare-0123456789ab/log"], "source inference")
    record(made.case.id, finding_of("It said so.", "source inference", cited))
    pack(made.case.id, tmp_path / "a.zip")
    elsewhere()
    with pytest.raises(EvidenceNotFound):
        resolve("job:compare-0123456789ab/log")
    found = open_pack(tmp_path / "a.zip")
    assert resolve("job:compare-0123456789ab/log").data["text"] == "all went well"
    assert len(call("write_report", {"case": found.case.id})["findings"]) == 2
    assert not (state_dir() / "jobs").exists(), "and no job can be taken for one that was asked for here"


def test_an_answer_whose_trace_had_gone_is_read_like_any_other_such(made: StoredCase, tmp_path: Path, elsewhere: Any) -> None:
    path = runs_dir() / made.comparison / "answer.json"
    answer = json.loads(path.read_text())
    answer["trace"]["suspect"] = str(tmp_path / "gone")
    path.write_text(json.dumps(answer))
    packed = pack(made.case.id, tmp_path / "a.zip").manifest
    assert f"traces of {made.comparison}" in [item["what"] for item in packed.left_out] and not packed.traces
    elsewhere()
    found = open_pack(tmp_path / "a.zip")
    shown = call("first_difference", {"comparison": made.comparison})
    assert shown["verdict"] == "diverged" and any("gone" in note for note in shown["notes"])
    with pytest.raises(ReportRefused):
        call("write_report", {"case": found.case.id})


# -- nothing runs, nothing is added ----------------------------------------------------------------------------------


def test_what_it_records_is_never_started(moved: OpenedCase, made: StoredCase) -> None:
    run = str(runs_dir() / made.comparison)
    with pytest.raises(OpenedReadOnly):
        confirm_difference(ConfirmDifferenceArguments(made.comparison), Silent())
    both = {"reference": run, "suspect": run, "command": ["python", "repro.py"]}
    from opguard_harness.compare import pipeline
    from opguard_harness.compare.request import CompareRequest, SideRequest

    request = CompareRequest(SideRequest(Path(run)), SideRequest(Path(run)), argv=("python", "repro.py"))
    with pytest.raises(OpenedReadOnly):
        pipeline.compare(request, Silent())
    with pytest.raises(OpenedReadOnly):
        call("run_guarded", {"folder": run, "command": ["python", "repro.py"]})
    with pytest.raises(OpenedReadOnly):
        call("compare", {**both, "case": moved.case.id})
    assert not (made.case.root / CANARY).exists()
    assert not (state_dir() / "jobs").exists(), "no job was begun"


def test_nothing_is_added_to_it(moved: OpenedCase, made: StoredCase) -> None:
    case = moved.case.id
    named = {"comparison": made.comparison, "evidence": [made.cited("suspect")], "slot": made.answer["pivot"]["slot"]}
    for change in (
        lambda: record(case, finding_of("More.", "externally reported", ())),
        lambda: withdraw(case, findings_of(case)[0].id),
        lambda: note_job(case, "compare-0123456789ab"),
        lambda: call("record_finding", {"case": case, "claim": "More.", "basis": "externally reported"}),
        lambda: call("align", {"reference": "a", "suspect": "b", "case": case}),
        lambda: call("add_benign_filter", {**named, "reason": "harmless", "case": case, "apply": True}),
    ):
        with pytest.raises(OpenedReadOnly):
            change()
    assert len(findings_of(case)) == 1 and not (moved.case.folder / "filters.json").exists()


def test_a_run_of_a_pack_is_not_offered_as_the_other_side_of_ours(moved: OpenedCase, made: StoredCase, tmp_path: Path) -> None:
    from tests.support.synthetic import GptShape, gpt, write_run

    write_run(runs_dir() / "own" / "trace", gpt(GptShape(layers=1, steps=2)), mode="verify")
    assert counterpart("own") is None
    for folder in runs_dir().glob("trace-*"):
        (folder / MARK).unlink()
    assert counterpart("own") is not None, "without the mark one of them would be"


# -- filters ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def filtered(made: StoredCase, tmp_path: Path) -> str:
    """A comparison of the case that a filter has a part in; its pack."""
    pivot = made.answer["pivot"]
    rule = filter_of(answer_of(made.comparison), [made.cited("suspect")], pivot["slot"], "it is only rounding")
    add_filter(made.case.folder / "filters.json", rule)
    sides = (str(made.answer["trace"][side]) for side in ("reference", "suspect"))
    found = align(AlignArguments(*sides, filters=str(made.case.folder / "filters.json")), Silent())
    note_job(made.case.id, found.comparison)
    assert answer_of(found.comparison)["filters"]
    pack(made.case.id, tmp_path / "a.zip")
    return found.comparison


def test_filters_that_came_with_it_are_off_until_somebody_approves_them(
    filtered: str, made: StoredCase, tmp_path: Path, elsewhere: Any
) -> None:
    elsewhere()
    found = open_pack(tmp_path / "a.zip")
    assert [rule["reason"] for rule in found.filters] == ["it is only rounding"] and not found.approved
    for ask in (
        lambda: answer_of(filtered),
        lambda: call("first_difference", {"comparison": filtered}),
        lambda: call("write_report", {"case": found.case.id, "comparison": filtered}),
    ):
        with pytest.raises(FiltersUnapproved):
            ask()
    assert not (found.case.folder / "filters.json").exists()
    assert call("first_difference", {"comparison": made.comparison})["verdict"] == "diverged", "the answer without filters is there"

    said = dispatch(["open", str(tmp_path / "a.zip")]).text
    assert "it is only rounding" in said and "off until you open it with --approve-filters" in said
    assert "in force" in dispatch(["open", str(tmp_path / "a.zip"), "--approve-filters"]).text
    assert answer_of(filtered)["filters"] and (found.case.folder / "filters.json").exists()
    call("write_report", {"case": found.case.id, "comparison": filtered})
    assert open_pack(tmp_path / "a.zip").approved, "opening it once more takes nothing back"


# -- conflicts, room, roots ------------------------------------------------------------------------------------------


def test_something_else_under_the_same_id_is_a_conflict(made: StoredCase, tmp_path: Path, elsewhere: Any) -> None:
    pack(made.case.id, tmp_path / "a.zip")
    changed = forged(tmp_path / "a.zip", tmp_path / "b.zip", {f"runs/{made.comparison}/damage.json": b'{"count": 2}'})
    added = forged(tmp_path / "a.zip", tmp_path / "c.zip", {f"runs/{made.comparison}/more.json": b"{}"})
    lacking = forged(tmp_path / "a.zip", tmp_path / "d.zip", {f"runs/{made.comparison}/damage.json": None})
    for state in ("packed-here", "elsewhere"):
        if state == "elsewhere":
            elsewhere()
            open_pack(tmp_path / "a.zip")
        before = sorted(path for path in state_dir().rglob("*") if not path.name.startswith("."))
        for other in (changed, added, *((lacking,) if state == "elsewhere" else ())):
            with pytest.raises(PackConflict):
                open_pack(other)
        assert sorted(path for path in state_dir().rglob("*") if not path.name.startswith(".")) == before


def test_a_pack_that_does_not_fit_is_refused_before_it_is_unpacked(
    made: StoredCase, tmp_path: Path, elsewhere: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(made.case.id, tmp_path / "a.zip")
    elsewhere()
    monkeypatch.setattr(opening, "MIN_FREE_BYTES", 1 << 62)
    with pytest.raises(SpaceShort):
        open_pack(tmp_path / "a.zip")
    assert nothing_was_opened()


@pytest.mark.full
def test_a_server_opens_a_pack_that_lies_in_a_root(made: StoredCase, tmp_path: Path, elsewhere: Any) -> None:
    (tmp_path / "root").mkdir()
    pack(made.case.id, tmp_path / "root" / "a.zip")
    pack(made.case.id, tmp_path / "outside.zip")
    elsewhere()
    access = Access(roots=(tmp_path / "root",))
    told = call("open_case", {"pack": "a.zip"}, access)
    assert told["done"]["pack"]["of"] == made.case.id and "read only" in told["summary"]
    assert call("write_report", {"case": told["case"]}, access)["verdict"] == "diverged"
    assert call("open_case", {"pack": "a.zip"}, access)["resumed"] is True
    for wrong in ({"pack": str(tmp_path / "outside.zip")}, {"pack": "a.zip", "symptom": "other"}):
        with pytest.raises(OpGuardError):
            call("open_case", wrong, access)


@pytest.mark.full
def test_a_pack_of_an_opened_case_opens_as_well(moved: OpenedCase, made: StoredCase, tmp_path: Path, elsewhere: Any) -> None:
    pack(moved.case.id, tmp_path / "again.zip")
    elsewhere("third")
    found = open_pack(tmp_path / "again.zip")
    assert found.of == moved.case.id and call("first_difference", {"comparison": made.comparison})["verdict"] == "diverged"
    call("write_report", {"case": found.case.id})


def test_a_trace_that_was_changed_and_made_to_fit_is_noticed_when_it_is_read(made: StoredCase, tmp_path: Path, elsewhere: Any) -> None:
    from tests.support.packs import contents

    pack(made.case.id, tmp_path / "a.zip")
    segments = {name: data for name, data in contents(tmp_path / "a.zip").items() if name.endswith("slots-000000.arrow")}
    changed = {name: data[:200] + bytes([data[200] ^ 1]) + data[201:] for name, data in segments.items()}
    forged(tmp_path / "a.zip", tmp_path / "b.zip", changed)
    elsewhere()
    found = open_pack(tmp_path / "b.zip")
    with pytest.raises(EvidenceStale):
        resolve(made.cited("suspect"))
    with pytest.raises(ReportRefused):
        call("write_report", {"case": found.case.id})


def test_the_command_tells_what_it_opened(made: StoredCase, tmp_path: Path, elsewhere: Any) -> None:
    pack(made.case.id, tmp_path / "a.zip")
    elsewhere()
    told = json.loads(dispatch(["open", str(tmp_path / "a.zip"), "--json"]).text)
    assert told["of"] == made.case.id and told["comparisons"] == [made.comparison] and require_case(told["case"]).is_opened
    assert "opened before" in dispatch(["open", str(tmp_path / "a.zip")]).text
