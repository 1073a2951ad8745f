"""How a job stands follows from its folder alone, whatever is missing or damaged there."""

import time
from dataclasses import replace

import pytest

from opguard_harness.access.rules import Access, using
from opguard_harness.config import HEARTBEAT_S, runs_dir
from opguard_harness.errors import JobDamaged, OutsideRoots
from opguard_harness.jobs import standing as standings
from opguard_harness.jobs.folder import jobs_dir
from opguard_harness.jobs.listing import listed
from opguard_harness.jobs.owner import Owner, boot_id
from opguard_harness.jobs.standing import now, standing
from opguard_harness.workspace.stored import answer_of
from tests.support.driving.world import store_comparison, write_side
from tests.support.job_folders import DEAD, JOB, make

ERROR = {"slug": "run", "text": "It failed.", "fix": "Repair it."}
ELSEWHERE = replace(Owner.ours(), host="elsewhere", boot="its-boot")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return make()


def beat(folder, boot, age_s):
    (folder.path / "heartbeat").write_text(f"{boot} {time.monotonic_ns() - int(age_s * 1e9)}".ljust(63) + "\n")


def test_one_that_is_being_started_is_queued(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    make(starter=Owner.ours())
    assert standing(JOB).state == "queued"


def test_one_whose_starter_was_killed_before_it_named_a_supervisor_is_lost(folder):
    assert standing(JOB).state == "lost"


def test_one_whose_starter_names_a_supervisor_and_ends_while_somebody_looks_is_not_lost(folder, monkeypatch):
    def named_meanwhile(owner):
        if owner == DEAD:
            folder.write_supervisor(Owner.ours())
        return owner.pid == Owner.ours().pid and owner != DEAD

    monkeypatch.setattr(Owner, "alive", named_meanwhile)
    assert standing(JOB).state == "queued"


def test_one_with_a_living_supervisor_runs(folder):
    folder.write_supervisor(Owner.ours())
    assert standing(JOB).state == "queued"  # it has not said anything yet
    folder.write_state({"phase": "suspect", "done": 3, "planned": 9, "waits": ""})
    found = standing(JOB)
    assert (found.state, found.phase, found.done, found.planned) == ("running", "suspect", 3, 9)


def test_one_that_waits_for_a_lease_is_queued_and_says_for_what(folder):
    folder.write_supervisor(Owner.ours())
    folder.write_state({"phase": "starting", "done": None, "planned": None, "waits": "a GPU, held by run-0123456789ab"})
    found = standing(JOB)
    assert (found.state, found.waits) == ("queued", "a GPU, held by run-0123456789ab")


@pytest.mark.parametrize(
    "owner", [DEAD, replace(Owner.ours(), boot="before")], ids=["its number is used again", "before a restart of the machine"]
)
def test_one_whose_supervisor_has_gone_is_lost_and_says_where_it_was(folder, owner):
    folder.write_supervisor(owner)
    folder.write_state({"phase": "suspect", "done": 3, "planned": 9, "waits": "", "at": now()})
    beat(folder, boot_id(), 0.0)  # just now, and still
    found = standing(JOB)
    assert (found.state, found.phase, found.done) == ("lost", "suspect", 3)


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ({"state": "succeeded", "result": {"summary": "s"}}, "succeeded"),
        ({"state": "failed", "error": ERROR, "summary": "A reason.", "next": []}, "failed"),
        ({"state": "cancelled"}, "cancelled"),
    ],
)
@pytest.mark.parametrize("owner", [DEAD, Owner.ours()], ids=["supervisor has ended", "supervisor is ending"])
def test_a_result_decides(folder, outcome, state, owner):
    folder.write_supervisor(owner)
    folder.write_outcome({**outcome, "ended": now()})
    found = standing(JOB)
    assert found.state == state
    assert found.error == outcome.get("error", {})
    assert found.finished


def test_a_damaged_result_decides_nothing(folder):
    folder.write_supervisor(Owner.ours())
    folder.write_state({"phase": "run", "waits": ""})
    (folder.path / "result.json").write_text('{"format": 1, "sta')
    assert standing(JOB).state == "running"
    folder.write_supervisor(DEAD)
    assert standing(JOB).state == "lost"


def test_damaged_progress_hides_no_state(folder):
    folder.write_supervisor(Owner.ours())
    (folder.path / "state.json").write_text("\0\0\0")
    assert standing(JOB).state == "queued"
    (folder.path / "state.json").write_text('{"format": 1, "phase": 7, "done": -1, "planned": "x", "waits": []}')
    found = standing(JOB)
    assert (found.state, found.phase, found.done, found.planned) == ("running", "", None, None)


