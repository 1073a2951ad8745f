"""Asking twice is the same job; another request, or another program, is another one."""

import subprocess
from dataclasses import replace

import pytest

from opguard_harness.errors import CommitNotFound
from opguard_harness.jobs import sources
from opguard_harness.jobs.naming import base_id, request_of, settled, sources_of
from opguard_harness.tools.compare import TOOLS, CompareArguments
from tests.support.fake_jobs import PLAIN, PlainArguments


@pytest.fixture
def program(tmp_path):
    folder = tmp_path / "program"
    (folder / "package").mkdir(parents=True)
    (folder / "train.py").write_text("a = 1")
    (folder / "package" / "model.py").write_text("b = 1")
    (folder / "settings.json").write_text("{}")
    return folder


def asked(program, **changes) -> PlainArguments:
    return replace(PlainArguments("done", folder=str(program)), **changes)


def test_the_same_call_has_the_same_id(program):
    ids = {base_id(PLAIN, request_of(PLAIN, asked(program)), sources_of(PLAIN, asked(program))) for _ in range(2)}
    assert len(ids) == 1
    assert ids.pop().startswith("plain-work-")


def test_where_a_job_is_noted_does_not_make_it_another_one(program):
    assert request_of(PLAIN, asked(program)) == request_of(PLAIN, asked(program, case="case-0123456789ab"))


@pytest.mark.parametrize("change", [{"do": "else"}, {"words": ["a"]}, {"env": ["A=1"]}, {"token": "again"}])
def test_anything_else_that_is_asked_for_does(program, change):
    assert request_of(PLAIN, asked(program)) != request_of(PLAIN, asked(program, **change))


def test_a_token_is_not_taken_for_another_argument(program):
    assert request_of(PLAIN, asked(program, words=["a"])) != request_of(PLAIN, asked(program, token="a"))


@pytest.mark.parametrize("name", ["train.py", "package/model.py", "settings.yaml"])
def test_an_edit_of_the_code_is_seen(program, name):
    before = sources_of(PLAIN, asked(program))
    (program / name).write_text("edited")
    after = sources_of(PLAIN, asked(program))
    assert after.code != before.code
    assert after.settings == before.settings


def test_settings_are_told_apart_from_code(program):
    before = sources_of(PLAIN, asked(program))
    (program / "settings.json").write_text("[]")
    after = sources_of(PLAIN, asked(program))
    assert after.code == before.code
    assert after.settings != before.settings


def test_what_a_program_leaves_is_not_its_source(program):
    before = sources_of(PLAIN, asked(program))
    (program / "checkpoint.pt").write_bytes(b"1")
    (program / "out.txt").write_text("1")
    (program / "__pycache__").mkdir()
    (program / "__pycache__" / "train.py").write_text("1")
    assert sources_of(PLAIN, asked(program)) == before


def test_a_renamed_file_is_an_edit(program):
    before = sources_of(PLAIN, asked(program))
    (program / "train.py").rename(program / "train2.py")
    assert sources_of(PLAIN, asked(program)).code != before.code


def test_a_file_that_is_named_counts_by_its_content(tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text("1")
    before = sources.digest_of([str(plan)])
    plan.write_text("2")
    assert sources.digest_of([str(plan)]) != before


def test_what_is_not_there_has_a_digest_of_its_own(tmp_path):
    assert sources.digest_of([str(tmp_path / "a")]) != sources.digest_of([str(tmp_path / "b")])
    assert sources.digest_of([""]) != sources.digest_of([])


def test_data_in_great_number_hides_no_edit(program, monkeypatch):
    monkeypatch.setattr(sources, "MAX_ENTRIES", 8)
    (program / "data").mkdir()
    for number in range(20):
        (program / "data" / f"{number}.png").touch()
    before = sources_of(PLAIN, asked(program))
    (program / "package" / "model.py").write_text("edited")
    assert sources_of(PLAIN, asked(program)).code != before.code


def test_a_commit_is_meant_by_its_id_and_not_by_a_name_that_moves(program):
    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", "-C", program, *who, *words], check=True, capture_output=True, text=True).stdout.strip()

    (compare,) = TOOLS
    arguments = CompareArguments(str(program), str(program / "train.py"), reference_commit="HEAD")
    git("init", "-q")
    requests = []
    for message in ("first", "second"):
        git("commit", "-q", "--allow-empty", "-m", message)
        found = settled(compare, arguments)
        assert found == replace(arguments, reference_commit=git("rev-parse", "HEAD"))
        requests.append(request_of(compare, found))
    assert requests[0] != requests[1]
    with pytest.raises(CommitNotFound):
        settled(compare, replace(arguments, reference_commit="nowhere"))
    assert settled(PLAIN, asked(program)) == asked(program)


def test_a_huge_tree_does_not_take_for_ever(program, monkeypatch):
    monkeypatch.setattr(sources, "MAX_ENTRIES", 2)
    assert sources_of(PLAIN, asked(program)) == sources_of(PLAIN, asked(program))
