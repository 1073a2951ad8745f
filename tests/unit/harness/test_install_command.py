"""`install`, from the command line to the file: what it shows, what it writes, and how a client will find the program."""

import base64
import json
import os
import shlex
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from opguard_core.errors import ConflictingOptions, DependencyMissing
from opguard_harness.cli.app import dispatch
from opguard_harness.clients import found
from opguard_harness.errors import ClientConfigRefused, SideNotFound, UsageError


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with this installation in a virtual environment, a home and a project."""
    for name in ("home", "project", "venv/bin", "usr/bin", "other/bin"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("venv", "other"):
        program(tmp_path / name / "bin" / "opguard-harness")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv/bin/python"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "venv/bin"), str(tmp_path / "usr/bin")]))
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


def program(path):
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)


def asked(*words):
    return json.loads(dispatch(["install", *words, "--json"]).text)


def test_without_write_nothing_is_written(machine):
    page = asked("claude")
    assert page["state"] == "shown"
    assert Path(page["path"]) == machine / "project/.mcp.json"
    assert page["snippet"] == {"mcpServers": {"opguard": page["entry"]}}
    assert not list((machine / "project").iterdir())
    assert not (machine / "state").exists()


def test_the_path_stands_in_the_entry_when_only_the_environment_has_the_program(machine):
    page = asked("claude", "--write")
    assert page["entry"]["command"] == str(machine / "venv/bin/opguard-harness")
    assert "this machine only" in page["notes"][0]
    assert json.loads((machine / "project/.mcp.json").read_text()) == {"mcpServers": {"opguard": page["entry"]}}


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_activated_environment_is_not_the_clients_path(machine, monkeypatch, variable):
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setenv(variable, str(machine / "venv"))
    assert asked("claude")["entry"]["command"] == str(machine / "venv/bin/opguard-harness")


def test_the_name_is_enough_when_the_clients_path_leads_here(machine):
    (machine / "usr/bin/opguard-harness").symlink_to(machine / "venv/bin/opguard-harness")
    page = asked("cursor")
    assert page["entry"] == {"command": "opguard-harness", "args": ["mcp", "--root", "${workspaceFolder}"]}
    assert page["notes"] == []


def test_another_installation_of_that_name_is_not_taken_for_this_one(machine, monkeypatch):
    monkeypatch.setenv("PATH", os.pathsep.join([str(machine / "venv/bin"), str(machine / "other/bin")]))
    page = asked("claude")
    assert page["entry"]["command"] == str(machine / "venv/bin/opguard-harness")
    assert str(machine / "other/bin/opguard-harness") in page["notes"][0]


def test_relative_and_empty_entries_of_path_do_not_count(machine, monkeypatch):
    program(machine / "project" / "opguard-harness")
    monkeypatch.setenv("PATH", os.pathsep.join(["", ".", "bin"]))
    assert found.client_path(os.environ) == ""
    assert asked("claude")["entry"]["command"] == str(machine / "venv/bin/opguard-harness")


def test_an_installation_that_no_client_can_start_is_not_written(machine, monkeypatch):
    monkeypatch.setattr(found, "script", lambda: None)
    assert "no script" in asked("claude")["notes"][0]
    with pytest.raises(DependencyMissing, match="no script"):
        dispatch(["install", "claude", "--write"])
    assert not list((machine / "project").iterdir())


def test_every_way_that_is_shown_says_the_same(machine):
    claude, cursor = asked("claude"), asked("cursor")
    add = shlex.split(claude["commands"][0])
    assert add[:6] == ["claude", "mcp", "add", "--scope", "project", "opguard"]
    assert add[add.index("--") + 1 :] == [claude["entry"]["command"], *claude["entry"]["args"]]
    assert (Path(shlex.split(claude["commands"][1])[-1]) / ".claude-plugin" / "marketplace.json").is_file()
    link = parse_qs(urlsplit(cursor["link"]).query, strict_parsing=True)
    assert link["name"] == ["opguard"]
    assert json.loads(base64.b64decode(link["config"][0], validate=True)) == cursor["entry"]


def test_what_people_read_has_the_snippet_to_copy(machine):
    text = dispatch(["install", "cursor"]).text
    assert json.loads(text[text.index("{") : text.rindex("}") + 1]) == asked("cursor")["snippet"]
    assert str(machine / "project/.cursor/mcp.json") in text
    assert dispatch(["install", "cursor", "--write"]).text.startswith("opguard added to ")
    assert dispatch(["install", "cursor", "--write"]).text.startswith("opguard is already in ")
    assert dispatch(["install", "cursor", "--remove"]).text.startswith("opguard removed from ")
    assert dispatch(["install", "cursor", "--remove"]).text.startswith("opguard is not in ")


def test_scopes_have_their_own_files(machine):
    assert Path(asked("cursor", "--write", "--scope", "user")["path"]) == machine / "home/.cursor/mcp.json"
    assert (machine / "home/.cursor/mcp.json").is_file()
    assert not list((machine / "project").iterdir())


@pytest.mark.parametrize("act", ["--write", "--remove"])
def test_the_file_that_only_claude_code_writes_is_left_to_it(machine, act):
    (machine / "home/.claude.json").write_text('{"mcpServers": {}}')
    with pytest.raises(ClientConfigRefused) as refused:
        dispatch(["install", "claude", "--scope", "user", act])
    assert "claude mcp " in str(refused.value)
    assert (machine / "home/.claude.json").read_text() == '{"mcpServers": {}}'
    shown = asked("claude", "--scope", "user")
    assert shown["path"] is None
    assert "--scope user" in shown["commands"][0]


def test_variables_of_an_entry_are_not_printed(machine):
    asked("claude", "--write")
    path = machine / "project/.mcp.json"
    content = json.loads(path.read_text())
    content["mcpServers"]["opguard"]["env"] = {"TOKEN": "s3cret"}
    path.write_text(json.dumps(content))
    outcome = dispatch(["install", "claude", "--write", "--json"])
    assert json.loads(outcome.text)["state"] == "unchanged"
    assert "s3cret" not in outcome.text


def test_a_project_with_an_odd_name_is_shown_safely(machine):
    folder = machine / "a\x1b[31m\nb"
    folder.mkdir()
    text = dispatch(["install", "claude", "--project", str(folder), "--write"]).text
    assert "\x1b" not in text
    assert (folder / ".mcp.json").is_file()


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (["emacs"], UsageError, "claude, cursor"),
        (["claude", "--scope", "local"], UsageError, "project, user"),
        (["claude", "--write", "--remove"], ConflictingOptions, "exclude"),
        (["claude", "--project", "absent"], SideNotFound, "absent"),
        (["claude", "--project", "/dev/null"], SideNotFound, "not a folder"),
    ],
)
def test_what_cannot_be_done_is_said_with_the_way_out(machine, words, error, said):
    with pytest.raises(error) as raised:
        dispatch(["install", *words])
    assert said in str(raised.value)
