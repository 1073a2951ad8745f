"""Doctor says what is wrong and the exact line that mends it; each finding is a value."""

import json

import pytest

from opguard_harness.__main__ import main
from opguard_harness.doctor import checks
from tests.support.fake_training import FACTS, fake_python


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def examine(path):
    return {item.name: item for item in checks.examine(path).items}


def test_a_python_that_lacks_packages_gets_its_install_line(tmp_path):
    path = fake_python(tmp_path, packages={**FACTS["packages"], "torch": None, "pyarrow": None})
    found = examine(path)
    assert found["packages"].level == "fail"
    assert found["packages"].fix == f"Run: {path} -m pip install torch 'pyarrow>=16'"
    assert "torch" not in found  # nothing to import


def test_a_foreign_package_is_refused_with_the_line_that_removes_it(tmp_path):
    path = fake_python(tmp_path, foreign=[{"name": "opguard", "version": "0.3", "folder": "/site"}])
    found = examine(path)
    assert found["foreign package"].level == "fail"
    assert f"{path} -m pip uninstall opguard" in found["foreign package"].fix


def test_our_own_environment_is_checked_for_it_too(monkeypatch):
    monkeypatch.setattr(checks, "foreign_owners", lambda: [{"name": "opguard", "version": "0.3", "folder": "/site"}])
    assert checks._installation().level == "fail"


def test_an_untested_pair_is_a_note_and_not_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "_torch_starts", lambda interpreter: checks.Item("torch", "ok", "x"))
    report = checks.examine(fake_python(tmp_path, version="3.12.1"))
    assert {item.name: item.level for item in report.items}["tested pair"] == "note"
    assert report.ready


def test_a_torch_that_does_not_import_is_a_failure(tmp_path):
    found = examine(fake_python(tmp_path))  # it cannot import anything
    assert found["torch"].level == "fail"
    assert "does not import" in found["torch"].found


def test_without_a_compiler_there_is_a_note_that_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    found = checks._compiler()
    assert found.level == "note"
    assert "compiler" in found.found


def test_a_full_disk_is_a_failure(monkeypatch):
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10})())
    assert [item.level for item in checks._disk()] == ["fail", "fail"]


def test_not_ready_is_exit_code_2_and_still_one_object(tmp_path, capsys):
    path = fake_python(tmp_path, packages={**FACTS["packages"], "torch": None})
    assert main(["doctor", "--python", str(path), "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["ready"] is False
    assert main(["doctor", "--python", str(path)]) == 2
    assert capsys.readouterr().out.endswith("not ready\n")


def test_the_tool_says_the_same(tmp_path, capsys):
    path = fake_python(tmp_path, packages={**FACTS["packages"], "torch": None})
    assert main(["call", "doctor", json.dumps({"python": str(path)})]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ready"] is False
    assert "pip install torch" in result["summary"]
