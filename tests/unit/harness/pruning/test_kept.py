"""What somebody relies on stays: what is at work, what it reads, and what cases rely on in whatever way. What cannot be read keeps all."""

import json
import os
import shutil

import pytest

from opguard_harness.access.opened import MARK, Opened
from opguard_harness.cli.app import dispatch
from opguard_harness.errors import CaseDamaged, PruneRefused
from opguard_harness.jobs.owner import Owner
from opguard_harness.tools.reports import WriteReportArguments, write_report
from opguard_harness.workspace.cases import note_job, open_or_resume, require_case
from opguard_harness.workspace.reporting.files import check_written
from tests.support.old_results import FIRST, FOURTH, SECOND, THIRD, aged, compared, ordered, prune, stored
from tests.support.stored_case import stored_case
from tests.unit.harness.test_listing import DEAD, run


@pytest.fixture
def old_run(state):
    run(state / "runs", SECOND, at=1)
    aged(state / "runs" / SECOND)
    return state / "runs" / SECOND / "trace"


def noted_in_a_case(tmp_path, *results):
    case = open_or_resume(tmp_path, "loss spikes")[0]
    for result in results:
        note_job(case.id, result)
    return case


# What is at work, and what it reads.


@pytest.mark.parametrize("named", ["its id", "its path", "its trace", "a link to its trace"])
@pytest.mark.parametrize("status", ["queued", "running"])
def test_what_a_job_reads_that_has_not_ended_stays(state, jobs, old_run, tmp_path, status, named):
    (tmp_path / "link").symlink_to(old_run)
    said = {"its id": SECOND, "its path": str(old_run.parent), "its trace": str(old_run), "a link to its trace": str(tmp_path / "link")}
    jobs(FIRST, status=status, reference=said[named], suspect="/elsewhere", nested=[{"more": "run-00000000000x"}])
    found = prune("--older-than", "0", "--yes")[0]
    assert found == {FIRST: f"it is {status}", SECOND: f"{FIRST} was asked for with it"}
    assert old_run.is_dir()


def test_what_a_comparison_from_the_shell_reads_stays_while_it_runs(state, old_run):
    partial = state / "runs" / f".20200101-000000-compare-aaaaaa.partial-{os.getpid()}-abcdef"
    partial.mkdir()
    (partial / "programs.json").write_text(
        json.dumps({"reference": {"kind": "trace", "trace": str(old_run)}, "suspect": {"kind": "program"}})
    )
    assert prune("--yes")[0][SECOND] == "20200101-000000-compare-aaaaaa compares it"
    partial.rename(partial.with_name(f".20200101-000000-compare-aaaaaa.partial-{DEAD}-abcdef"))
    aged(state / "runs")
    assert SECOND in prune("--yes")[1]["removed"]


@pytest.mark.parametrize("status", ["lost", "damaged", "cancelled"])
def test_what_programs_still_write_stays_though_nobody_answers_for_them(state, jobs, monkeypatch, status):
    from opguard_harness.pruning import survey

    jobs(FIRST, status=status)
    living = {FIRST}
    monkeypatch.setattr(survey, "processes_of", lambda job: living & {job})
    assert prune("--yes")[0] == {FIRST: "its programs still run; `cancel_job` ends them"}
    living.clear()
    assert prune("--yes")[1]["removed"] == [FIRST]


def test_a_job_that_nobody_can_read_stays_while_its_supervisor_lives(state, jobs, monkeypatch):
    jobs(FIRST, status="damaged")
    folder = state / "jobs" / FIRST
    (folder / "spec.json").write_text('{"format": 2}')
    (folder / "supervisor.json").write_text(json.dumps(Owner.ours().as_dict()))
    (folder / "supervisor.json").chmod(0o600)
    aged(folder)
    with pytest.raises(PruneRefused, match="what it was made from"):
        prune("--yes")
    (folder / "spec.json").write_bytes(ordered(state, "compare-0000000000aa").joinpath("spec.json").read_bytes())
    (folder / "spec.json").chmod(0o600)
    aged(folder)
    assert prune("--yes")[0][FIRST] == "its supervisor is at work"


# What cases rely on.


def test_what_the_report_of_a_case_is_about_stays(state, tmp_path):
    compared(state, FIRST)
    case = noted_in_a_case(tmp_path)
    (case.folder / "report.json").write_text(json.dumps({"comparison": {"id": FIRST}}))
    assert prune("--yes")[0] == {FIRST: f"the report of {case.id} is about it"}


def test_what_a_case_started_stays_though_its_note_was_never_written(state, jobs, tmp_path):
    case = noted_in_a_case(tmp_path)
    jobs(FIRST, case=case.id)
    jobs(FOURTH, case="case-00000000000a")
    assert prune("--yes")[0] == {FIRST: f"{case.id} started it", FOURTH: ""}


def test_the_traces_of_what_came_out_of_a_pack_stay_where_they_lie_here(state, old_run, tmp_path):
    compared(state, FIRST, reference="/colleague/runs/a/trace", suspect="/colleague/runs/b/trace")
    mark = Opened("p" * 64, "case-0123456789ab", "case-0123456789ab", False, {"reference": f"runs/{SECOND}/trace"}, False, 0)
    (state / "runs" / FIRST / MARK).write_text(json.dumps(mark.as_dict()))
    aged(state / "runs")
    noted_in_a_case(tmp_path, FIRST)
    assert prune("--yes")[0][SECOND] == f"{FIRST} compares it"
    (state / "runs" / FIRST / MARK).write_text("{")
    with pytest.raises(PruneRefused, match="not the mark"):
        prune("--yes")


