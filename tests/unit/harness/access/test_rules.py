"""Roots: where named paths may lead, with links followed, and what happens when a link is put there after the check."""

import json
import os
from dataclasses import dataclass, field

import pytest

from opguard_harness.access.paths import read_below
from opguard_harness.access.rules import Access, current, using
from opguard_harness.errors import CommandRefused, InvalidArguments, OutsideRoots, PathRefused, VariableRefused
from opguard_harness.interface.declaration import Result, Role, Tool, argument


@dataclass(frozen=True)
class Arguments:
    side: str = argument("A side.", "", role=Role.SIDE)
    other: str = argument("Another.", "", role=Role.SIDE)
    run: str = argument("Something stored.", "", role=Role.STORED)
    many: list[str] = argument("Stored things.", [], role=Role.STORED)
    file: str = argument("A file.", "", role=Role.FILE)
    command: list[str] = argument("A command.", [], role=Role.COMMAND)
    python: str = argument("An interpreter.", "", role=Role.PYTHON)
    env: list[str] = argument("Variables.", [], role=Role.VARIABLES)
    text: str = argument("Any text.", "")


@dataclass(frozen=True)
class NamedArguments:
    side: str = argument("A side.", role=Role.SIDE)
    command: list[str] = argument("A command.", [], role=Role.COMMAND)


@dataclass(frozen=True, kw_only=True)
class Nothing(Result):
    found: dict[str, str] = field(default_factory=dict)


TOOL = Tool("try_it", "runs", "Try.", Arguments, Nothing, lambda arguments: Nothing(summary=""), read_only=True)
NAMED = Tool("name_it", "runs", "Name.", NamedArguments, Nothing, lambda arguments: Nothing(summary=""), read_only=True)


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for folder in ("root/sub", "outside", "home", "elsewhere", "state/opguard/runs/run-aaaaaaaaaaaa"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "outside" / "secret.json").write_text('{"k": "secret"}')
    (tmp_path / "root" / "sub" / "plan.json").write_text('{"k": "plan"}')
    (tmp_path / "root" / "train.py").write_text("")
    (tmp_path / "root" / "out").symlink_to(tmp_path / "outside")
    (tmp_path / "root" / "loop").symlink_to(tmp_path / "root" / "loop")
    (tmp_path / "root" / "inner").symlink_to("sub")
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


@pytest.fixture
def access(project):
    return Access(roots=(project / "root",))


def admit(access, **given):
    return access.admit(TOOL, Arguments(**given))


@pytest.mark.parametrize("name", ["side", "run", "file"])
@pytest.mark.parametrize(
    "text",
    [
        "..",
        "../outside",
        "sub/../../outside",
        "out",
        "out/secret.json",
        "out/../outside/secret.json",
        "/etc/passwd",
        "/",
        "~",
        "~/x",
        "sub/./../out/secret.json",
        "/proc/self/root/etc",
    ],
)
def test_nothing_leads_out_of_the_roots(access, name, text):
    with pytest.raises(OutsideRoots):
        admit(access, **{name: text})
    with pytest.raises(OutsideRoots):
        access.path(text)


@pytest.mark.parametrize("text", ["a" * 5_000, "a\0b", "\ud800", "loop", "loop/x", "~nobody-of-that-name/x", "n" * 300])
def test_what_no_file_can_be_called_is_refused_in_our_words(access, text):
    with pytest.raises((PathRefused, OutsideRoots)) as caught:
        access.path(text)
    assert len(str(caught.value)) < 500


def test_a_name_that_is_no_utf8_is_a_name(access, project):
    name = os.fsdecode(b"caf\xe9")
    (project / "root" / name).mkdir()
    assert access.path(name) == project / "root" / name


def test_a_relative_path_starts_at_the_first_root_and_not_at_the_working_folder(access, project):
    (project / "elsewhere" / "sub").mkdir()
    assert admit(access, side="sub").side == str(project / "root" / "sub")
    assert admit(access, side="inner").side == str(project / "root" / "sub"), "links inside are followed"
    assert admit(access, file="sub/plan.json").file == str(project / "root" / "sub" / "plan.json")


def test_a_shell_has_its_user_s_rights(project):
    shell = Access()
    assert admit(shell, side="../outside", file="~/x") == Arguments(
        side=str(project / "elsewhere" / "../outside"), file=str(project / "home/x")
    )
    assert shell.read(project / "root" / "out" / "secret.json", "file", 100) == b'{"k": "secret"}'


def test_ids_stay_ids_and_may_not_be_links_that_lead_out(access, project):
    assert admit(access, run="run-aaaaaaaaaaaa", side="run-aaaaaaaaaaaa", many=["run-aaaaaaaaaaaa", "sub"]) == Arguments(
        run="run-aaaaaaaaaaaa", side="run-aaaaaaaaaaaa", many=["run-aaaaaaaaaaaa", str(project / "root" / "sub")]
    )
    assert admit(access, run="run-unknown").run == "run-unknown", "the tool knows which there are"
    (project / "state" / "opguard" / "runs" / "run-bbbbbbbbbbbb").symlink_to(project / "outside")
    with pytest.raises(OutsideRoots):
        admit(access, run="run-bbbbbbbbbbbb")


def test_the_state_folder_may_always_be_read(access, project):
    path = project / "state" / "opguard" / "runs" / "run-aaaaaaaaaaaa"
    assert access.path(path) == path


