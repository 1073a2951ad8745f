"""Cases on disk: found by their root, one for all servers, whole or untouched, and never lost."""

import json
import multiprocessing
import stat

import pytest

from opguard_harness.errors import CaseDamaged, CaseNotFound
from opguard_harness.tools.recording import recording
from opguard_harness.workspace import cases
from opguard_harness.workspace.cases import all_cases, case_folder, note_job, open_or_resume, require_case


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "opguard" / "cases"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "program").mkdir()
    return tmp_path / "program"


def test_a_root_resumes_its_newest_case(root):
    first, resumed = open_or_resume(root, "loss is off")
    assert not resumed
    assert open_or_resume(root, "said in other words") == (first, True)
    second, resumed = open_or_resume(root, "something else", another=True)
    assert not resumed
    assert second.id != first.id
    assert open_or_resume(root, "") == (second, True)
    assert open_or_resume(root, "loss is off", another=True) == (first, True)


def test_a_result_that_two_cases_note_is_recorded_in_the_newer_one(root):
    first, second = (open_or_resume(root, symptom, another=True)[0] for symptom in ("loss is off", "something else"))
    for case in (second, first):
        note_job(case.id, "compare-1")
    (call,) = recording("compare-1", "It is `so`.", ["job:compare-1/answer"])
    assert (call.tool, call.arguments["case"]) == ("record_finding", second.id)
    (call,) = recording("compare-2", "It is `so`.", ["job:compare-2/answer"])
    assert call.tool == "open_case"


def test_one_folder_has_one_name(root, tmp_path):
    (tmp_path / "link").symlink_to(root)
    first, _ = open_or_resume(root, "x")
    assert open_or_resume(tmp_path / "link", "y") == (first, True)
    assert first.root == root.resolve()


def test_what_is_stored_is_private_and_ascii(root, state):
    case, _ = open_or_resume(root, "\x1b[31m \N{SNOWMAN} \udcff \u202e")
    path = case.folder / "case.json"
    assert path.read_bytes().isascii()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (case.folder, state)] == [0o700, 0o700]
    assert require_case(case.id) == case


def test_a_symptom_is_capped(root):
    case, _ = open_or_resume(root, "x" * 100_000)
    assert len(require_case(case.id).symptom) == cases.SYMPTOM_CHARS


def test_jobs_are_noted_once_in_their_order(root):
    case, _ = open_or_resume(root, "x")
    for job in ("compare-000000000001", "run-000000000002", "compare-000000000001"):
        note_job(case.id, job)
    assert [item.job for item in require_case(case.id).jobs] == ["compare-000000000001", "run-000000000002"]


def test_no_case_notes_nothing(state):
    note_job("", "compare-000000000001")
    assert not state.exists()


@pytest.mark.parametrize("name", ["", "nope", "case-000000000000", "../cases", "case-00000000000g", "case-000000000000/..", "case-0\n"])
def test_an_unknown_case_is_an_error_that_names_the_newest(root, name):
    case, _ = open_or_resume(root, "x")
    with pytest.raises(CaseNotFound, match=case.id) as caught:
        require_case(name)
    assert caught.value.facts["next"][0].arguments == {"case": case.id}


