"""Old results go when nobody relies on them; whatever somebody relies on stays, and an interrupt leaves nothing half."""

import json
import os
import threading
from pathlib import Path

import pytest

from opguard_harness.__main__ import main
from opguard_harness.cli.app import dispatch
from opguard_harness.errors import CaseDamaged, FiltersDamaged
from opguard_harness.pruning import removal
from opguard_harness.tools import listing
from opguard_harness.workspace import findings
from opguard_harness.workspace.cases import note_job, open_or_resume
from opguard_harness.workspace.documents import locked
from opguard_harness.workspace.evidence import digest_of
from opguard_harness.workspace.findings import Cited, finding_of
from tests.support.old_results import FIRST, SECOND, THIRD, compared, prune, stored
from tests.support.synthetic import GptShape, gpt, write_run
from tests.unit.harness.test_listing import DEAD, run

OLD = "20200101-000000"


def replay(state, jobs, name, about):
    jobs(name, tool="confirm_difference")
    (state / "jobs" / name / "result.json").write_text(json.dumps({"result": {"confirms": about}}))
    os.utime(state / "jobs" / name, (1, 1))


def test_nothing_is_touched_without_yes_and_then_it_is_gone(state):
    run(state / "runs", f"{OLD}-run-aaaaaa", at=1)
    (state / "runs" / f"{OLD}-run-aaaaaa" / "more").write_bytes(bytes(3 << 20))
    os.utime(state / "runs" / f"{OLD}-run-aaaaaa", (1, 1))
    shown = dispatch(["prune"])
    assert "3.0 MiB  would go" in shown.text and "--yes removes them" in shown.text and not shown.failed
    assert stored(state) == [f"{OLD}-run-aaaaaa"]
    done = dispatch(["prune", "--yes"])
    assert done.text.endswith("removed 1 of 1 results, 3.0 MiB")
    assert stored(state) == []
    assert dispatch(["prune"]).text == "nothing would go"


def test_what_is_young_stays(state):
    compared(state, FIRST)
    os.utime(state / "runs" / FIRST)
    assert prune("--yes")[0] == {FIRST: "it is younger than 30 days"}
    assert prune("--older-than", "0", "--yes")[1]["removed"] == [FIRST]


@pytest.mark.parametrize("days", ["nan", "inf", "-1"])
def test_days_are_a_number_of_at_least_nothing(state, days, capsys):
    compared(state, FIRST)
    assert main(["prune", "--older-than", days, "--yes"]) == 2
    assert "--older-than" in capsys.readouterr().err
    assert stored(state) == [FIRST]


@pytest.mark.parametrize("status", ["queued", "running"])
def test_what_is_not_finished_stays_however_old(state, jobs, status):
    jobs(FIRST, status=status)
    assert prune("--older-than", "0", "--yes")[0] == {FIRST: f"it is {status}"}
    assert stored(state) == [FIRST]


def test_the_unfinished_run_of_a_living_process_stays_and_that_of_a_dead_one_goes(state):
    for pid in (os.getpid(), DEAD):
        folder = state / "runs" / f".{OLD}-run-{pid:06x}.partial-{pid}-abcdef"
        folder.mkdir()
        os.utime(folder, (1, 1))
    prune("--yes")
    assert stored(state) == [f".{OLD}-run-{os.getpid():06x}.partial-{os.getpid()}-abcdef"]


def test_what_somebody_writes_to_stays_though_its_process_is_not_here(state):
    folder = state / "runs" / f".{OLD}-run-aaaaaa.partial-{DEAD}-abcdef"
    (folder / "reference").mkdir(parents=True)
    (folder / "reference" / "stdout.txt").write_text("step 7")
    os.utime(folder / "reference", (1, 1))
    os.utime(folder, (1, 1))
    assert list(prune("--older-than", "0", "--yes")[0].values()) == ["it was written to within a day"]
    os.utime(folder / "reference" / "stdout.txt", (1, 1))
    prune("--yes")
    assert stored(state) == []


def test_a_job_goes_with_all_that_it_left(state, jobs):
    jobs(FIRST, status="failed")
    for name in (f"{FIRST}.failed", f"{FIRST}.failed-2", f".{FIRST}.partial-{DEAD}-abcdef"):
        (state / "runs" / name).mkdir()
        os.utime(state / "runs" / name, (1, 1))
    found = prune("--yes")[1]
    assert found["removed"] == [FIRST] and stored(state) == []


def test_what_a_case_notes_stays(state, jobs, tmp_path):
    jobs(FIRST, SECOND)
    case = open_or_resume(tmp_path, "loss spikes")[0].id
    note_job(case, FIRST)
    assert prune("--yes")[0] == {FIRST: f"{case} notes it", SECOND: ""}
    assert stored(state) == [FIRST]


@pytest.mark.parametrize("form", ["job:{holder}/log", "ev:{digest}/0/7/out.0", "src:{source}:1-2"])
def test_what_a_finding_cites_stays(state, tmp_path, form):
    trace = state / "runs" / SECOND / "trace"
    write_run(trace, gpt(GptShape(layers=1, steps=1)))
    os.utime(state / "runs" / SECOND, (1, 1))
    source = next((trace / "sources").iterdir()).name
    cited = form.format(holder=SECOND, digest=digest_of(trace)[:12], source=f"{source[:12]}/train.py")
    case = open_or_resume(tmp_path, "loss spikes")[0].id
    findings.record(case, finding_of("It said so.", "observed", (Cited(cited, f"opguard://evidence/{cited}", "said", "0" * 64),)))
    assert prune("--yes")[0] == {SECOND: f"a finding of {case} cites it"}