def test_one_that_somebody_wanted_ended_and_that_is_gone_was_cancelled(folder):
    folder.write_supervisor(DEAD)
    folder.ask_to_end()
    assert standing(JOB).state == "cancelled"
    folder.write_supervisor(Owner.ours())
    assert standing(JOB).ending


@pytest.mark.parametrize(("age", "state"), [(0.0, "queued"), (2 * HEARTBEAT_S + 0.1, "lost")])
def test_a_damaged_name_of_the_supervisor_leaves_its_heartbeat(folder, age, state):
    (folder.path / "supervisor.json").write_text("{")
    beat(folder, boot_id(), age)
    assert standing(JOB).state == state


def test_one_that_lives_but_does_not_get_on_says_since_when(folder):
    folder.write_supervisor(Owner.ours())
    folder.write_state({"phase": "run", "waits": ""})
    beat(folder, boot_id(), 0.0)
    assert standing(JOB).silent_s == 0.0
    beat(folder, boot_id(), 100.0)
    found = standing(JOB)
    assert found.state == "running"  # a process that is there may go on at any time
    assert found.silent_s >= 100.0


def test_without_any_sign_of_life_a_damaged_name_is_nobody(folder):
    (folder.path / "supervisor.json").write_text("{")
    assert standing(JOB).state == "lost"


def test_a_supervisor_of_another_machine_is_judged_by_its_heartbeat(folder, monkeypatch):
    folder.write_supervisor(ELSEWHERE)
    assert standing(JOB).state == "lost"
    beat(folder, "its-boot", 0.0)
    assert standing(JOB).state == "queued"
    folder.write_state({"phase": "run", "waits": ""})
    assert standing(JOB).state == "running"
    monkeypatch.setattr(standings, "HEARTBEAT_S", 0.0)  # so that whatever was just written is older than two heartbeats
    assert standing(JOB).state == "lost"


def test_a_supervisor_of_another_container_has_time_to_come_up(folder):
    folder.write_supervisor(replace(Owner.ours(), space="a container"))
    beat(folder, boot_id(), 4 * HEARTBEAT_S)  # its starter's
    assert standing(JOB).state == "queued"
    folder.write_state({"phase": "run", "waits": ""})
    assert standing(JOB).state == "lost"


def test_a_whole_result_folder_is_a_success_that_nobody_announced(folder):
    folder.write_supervisor(DEAD)
    trace = runs_dir() / JOB / "trace" / "rank-00000"
    trace.mkdir(parents=True)
    (trace / "manifest.json").write_text("{}")
    found = standing(JOB)
    assert found.state == "succeeded"
    assert found.result["run"] == JOB


@pytest.mark.parametrize("kept", [f".{JOB}.partial-12-abcdef", f"{JOB}.failed", f"{JOB}.failed-2"])
def test_what_a_lost_one_has_left_is_named(folder, kept):
    folder.write_supervisor(DEAD)
    trace = runs_dir() / kept / "suspect" / "trace"
    (trace / "rank-00000").mkdir(parents=True)
    (trace / "rank-00000" / "manifest.json").write_text("{}")
    (runs_dir() / f".{JOB}-2.partial-1-ab" / "suspect").mkdir(parents=True)  # of another attempt
    assert standing(JOB).left == (trace,)


def test_nobody_can_tell_what_one_without_its_request_was(folder):
    (folder.path / "spec.json").unlink()
    with pytest.raises(JobDamaged):
        standing(JOB)


def test_the_list_has_all_of_them_newest_first_and_stumbles_over_none(folder):
    make("run-000000000000", created="2020-01-01T00:00:00.000000Z")
    make("run-000000000001").write_supervisor(Owner.ours())
    (jobs_dir() / "run-000000000002").mkdir()
    assert [(job.id, job.state) for job in listed()] == [
        ("run-000000000001", "queued"),
        (JOB, "lost"),
        ("run-000000000000", "lost"),
        ("run-000000000002", "damaged"),
    ]


def test_looking_changes_nothing(folder):
    folder.write_supervisor(DEAD)
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    standing(JOB)
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before


def test_a_whole_result_is_success_for_a_server_with_other_roots_too(folder, tmp_path):
    side = write_side(tmp_path / "program")
    store_comparison(JOB, str(side), str(side))
    (tmp_path / "elsewhere").mkdir()
    with using(Access(roots=(tmp_path / "elsewhere",))):
        found = standing(JOB)
        with pytest.raises(OutsideRoots):
            answer_of(JOB)
    assert (found.state, found.result["verdict"]) == ("succeeded", "identical")
