"""A removal takes a result whole or not at all, whatever happens meanwhile."""

import shutil
import threading
from pathlib import Path

import pytest

from opguard_harness.cli.app import dispatch
from opguard_harness.pruning import removal
from opguard_harness.workspace.cases import note_job, open_or_resume
from opguard_harness.workspace.documents import locked
from tests.support.old_results import FIRST, FOURTH, SECOND, compared, prune, stored
from tests.unit.harness.test_listing import run


def refusing(monkeypatch, folder, name, wanted):
    """Renaming one folder is refused."""
    rename = Path.rename

    def refused(path, target):
        if path == folder / name and wanted(target):
            raise PermissionError(1, "Operation not permitted")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refused)


@pytest.mark.parametrize("part", ["runs", "jobs"])
def test_of_a_result_that_cannot_go_as_a_whole_nothing_goes(state, jobs, monkeypatch, part):
    jobs(FIRST)
    compared(state, FIRST)
    refusing(monkeypatch, state / part, FIRST, lambda target: True)
    done = dispatch(["prune", "--yes"])
    assert done.failed and f"could not be removed: {FIRST}: Operation not permitted" in done.text
    assert stored(state) == [FIRST, FIRST]


def test_killed_between_two_folders_it_leaves_no_job_without_its_result(state, jobs, monkeypatch):
    jobs(FIRST)
    compared(state, FIRST)
    rename = Path.rename

    def killed(path, target):
        rename(path, target)
        raise KeyboardInterrupt  # not caught, as a kill is not

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            prune("--yes")
    assert (state / "runs" / FIRST).is_dir() and not (state / "jobs" / FIRST).exists()


@pytest.mark.parametrize("about", ["it", "what was made from it"])
def test_what_is_noted_while_it_goes_is_put_back_with_what_it_rests_on(state, monkeypatch, tmp_path, about):
    run(state / "runs", SECOND, at=1)
    compared(state, FIRST, reference=str(state / "runs" / SECOND / "trace"))
    case = open_or_resume(tmp_path, "loss spikes")[0].id
    look = removal.relied_on

    def noting(*told):
        note_job(case, SECOND if about == "it" else FIRST)
        return look(*told)

    monkeypatch.setattr(removal, "relied_on", noting)
    found = prune("--yes")[0]
    assert found[SECOND] == (f"{case} notes it" if about == "it" else f"{FIRST} compares it")
    assert stored(state) == ([SECOND] if about == "it" else [FIRST, SECOND])


def test_what_became_relied_on_since_it_was_measured_stays(state, monkeypatch, tmp_path):
    compared(state, FIRST)
    case = open_or_resume(tmp_path, "loss spikes")[0].id
    look = removal.rooms
    monkeypatch.setattr(removal, "rooms", lambda *told: (note_job(case, FIRST), look(*told))[1])
    assert prune("--yes")[0] == {FIRST: f"{case} notes it"}


@pytest.mark.parametrize("error", [PermissionError(1, "Operation not permitted"), RecursionError()])
def test_what_could_not_be_deleted_is_not_said_to_be_removed(state, monkeypatch, error):
    compared(state, FIRST)
    compared(state, FOURTH)
    delete = shutil.rmtree

    def refused(path):
        if FIRST in path.name:
            raise error
        delete(path)

    with monkeypatch.context() as patch:
        patch.setattr(removal.shutil, "rmtree", refused)
        found = prune("--yes")[1]
    assert found["removed"] == [FOURTH]
    assert len(found["failed"]) == 1 and f"{FIRST}: " in found["failed"][0] and ".removed-" in found["failed"][0]
    said = dispatch(["prune"]).text
    assert said.endswith("that an earlier removal left would go; --yes removes them")
    prune("--yes")
    assert stored(state) == []


def test_two_removals_at_once_do_not_meet(state, monkeypatch):
    compared(state, FIRST)
    inside, go_on = threading.Event(), threading.Event()
    delete = shutil.rmtree

    def slow(path):
        inside.set()
        assert go_on.wait(30)
        delete(path)

    monkeypatch.setattr(removal.shutil, "rmtree", slow)
    found = []
    threads = [threading.Thread(target=lambda: found.append(prune("--yes")[1])) for _ in range(2)]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert [one["failed"] for one in found] == [[], []]
    assert sorted(len(one["removed"]) for one in found) == [0, 1]


def test_jobs_may_be_started_while_folders_are_measured_and_deleted(state, monkeypatch):
    compared(state, FIRST)
    measure, delete = removal.survey, shutil.rmtree

    def free(told):
        with locked(state / "jobs" / "jobs"):
            return told()

    (state / "jobs").mkdir(mode=0o700)
    monkeypatch.setattr("opguard_harness.workspace.documents.LOCK_S", 0.0)
    monkeypatch.setattr(removal, "survey", lambda *told: free(lambda: measure(*told)))
    monkeypatch.setattr(removal.shutil, "rmtree", lambda path: free(lambda: delete(path)))
    assert prune("--yes")[1]["removed"] == [FIRST]