@pytest.mark.parametrize("owner", ["own", "case"])
def test_what_a_filter_cites_stays(state, tmp_path, owner):
    trace = state / "runs" / SECOND / "trace"
    write_run(trace, gpt(GptShape(layers=1, steps=1)))
    os.utime(state / "runs" / SECOND, (1, 1))
    case = open_or_resume(tmp_path, "loss spikes")[0].id
    where = {"file": "train.py", "text": "empty(3)", "function": "main"}
    evidence = [f"{trace}#rank=0&seq=7", "suspect:0:7"]  # the second form names no trace
    rule = {"id": "filter-1", "operator": "aten.empty.memory_format", "slot": "out.0", "reference": where, "suspect": where}
    rule |= {"reason": "scratch", "evidence": evidence, "created": "2020-01-01T00:00:00.000000Z", "author": ""}
    path = state / "filters.json" if owner == "own" else state / "cases" / case / "filters.json"
    path.write_text(json.dumps({"format": 1, "filters": [rule]}))
    path.chmod(0o600)
    assert prune("--yes")[0] == {SECOND: "the filter filter-1 cites it"}
    path.unlink()
    assert prune("--yes")[1]["removed"] == [SECOND]


def test_runs_stay_while_a_comparison_of_them_does_and_go_with_it(state, jobs):
    for name in (SECOND, "run-000000000009"):
        run(state / "runs", name, at=1)
    compared(state, FIRST, reference=str(state / "runs" / SECOND / "trace"), suspect=str(state / "runs" / "run-000000000009"))
    os.utime(state / "runs" / FIRST)
    found = prune("--yes")[0]
    assert found == {FIRST: "it is younger than 30 days", SECOND: f"{FIRST} compares it", "run-000000000009": f"{FIRST} compares it"}
    os.utime(state / "runs" / FIRST, (1, 1))
    assert sorted(prune("--yes")[1]["removed"]) == sorted(found)


def test_a_replay_and_what_it_is_about_stay_together(state, jobs, tmp_path):
    compared(state, FIRST)
    compared(state, "compare-000000000008")
    replay(state, jobs, THIRD, FIRST)
    replay(state, jobs, "confirm-000000000007", str(state / "runs" / "compare-000000000008"))
    case = open_or_resume(tmp_path, "loss spikes")[0].id
    note_job(case, FIRST)
    note_job(case, "confirm-000000000007")
    found = prune("--yes")[0]
    assert (found[THIRD], found["compare-000000000008"]) == (f"it replays {FIRST}", "confirm-000000000007 replays it")
    assert len(stored(state)) == 4


def test_nothing_goes_while_nobody_can_say_what_a_case_or_a_filter_relies_on(state, tmp_path):
    compared(state, FIRST)
    case = open_or_resume(tmp_path, "loss spikes")[0]
    (case.folder / "case.json").write_text("{")
    with pytest.raises(CaseDamaged, match="nothing is removed"):
        prune("--yes")
    (case.folder / "case.json").unlink()
    (state / "filters.json").write_text("{")
    with pytest.raises(FiltersDamaged):
        prune("--yes")
    assert stored(state) == [FIRST]


def test_what_an_interrupt_leaves_is_no_result_and_goes_the_next_time(state, jobs, monkeypatch):
    jobs(FIRST)
    compared(state, FIRST)
    with monkeypatch.context() as patch:
        patch.setattr(removal.shutil, "rmtree", lambda path: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            prune("--yes")
    monkeypatch.setattr(listing, "known_jobs", list)
    assert len(stored(state)) == 2
    assert prune()[0] == {} and prune()[1]["left_bytes"] > 0
    prune("--yes")
    assert stored(state) == []


def test_what_cannot_be_removed_is_said_and_the_rest_goes(state, monkeypatch):
    compared(state, FIRST)
    compared(state, "compare-000000000008")
    rename = Path.rename

    def refuse(path, target):
        if path.name == FIRST:
            raise PermissionError(1, "Operation not permitted")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    done = dispatch(["prune", "--yes"])
    assert done.failed and f"could not be removed: {FIRST}: Operation not permitted" in done.text
    assert stored(state) == [FIRST]


def test_links_are_neither_followed_nor_counted_nor_removed(state, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "model.pt").write_bytes(bytes(1 << 20))
    compared(state, FIRST)
    (state / "runs" / FIRST / "data").symlink_to(outside)
    (state / "runs" / "compare-000000000008").symlink_to(outside)
    os.utime(state / "runs" / FIRST, (1, 1))
    found = prune("--yes")[1]
    assert [(row["id"], row["bytes"] < 1 << 19) for row in found["results"]] == [(FIRST, True)]
    assert (outside / "model.pt").exists() and (state / "runs" / "compare-000000000008").is_symlink()


def test_no_job_is_started_between_the_look_and_the_removal(state, jobs):
    jobs(FIRST)
    done = threading.Event()
    with locked(state / "jobs" / "jobs"):  # as `find_or_start` holds it
        thread = threading.Thread(target=lambda: (prune("--yes"), done.set()))
        thread.start()
        assert not done.wait(0.2) and stored(state) == [FIRST]
    thread.join()
    assert stored(state) == []
