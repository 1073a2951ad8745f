"""Finding the training Python, and putting it into command lines."""

import sys
from pathlib import Path

import pytest

from opguard_core.errors import DependencyMissing, ForeignPackage, LaunchFailed
from opguard_harness.compare.interpreter import Interpreter, command_line, find, named, probe
from opguard_harness.errors import NoTrainingPython
from tests.support.fake_training import FACTS, fake_python


def with_program(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("word", ["python", "python3"])
def test_python_means_the_training_python(word):
    assert command_line([word, "train.py", "python"], Path("/env/bin/python")) == ["/env/bin/python", "train.py", "python"]


def test_launchers_are_taken_from_beside_the_interpreter_first(tmp_path, monkeypatch):
    beside, elsewhere = tmp_path / "env", tmp_path / "path"
    beside.mkdir()
    elsewhere.mkdir()
    with_program(elsewhere, "torchrun")
    monkeypatch.setenv("PATH", str(elsewhere))
    assert command_line(["torchrun", "x.py"], beside / "python")[0] == str(elsewhere / "torchrun")
    with_program(beside, "torchrun")
    assert command_line(["torchrun", "x.py"], beside / "python")[0] == str(beside / "torchrun")


def test_a_launcher_that_is_nowhere_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchFailed, match="accelerate"):
        command_line(["accelerate", "launch", "x.py"], tmp_path / "python")


def test_behind_a_wrapper_the_interpreter_is_still_meant():
    words = ["taskset", "-c", "0", "python3", "train.py", "--name", "python"]
    assert command_line(words, Path("/p")) == ["taskset", "-c", "0", "/p", "train.py", "--name", "python"]


def test_other_programs_and_paths_stay():
    assert command_line(["./run.sh", "python"], Path("/p")) == ["./run.sh", "python"]


def test_the_interpreter_that_runs_the_tests_can_be_probed():
    facts = probe(Path(sys.executable)).facts
    assert facts["version"] == ".".join(map(str, sys.version_info[:3]))
    assert set(facts["packages"]) == {"torch", "numpy", "pyarrow", "orjson"}


def test_a_file_of_the_working_folder_does_not_answer_for_the_standard_library(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('mine')\n")
    monkeypatch.chdir(tmp_path)
    assert probe(Path(sys.executable)).facts["version"]


@pytest.mark.parametrize("content", ["#!/bin/sh\necho no python\n", "#!/bin/sh\nexit 3\n", "not executable"])
def test_what_is_no_python_is_said(tmp_path, content):
    path = tmp_path / "python"
    path.write_text(content)
    path.chmod(0o755)
    with pytest.raises(NoTrainingPython, match=str(path)):
        probe(path)


def test_a_missing_package_gives_the_exact_install_line(tmp_path):
    path = fake_python(tmp_path, packages={**FACTS["packages"], "torch": None, "orjson": None})
    with pytest.raises(DependencyMissing, match=f"Run: {path} -m pip install torch 'orjson>=3.10'"):
        find(path)


def test_a_foreign_package_of_our_name_is_refused(tmp_path):
    path = fake_python(tmp_path, foreign=[{"name": "opguard", "version": "0.3", "folder": "/site"}])
    with pytest.raises(ForeignPackage, match=f"{path} -m pip uninstall opguard"):
        find(path)


def test_without_an_option_the_first_usable_python_is_taken(tmp_path, monkeypatch):
    lacking, usable = tmp_path / "a", tmp_path / "b"
    lacking.mkdir()
    usable.mkdir()
    fake_python(lacking, packages={**FACTS["packages"], "torch": None}).rename(lacking / "python")
    fake_python(usable).rename(usable / "python3")
    monkeypatch.setenv("PATH", f"{lacking}:{usable}")
    assert find(None).path == usable / "python3"


def test_a_name_that_is_no_program_is_an_error():
    with pytest.raises(NoTrainingPython, match="no-such-python"):
        named(Path("no-such-python"))


def test_links_are_kept_since_a_virtual_environment_is_found_through_them(tmp_path):
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    assert named(link) == link


@pytest.mark.parametrize(
    ("python", "torch", "tested"), [("3.11.9", "2.13.0+cpu", True), ("3.12.1", "2.13.0", False), ("3.11.7", "2.6.0", False)]
)
def test_untested_pairs_are_named(python, torch, tested):
    said = Interpreter(Path("/p"), {**FACTS, "version": python, "packages": {"torch": torch}}).untested()
    assert (said == "") is tested
    assert tested or (python in said and torch in said)
