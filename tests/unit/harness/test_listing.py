"""The list of all that is stored: one row for each thing, newest first, whatever state it is in, and instant."""

import json
import os

import pytest

from opguard_harness.errors import CaseNotFound, InvalidArguments
from opguard_harness.tools import listing
from opguard_harness.tools.listing import ListRunsArguments, list_runs
from opguard_harness.workspace.cases import note_job, open_or_resume
from opguard_harness.workspace.listing import JobFacts, entries
from tests.support.answers import answer

OLD, NEW = "20260101-000000", "20260102-000000"
DEAD = 4_194_304 - 1  # above the usual limit of process numbers


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(listing, "known_jobs", list)
    folder = tmp_path / "state" / "opguard" / "runs"
    folder.mkdir(parents=True, mode=0o700)
    return folder


@pytest.fixture
def jobs(monkeypatch):
    """Sets the jobs that the state folder is said to hold."""
    return lambda *found: monkeypatch.setattr(listing, "known_jobs", lambda: list(found))


def comparison(runs, name, verdict="diverged", at=0):
    folder = runs / name
    folder.mkdir()
    (folder / "answer.json").write_text(json.dumps(answer(verdict)))
    os.utime(folder, (at, at))
    return name


def run(runs, name, mode="full", at=0):
    rank = runs / name / "trace" / "rank-00000"
    rank.mkdir(parents=True)
    (rank / "manifest.json").write_text("{}")
    (runs / name / "trace" / "manifest.json").write_text(json.dumps({"mode": mode}))
    os.utime(runs / name, (at, at))
    return name


def rows(**arguments):
    return list_runs(ListRunsArguments(**arguments)).runs


def test_rows_say_what_is_known_and_no_more(runs):
    comparison(runs, f"{OLD}-compare-aaaaaa")
    run(runs, f"{NEW}-run-bbbbbb")
    found = rows()
    assert [row["id"] for row in found] == [f"{NEW}-run-bbbbbb", f"{OLD}-compare-aaaaaa"]
    assert {key: found[0][key] for key in found[0] if key != "created"} == {
        "id": f"{NEW}-run-bbbbbb",
        "kind": "run",
        "state": "succeeded",
        "mode": "full",
    }
    assert (found[1]["kind"], found[1]["verdict"], found[1]["mode"]) == ("compare", "diverged", "verify")


def test_an_empty_state_folder_leads_to_the_beginning(runs):
    found = list_runs(ListRunsArguments())
    assert found.summary == "Nothing stored."
    assert [call.tool for call in found.next] == ["open_case"]
    runs.rmdir()
    assert list_runs(ListRunsArguments()).runs == []


def test_a_job_and_what_it_made_are_one_row(runs, jobs):
    comparison(runs, "compare-000000000001")
    run(runs, "run-000000000002")
    jobs(JobFacts("compare-000000000001", "compare", "succeeded", 200.0), JobFacts("run-000000000002", "run_guarded", "succeeded", 100.0))
    assert [(row["id"], row["kind"], row["state"]) for row in rows()] == [
        ("compare-000000000001", "compare", "succeeded"),
        ("run-000000000002", "run", "succeeded"),
    ]


@pytest.mark.parametrize(
    ("tool", "kind"),
    [
        ("compare", "compare"),
        ("align", "compare"),
        ("run_guarded", "run"),
        ("launch_preflight", "preflight"),
        ("confirm_difference", "confirm"),
    ],
)
@pytest.mark.parametrize("state", ["queued", "running", "failed", "cancelled", "lost", "damaged"])
def test_a_job_without_results_is_a_row_too(runs, jobs, tool, kind, state):
    jobs(JobFacts("some-000000000001", tool, state, 1.0))
    assert [(row["kind"], row["state"]) for row in rows()] == [(kind, state)]


def test_results_count_when_the_supervisor_died_after_writing_them(runs, jobs):
    comparison(runs, "compare-000000000001")
    jobs(JobFacts("compare-000000000001", "compare", "lost", 1.0))
    found = list_runs(ListRunsArguments())
    assert (found.runs[0]["state"], found.runs[0]["verdict"]) == ("succeeded", "diverged")
    assert found.next[0].arguments == {"comparison": "compare-000000000001"}


