"""What the options of the server let its calls touch; a start that makes no sense is refused in words."""

import os
import sys

import pytest

from opguard_harness.__main__ import main
from opguard_harness.interface.declaration import GROUPS
from opguard_harness.server import adapter

NOWHERE = ("--http", "0.0.0.0:1")  # refused as the last thing before it would serve


@pytest.fixture
def rules(monkeypatch, capsys):
    """What calls may touch with these options."""
    built = []
    monkeypatch.setattr(adapter, "build", built.append)
    monkeypatch.delenv("CLAUDE_PROJECT_DIR", raising=False)

    def start(*options):
        assert main(["mcp", *NOWHERE, *options]) == 2
        assert "[listen-refused]" in capsys.readouterr().err
        return built.pop()

    return start


def test_roots_are_those_named_with_links_resolved(rules, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert rules("--root", str(tmp_path), "--root", str(tmp_path / "b")).roots == (tmp_path, tmp_path / "a")


def test_the_root_is_the_clients_project_and_else_the_current_folder(rules, tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path)
    assert rules().roots == (tmp_path,)
    assert rules("--root", "${CLAUDE_PROJECT_DIR:-.}").roots == (tmp_path,)  # a client that does not fill variables in
    monkeypatch.setenv("CLAUDE_PROJECT_DIR", str(tmp_path / "project"))
    assert rules("--root", "${CLAUDE_PROJECT_DIR:-.}").roots == (tmp_path / "project",)
    assert rules("--root", "${CLAUDE_PROJECT_DIR}/..").roots == (tmp_path,)
    assert rules().roots == (tmp_path / "project",)
    assert rules("--root", ".").roots == (tmp_path,)


def test_programs_are_added_as_they_are_found(rules, tmp_path, monkeypatch):
    program = tmp_path / "deepspeed"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert {"deepspeed", str(program)} <= set(rules("--allow-command", "deepspeed").commands)
    assert str(program) in rules("--allow-command", str(program)).commands
    assert not [name for name in rules().commands if "deepspeed" in name]


def test_a_python_is_kept_with_its_links(rules, tmp_path):
    (tmp_path / "python").symlink_to(sys.executable)
    assert rules("--python", str(tmp_path / "python")).python == str(tmp_path / "python")
    assert rules().python == ""


def test_groups_come_by_comma_or_one_by_one(rules):
    assert rules("--tools", "evidence, runs", "--tools", "cases").groups == ("cases", "runs", "evidence")
    assert rules().groups == GROUPS
    assert (rules("--read-only").read_only, rules().read_only) == (True, False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--root", "/nowhere/at/all"), "--root /nowhere/at/all is no folder."),
        (("--root", "${workspaceFolder}"), "the client did not fill in workspaceFolder"),
        (("--root", ""), "--root is empty."),
        (("--tools", "evidense"), "did you mean 'evidence'?"),
        (("--tools", " ,"), "--tools names no group."),
        (("--allow-command", "no-such-program"), "There is no program 'no-such-program'."),
        (("--python", "/nowhere/python"), "There is no program '/nowhere/python'."),
    ],
    ids=["root", "variable", "no root", "group", "no group", "program", "python"],
)
def test_what_is_not_there_is_refused(options, said, capsys):
    assert main(["mcp", *NOWHERE, *options]) == 2
    assert said in capsys.readouterr().err
