"""Doctor says what is wrong and the exact line that mends it; each finding is a value."""

import json

import pytest

from opguard_harness.__main__ import main
from opguard_harness.doctor import checks, devices
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
    assert result["summary"].startswith("Not ready: packages. ")
    assert any("pip install torch" in check["fix"] for check in result["checks"])
    assert result["next"][0]["tool"] == "doctor"
    assert result["next"][0]["arguments"] == {"python": str(path)}


@pytest.mark.parametrize(("version", "level"), [("2.1.0", "ok"), ("2.10.3", "ok"), ("2.0.9", "note"), ("3.0.0", "note"), ("1.25", "note")])
def test_the_sdk_of_the_server_is_looked_at_without_importing_it(monkeypatch, version, level):
    monkeypatch.setattr(checks.metadata, "version", lambda name: version)
    item = checks._mcp()
    assert (item.level, version in item.found) == (level, True)
    assert (level == "ok") or "pip install 'mcp>=2.1,<3'" in item.fix


def test_without_the_sdk_the_shell_works_and_that_is_said(monkeypatch):
    def missing(name):
        raise checks.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(checks.metadata, "version", missing)
    assert (checks._mcp().level, "the shell works without" in checks._mcp().found) == ("note", True)


def test_a_large_state_folder_is_worth_a_word(tmp_path, monkeypatch):
    run = tmp_path / "state" / "opguard" / "runs" / "run-1"
    run.mkdir(parents=True)
    (run / "a").write_bytes(b"x" * 1000)
    (run / "link").symlink_to(run / "a")
    held = checks.held_bytes(tmp_path / "state")
    assert 1000 < held < 2000
    monkeypatch.setattr(checks, "LARGE_BYTES", 999)
    found = {item.name: item for item in checks._disk()}
    assert found["state folder"].level == "note"
    assert "opguard-harness prune" in found["state folder"].fix
    assert found["cache folder"].level == "ok"
    built = tmp_path / "cache" / "opguard" / "build"
    built.mkdir(parents=True)
    (built / "a.so").write_bytes(b"x" * 1000)
    found = {item.name: item for item in checks._disk()}
    assert (found["cache folder"].level, "prune" in found["cache folder"].fix) == ("note", False)


H200 = devices.Card("NVIDIA H200", "143771", "580.159.04", 0)
BUILDS = {"python_headers": True, "torch_headers": True, "cupy": "14.2.0"}


def observing(present=(H200,), **builds):
    return {one.name: one for one in devices.examine("py", {"builds": {**BUILDS, **builds}}, present)}


@pytest.fixture
def compilers(monkeypatch):
    monkeypatch.setattr(devices, "find_compilers", lambda language: [["cc"]])


def test_cards_come_from_the_drivers_own_tool_and_other_lines_are_passed_over():
    listing = "NVIDIA H200, 143771, 580.159.04, 0\nNVIDIA T4, 15360, 580.1, [N/A]\nNo devices were found\n"
    assert devices.parsed(listing) == (H200, devices.Card("NVIDIA T4", "15360", "580.1", None))


def test_a_machine_with_a_card_says_what_observes_on_it(compilers):
    found = observing((H200, H200))
    assert {one.level for one in found.values()} == {"ok"}
    assert found["gpu"].found == "2 x NVIDIA H200, 143771 MiB, driver 580.159.04."
    assert "14.2.0" in found["gpu kernels"].found


def test_a_machine_without_a_card_needs_neither_kernels_nor_launcher(compilers):
    found = observing(())
    assert set(found) == {"engine", "compiled code", "gpu"}
    assert "no card answers" in found["engine"].found and "dispatch" in found["engine"].found


def test_what_becomes_of_compiled_code_depends_on_torch_and_on_the_engine(compilers):
    assert "level kernels" in observing(stays_compiled=True)["compiled code"].found
    assert "level kernels" in observing(stays_compiled=False)["compiled code"].found  # the native engine observes on a card
    eager = observing((), stays_compiled=False)["compiled code"]
    assert (eager.level, "level eager" in eager.found, "--engine native" in eager.fix) == ("note", True, True)


def test_what_is_missing_is_a_note_that_says_what_is_used_instead(compilers):
    found = observing(cupy=None, python_headers=False)
    assert {name: one.level for name, one in found.items()} == {
        "engine": "note",
        "compiled code": "ok",
        "gpu": "ok",
        "gpu kernels": "note",
        "gpu launcher": "note",
    }
    assert "py -m pip install cupy-cuda13x" in found["gpu kernels"].fix
    assert "python3-dev" in found["engine"].fix
    assert "torch operations" in found["gpu launcher"].found


def test_memory_errors_of_a_card_are_worth_a_note(compilers):
    found = observing((H200._replace(errors=2),))
    assert (found["gpu"].level, "ROW_REMAPPER" in found["gpu"].fix) == ("note", True)


def test_without_a_compiler_python_observes(monkeypatch):
    monkeypatch.setattr(devices, "find_compilers", lambda language: [])
    assert "engine dispatch" in observing()["engine"].found
    assert "no C++ compiler" in observing()["engine"].found