def test_what_a_failed_job_left_is_part_of_its_row(runs, jobs):
    (runs / "compare-000000000001.failed").mkdir()
    (runs / ".compare-000000000002.partial-1-abcdef").mkdir()
    jobs(JobFacts("compare-000000000001", "compare", "failed", 2.0), JobFacts("compare-000000000002", "compare", "lost", 1.0))
    assert [(row["id"], row["state"]) for row in rows()] == [("compare-000000000001", "failed"), ("compare-000000000002", "lost")]


def test_unfinished_and_failed_folders_of_the_shell_are_rows(runs):
    (runs / f"{OLD}-compare-aaaaaa.failed").mkdir()
    (runs / f".{OLD}-compare-bbbbbb.partial-{DEAD}-abcdef").mkdir()
    (runs / f".{OLD}-run-cccccc.partial-{os.getpid()}-abcdef").mkdir()
    assert {(row["id"], row["kind"], row["state"]) for row in rows()} == {
        (f"{OLD}-compare-aaaaaa.failed", "compare", "failed"),
        (f"{OLD}-compare-bbbbbb", "compare", "lost"),
        (f"{OLD}-run-cccccc", "run", "running"),
    }


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"verdict": "equal", "mode": "full"}', b'{"verdict": "diverged", "mode": "<b>"}']
)
def test_a_damaged_answer_is_a_row_that_says_so(runs, data):
    name = comparison(runs, f"{OLD}-compare-aaaaaa")
    (runs / name / "answer.json").write_bytes(data)
    found = list_runs(ListRunsArguments())
    assert [(row["id"], row["state"], row.get("verdict")) for row in found.runs] == [(name, "damaged", None)]
    assert not [call for call in found.next if call.tool == "first_difference"]


def test_an_answer_that_cannot_be_read_damages_only_its_own_row(runs):
    good = comparison(runs, f"{OLD}-compare-aaaaaa")
    (runs / f"{NEW}-compare-bbbbbb" / "answer.json").mkdir(parents=True)
    (runs / f"{NEW}-compare-cccccc").mkdir()
    (runs / f"{NEW}-compare-cccccc" / "answer.json").symlink_to("/nowhere")
    found = list_runs(ListRunsArguments())
    assert [row["state"] for row in found.runs] == ["damaged", "damaged", "succeeded"]
    assert found.next[0].arguments == {"comparison": good}


def test_what_is_no_folder_of_ours_is_left_out(runs, tmp_path):
    (runs / "file").touch()
    (runs / "notes").mkdir()
    (runs / ".hidden").mkdir()
    (runs / f"{OLD}-compare-aaaaaa").symlink_to(tmp_path)
    assert rows() == []


def test_names_that_lie_about_their_time_are_listed_all_the_same(runs):
    names = {comparison(runs, f"{stamp}-compare-aaaaaa") for stamp in ("99999999-999999", "00000000-000000", "20261301-000000")}
    assert {row["id"] for row in rows()} == names


def test_lists_are_cut_by_kind_state_and_case(runs, jobs, tmp_path):
    comparison(runs, "compare-000000000001", "identical")
    comparison(runs, f"{OLD}-compare-aaaaaa")
    run(runs, f"{OLD}-run-bbbbbb")
    jobs(JobFacts("compare-000000000001", "compare", "succeeded", 9e9), JobFacts("run-000000000002", "run_guarded", "running", 9.1e9))
    case, _ = open_or_resume(tmp_path, "x")
    note_job(case.id, "compare-000000000001")
    note_job(case.id, "run-000000000002")
    note_job(case.id, "run-00000000dead")
    assert [row["id"] for row in rows(case=case.id)] == ["run-000000000002", "compare-000000000001"]
    assert [row["id"] for row in rows(case=case.id, kind="compare")] == ["compare-000000000001"]
    assert [row["id"] for row in rows(state="running")] == ["run-000000000002"]
    assert [row["id"] for row in rows(kind="run")] == ["run-000000000002", f"{OLD}-run-bbbbbb"]
    assert list_runs(ListRunsArguments(state="lost")).summary == "Nothing stored is lost."
    with pytest.raises(CaseNotFound):
        rows(case="case-000000000000")