def test_the_closest_case_is_offered(root):
    case, _ = open_or_resume(root, "x")
    for number in range(3):
        open_or_resume(root, f"other {number}", another=True)
    with pytest.raises(CaseNotFound) as caught:
        require_case(case.id[:-1])
    assert caught.value.facts["next"][0].arguments == {"case": case.id}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda told: b"{", "not JSON"),
        (lambda told: b"[]", "no object"),
        (lambda told: b"\xff", "not JSON"),
        (lambda told: b"[" * 100_000, "not JSON"),
        (lambda told: {**told, "format": 2}, "this release reads 1"),
        (lambda told: {**told, "format": True}, "has format True"),
        (lambda told: {**told, "more": 1}, "has keys"),
        (lambda told: {key: value for key, value in told.items() if key != "root"}, "has keys"),
        (lambda told: {**told, "symptom": 3}, "symptom is int"),
        (lambda told: {**told, "id": "case-000000000000"}, "is not the file of"),
        (lambda told: {**told, "root": "relative"}, "is not the file of"),
        (lambda told: {**told, "jobs": [3]}, "no note of a job"),
        (lambda told: {**told, "jobs": [{"job": "../../x", "noted": ""}]}, "no note of a job"),
        (lambda told: json.dumps(told).encode()[:-1] + b', "root": "/x"}', "has 'root' twice"),
        (lambda told: b" " * (cases.MAX_BYTES + 1), "too large"),
    ],
)
def test_a_damaged_file_is_a_clear_error_and_stays_as_it_is(root, change, said):
    case, _ = open_or_resume(root, "x")
    path = case.folder / "case.json"
    changed = change(json.loads(path.read_text()))
    data = changed if isinstance(changed, bytes) else json.dumps(changed).encode()
    path.write_bytes(data)
    for attempt in (lambda: require_case(case.id), lambda: note_job(case.id, "compare-1"), lambda: open_or_resume(root, "x")):
        with pytest.raises(CaseDamaged, match=said):
            attempt()
    assert path.read_bytes() == data
    assert all_cases() == ([], [case.id])
    other, resumed = open_or_resume(root, "another symptom")
    assert not resumed
    assert all_cases() == ([other], [case.id])


def test_a_link_in_the_place_of_a_case_is_not_followed(root, tmp_path):
    case, _ = open_or_resume(root, "x")
    path = case.folder / "case.json"
    path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(CaseDamaged):
        require_case(case.id)


def test_a_write_that_fails_leaves_the_old_file(root, monkeypatch):
    case, _ = open_or_resume(root, "x")
    note_job(case.id, "compare-1")
    before = (case.folder / "case.json").read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("opguard_core.trace.files.os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            note_job(case.id, "compare-2")
    assert (case.folder / "case.json").read_bytes() == before
    note_job(case.id, "compare-3")
    assert [item.job for item in require_case(case.id).jobs] == ["compare-1", "compare-3"]


def _note_many(case, prefix):
    for number in range(25):
        note_job(case, f"{prefix}-{number}")


def test_two_servers_lose_nothing(root):
    case, _ = open_or_resume(root, "x")
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_note_many, args=(case.id, prefix)) for prefix in ("compare", "run")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert {item.job for item in require_case(case.id).jobs} == {f"{prefix}-{n}" for prefix in ("compare", "run") for n in range(25)}


def _open(root, symptom, queue):
    queue.put(open_or_resume(root, symptom)[0].id)


def test_two_servers_open_one_case(root):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    openers = [context.Process(target=_open, args=(root, f"symptom {number}", queue)) for number in range(4)]
    for opener in openers:
        opener.start()
    opened = {queue.get(timeout=60) for _ in openers}
    for opener in openers:
        opener.join()
    assert opened == {case.id for case in all_cases()[0]}
    assert len(opened) == 1


def test_a_case_of_two_thousand_jobs_is_read_and_noted_in(root):
    case, _ = open_or_resume(root, "x")
    path = case_folder(case.id) / "case.json"
    told = json.loads(path.read_text())
    told["jobs"] = [{"job": f"compare-{number:012x}", "noted": case.created} for number in range(2_000)]
    path.write_text(json.dumps(told))
    note_job(case.id, "run-1")
    assert len(require_case(case.id).jobs) == 2_001


def test_a_case_takes_no_more_jobs_than_it_can_hold(root, monkeypatch):
    monkeypatch.setattr(cases, "MAX_JOBS", 2)
    case, _ = open_or_resume(root, "x")
    note_job(case.id, "compare-1")
    note_job(case.id, "compare-2")
    with pytest.raises(CaseDamaged, match="2 jobs already"):
        note_job(case.id, "compare-3")