def test_what_the_filters_of_a_kept_comparison_cite_stays(state, old_run, tmp_path):
    compared(state, FIRST, filters=[{"id": "f1", "hits": 1, "evidence": [f"{old_run}#rank=0&seq=7"]}])
    noted_in_a_case(tmp_path, FIRST)
    assert prune("--yes")[0][SECOND] == f"{FIRST} is filtered by a rule that cites it"


# What cannot be read.


def _linked(case, tmp_path):
    case.folder.rename(tmp_path / "moved")
    case.folder.symlink_to(tmp_path / "moved")


def _unmounted(case, tmp_path):
    case.folder.parent.rename(tmp_path / "moved")
    case.folder.parent.symlink_to(tmp_path / "not-there")


def _without_its_file(case, tmp_path):
    (case.folder / "findings.json").write_text("{}")
    (case.folder / "case.json").unlink()


def _a_file(case, tmp_path):
    case.folder.rename(tmp_path / "moved")
    case.folder.write_text("")


@pytest.mark.parametrize("harm", [_linked, _unmounted, _without_its_file, _a_file])
def test_a_case_that_cannot_be_seen_keeps_everything(state, tmp_path, harm):
    compared(state, FIRST)
    harm(noted_in_a_case(tmp_path, FIRST), tmp_path)
    with pytest.raises(CaseDamaged, match="nothing is removed"):
        prune("--yes")
    assert stored(state) == [FIRST]


def test_a_folder_of_cases_that_may_not_be_listed_keeps_everything(state, tmp_path, monkeypatch):
    from pathlib import Path

    compared(state, FIRST)
    case = noted_in_a_case(tmp_path, FIRST)
    listing = Path.iterdir

    def refused(path):
        if path == case.folder:
            raise PermissionError(13, "Permission denied")
        return listing(path)

    monkeypatch.setattr(Path, "iterdir", refused)  # the suite may run as root, whom no mode refuses
    with pytest.raises(CaseDamaged, match="Permission denied"):
        prune("--yes")
    assert stored(state) == [FIRST]


def test_what_a_kill_left_of_a_case_that_was_never_written_keeps_nothing(state):
    compared(state, FIRST)
    (state / "cases" / "case-0123456789ab").mkdir(parents=True)
    (state / "cases" / "case-0123456789ab" / ".case.json.lock").write_text("")
    assert prune("--yes")[1]["removed"] == [FIRST]


def test_a_result_that_stays_and_says_no_more_what_it_compared_keeps_everything(state, old_run, tmp_path):
    compared(state, FIRST, reference=old_run)
    case = noted_in_a_case(tmp_path, FIRST)
    (state / "runs" / FIRST / "answer.json").write_text("{")
    with pytest.raises(PruneRefused, match="its answer is damaged"):
        prune("--yes")
    (case.folder / "case.json").unlink()  # a damaged one that nobody relies on is old like any other
    aged(state / "runs")
    assert sorted(prune("--yes")[1]["removed"]) == [FIRST, SECOND]


def test_a_replay_whose_result_is_damaged_keeps_what_it_was_asked_for_with(state, jobs, tmp_path):
    compared(state, FIRST)
    jobs(THIRD, tool="confirm_difference", comparison=FIRST)
    (state / "jobs" / THIRD / "result.json").write_text("{")
    noted_in_a_case(tmp_path, THIRD)
    assert prune("--yes")[0][FIRST] == f"{THIRD} was asked for with it"
    compared(state, THIRD)
    (state / "jobs" / THIRD).rename(tmp_path / "moved")
    with pytest.raises(PruneRefused, match="its job is gone"):
        prune("--yes")


def test_a_text_that_is_no_path_leads_nowhere(state, tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    compared(state, FIRST, reference=str(loop / "trace"), suspect="a\0b")
    compared(state, FOURTH, reference="\ud800", suspect="/")
    noted_in_a_case(tmp_path, FIRST, FOURTH)
    assert len(prune("--yes")[0]) == 2


def test_a_folder_of_the_users_own_is_no_result(state):
    (state / "runs" / "20200101-000000-my-notes").mkdir()
    aged(state / "runs" / "20200101-000000-my-notes")
    assert prune("--yes")[0] == {}
    assert stored(state) == ["20200101-000000-my-notes"]


def test_what_may_not_be_looked_at_stays_and_the_rest_goes(state, monkeypatch):
    from opguard_harness.pruning import survey

    for name in (FIRST, FOURTH):
        compared(state, name)
    measure = survey.held_bytes

    def refused(folder):
        if folder.name == FIRST:
            raise PermissionError(13, "Permission denied")
        return measure(folder)

    monkeypatch.setattr(survey, "held_bytes", refused)
    found = prune("--yes")
    assert found[0][FIRST] == "it may not be looked at: Permission denied"
    assert found[1]["removed"] == [FOURTH]


def test_a_year_that_no_date_has_ends_nothing(state, jobs, monkeypatch):
    from opguard_harness.tools import listing
    from opguard_harness.workspace.listing import JobFacts

    monkeypatch.setattr(listing, "known_jobs", lambda: [JobFacts(FIRST, "compare", "succeeded", 253402300800.0)])
    assert FIRST in dispatch(["prune"]).text


def test_a_report_that_lies_elsewhere_relies_on_its_comparison_through_its_case(state, tmp_path):
    made = stored_case(tmp_path / "programs")
    other = open_or_resume(tmp_path / "programs", "another symptom", another=True)[0]
    write_report(WriteReportArguments(other.id, comparison=made.comparison), tmp_path / "for-review")
    shutil.rmtree(made.case.folder)
    aged(state / "runs")
    assert prune("--yes")[0] == {made.comparison: f"{other.id} notes it"}
    assert check_written(require_case(other.id), tmp_path / "for-review")["comparison"]["id"] == made.comparison