def test_nothing_is_written_outside_the_state_folder(access, project):
    assert access.output(project / "state" / "opguard" / "filters.json")
    for path in ("sub/plan.json", "/etc/x", "out/x"):
        with pytest.raises(OutsideRoots):
            access.output(path)
    assert Access().output(project / "root" / "x")


def test_a_file_is_read_whole_and_only_if_it_is_one_of_a_fitting_size(access, project):
    assert json.loads(access.read("inner/plan.json", "plan", 100)) == {"k": "plan"}
    os.mkfifo(project / "root" / "pipe")
    for text, limit in (("sub", 100), ("pipe", 100), ("sub/plan.json", 3)):
        with pytest.raises(PathRefused):
            access.read(text, "plan", limit)
    with pytest.raises(FileNotFoundError):
        access.read("sub/none.json", "plan", 100)


@pytest.mark.parametrize("swapped", ["sub", "sub/plan.json"])
def test_what_became_a_link_after_the_check_is_not_read(access, project, swapped):
    path = access.path("sub/plan.json", "plan")
    target = project / "root" / swapped
    target.rename(project / "moved")
    (project / "outside" / "plan.json").write_text("secret")
    target.symlink_to(project / "outside" / "plan.json" if swapped.endswith("json") else project / "outside")
    with pytest.raises(OutsideRoots, match="became a link"):
        read_below(project / "root", path, "plan", 100)
    with pytest.raises(OutsideRoots):
        access.read(path, "plan", 100)


def test_a_root_that_becomes_a_link_leads_nowhere(access, project):
    (project / "root").rename(project / "was")
    (project / "root").symlink_to(project / "outside")
    with pytest.raises(OutsideRoots):
        access.path("secret.json")


def test_a_root_that_is_a_link_is_followed_at_the_start(project):
    (project / "link").symlink_to(project / "root")
    assert Access(roots=(project / "link",)).path("sub") == project / "root" / "sub"


def test_a_refusal_says_neither_where_a_link_leads_nor_whether_something_is_there(access):
    def said(text):
        with pytest.raises(OutsideRoots) as caught:
            access.path(text)
        return caught.value.message.replace(text, "X")

    assert said("out/secret.json") == said("out/nothing.json")
    assert "outside" not in said("out/secret.json")


def test_commands_are_looked_for_in_the_folders_they_run_in(access, project):
    assert admit(access, side="sub", command=["python", "../train.py"]).command == ["python", "../train.py"]
    for words in (["python", "../../outside/x.py"], ["python", "-c", "1"], ["sh"]):
        with pytest.raises(CommandRefused):
            admit(access, side="sub", command=words)
    rank = project / "root" / "t" / "rank-00000"
    rank.mkdir(parents=True)
    (rank.parent / "train.py").write_text("")
    with pytest.raises(CommandRefused):  # a name alone makes no trace: this folder would be run in
        admit(access, side="t", command=["python", "../../outside/x.py"])
    (rank / "manifest.json").write_text("{}")
    assert admit(access, side="t", command=["python", "-m", "pip"]), "a trace is read, not run"
    with pytest.raises(CommandRefused):  # a script in the folder of a trace is a program
        admit(access, side="t/train.py", command=["python", "../../outside/x.py"])


def test_a_side_that_has_to_be_named_is_not_empty(access):
    with pytest.raises(InvalidArguments, match="side: it is empty"):
        access.admit(NAMED, NamedArguments(side="", command=["python", "../outside/x.py"]))


def test_the_root_itself_is_no_file(access):
    with pytest.raises(PathRefused, match="is no file"):
        access.read(".", "plan", 100)


def test_a_script_as_a_side_runs_in_its_folder(access):
    with pytest.raises(CommandRefused):
        admit(access, side="train.py", command=["python", "../outside/x.py"])
    assert admit(access, side="train.py", command=["python", "train.py"])


def test_an_interpreter_has_to_be_on_the_list(access, project):
    listed = Access(roots=access.roots, commands=("python", "/opt/env/bin/python"), python="/usr/bin/python3")
    assert admit(listed, python="/opt/env/bin/python").python == "/opt/env/bin/python"
    assert admit(listed, python="python").python == "python"
    assert admit(listed).python == "/usr/bin/python3", "that of the server"
    for text in ("/opt/env/bin/../bin/python", "/bin/sh", "bin/python", "sh", "train.py", "./train.py"):
        with pytest.raises(CommandRefused):
            admit(listed, python=text)
    assert admit(Access(), python="/any/python").python == "/any/python"


def test_variables_may_point_into_roots_only(access):
    assert admit(access, side="sub", env=["HF_TOKEN=hunter2", "PYTHONPATH=.:../sub", "OMP_NUM_THREADS=1"])
    for pair in ("PYTHONPATH=/tmp", "PYTHONPATH=sub:../../outside", "PYTHONPATH=../out", "LD_PRELOAD=x.so", "PATH=/tmp"):
        with pytest.raises(VariableRefused):
            admit(access, side="sub", env=[pair])


def test_what_is_no_variable_is_not_repeated(access):
    with pytest.raises(InvalidArguments) as caught:
        admit(access, env=["A=1", "hunter2"])
    assert "entry 2" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_rules_survive_the_way_to_another_process(access):
    rules = Access(roots=access.roots, commands=("python",), read_only=True, groups=("runs",), python="/p")
    assert Access.from_dict(json.loads(json.dumps(rules.to_dict()))) == rules
    assert Access.from_dict(json.loads(json.dumps(Access().to_dict()))) == Access()


def test_the_rules_of_a_call_hold_while_it_is_carried_out(access):
    assert current() == Access()
    with using(access):
        assert current() is access
    assert current() == Access()