def test_the_next_call_is_what_runs_then_what_was_found_then_what_failed(runs, jobs):
    comparison(runs, "compare-000000000001")
    states = {"run-000000000002": "running", "run-000000000003": "lost", "compare-000000000001": "succeeded"}
    jobs(*(JobFacts(name, name.split("-")[0].replace("run", "run_guarded"), state, 1.0) for name, state in states.items()))
    assert [(call.tool, *call.arguments.values()) for call in list_runs(ListRunsArguments()).next] == [
        ("get_job", "run-000000000002", 45),
        ("first_difference", "compare-000000000001"),
    ]
    jobs(JobFacts("run-000000000003", "run_guarded", "lost", 1.0))
    assert [(call.tool, *call.arguments.values()) for call in list_runs(ListRunsArguments(kind="run")).next] == [
        ("get_job", "run-000000000003")
    ]


def test_pages_join_to_the_whole_list(runs):
    names = {comparison(runs, f"{day:08d}-000000-compare-aaaaaa") for day in range(20260101, 20260128)}
    found, cursor, pages = [], "", 0
    while pages == 0 or cursor:
        page = list_runs(ListRunsArguments(limit=5, cursor=cursor))
        found += [row["id"] for row in page.runs]
        cursor = page.truncated.cursor if page.truncated else ""
        pages += 1
    assert found == sorted(names, reverse=True)
    assert pages == 6


def test_a_page_goes_on_when_its_last_row_has_gone(runs):
    for day in (1, 2, 3):
        comparison(runs, f"2026010{day}-000000-compare-aaaaaa")
    first = list_runs(ListRunsArguments(limit=1))
    (runs / first.runs[0]["id"] / "answer.json").unlink()
    (runs / first.runs[0]["id"]).rmdir()
    assert [row["id"][:8] for row in rows(limit=1, cursor=first.truncated.cursor)] == ["20260102"]


@pytest.mark.parametrize("cursor", ["nope", "nan~x", "~x", "1.0", "x~1.0"])
def test_a_cursor_that_was_not_given_is_refused(runs, cursor):
    with pytest.raises(InvalidArguments, match="cursor"):
        list_runs(ListRunsArguments(cursor=cursor))


def test_two_thousand_runs_are_one_small_page_and_few_are_read(runs, jobs, monkeypatch):
    jobs(*(JobFacts(f"compare-{number:012x}", "compare", "succeeded", float(number)) for number in range(2_000)))
    for number in range(2_000):
        (runs / f"compare-{number:012x}").mkdir()
    comparison(runs, f"{NEW}-compare-aaaaaa")
    read = []
    from opguard_harness.workspace import listing as stored

    monkeypatch.setattr(stored, "_answer", lambda path: read.append(path) or {"verdict": "diverged", "mode": "full"})
    found = list_runs(ListRunsArguments())
    assert (found.truncated.shown, found.truncated.total) == (12, 2_001)
    assert len(read) <= 12
    assert len(json.dumps(found.runs)) <= 2_000


def test_the_largest_page_stays_below_the_limit_of_a_result(runs, jobs):
    jobs(*(JobFacts(f"run-{number:0100d}"[:120], "run_guarded", "cancelled", float(number)) for number in range(300)))
    found = list_runs(ListRunsArguments(limit=200))
    assert len(json.dumps(found.runs)) <= listing._LIST_CHARS
    assert found.truncated.shown == len(found.runs)
    again = list_runs(ListRunsArguments(limit=200, cursor=found.truncated.cursor))
    assert not {row["id"] for row in found.runs} & {row["id"] for row in again.runs}


def test_jobs_of_the_state_folder_are_rows(runs):
    assert entries(listing.known_jobs()) == []
