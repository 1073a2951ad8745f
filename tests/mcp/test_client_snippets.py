"""The shipped configuration really starts the server: each client's way to write it, carried out as that client does."""

import base64
import json
import os
import re
import shlex
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import anyio
import pytest

from opguard_core import __version__
from opguard_harness.clients.entry import Launch
from opguard_harness.clients.install import put
from opguard_harness.clients.known import CLAUDE, CURSOR, add_line, deeplink
from opguard_harness.registry import TOOLS

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = """#!{python}
import sys
sys.path.insert(0, {repository!r})
from opguard_harness.__main__ import main
sys.exit(main())
"""
VARIABLE = re.compile(r"\$\{(?P<name>\w+)(:-(?P<otherwise>[^}]*))?\}")


def from_file(path):
    return json.loads((REPOSITORY / path).read_text())["mcpServers"]["opguard"]


def from_line():
    words = shlex.split(add_line("project", Launch()))
    command, *args = words[words.index("--") + 1 :]
    return {"command": command, "args": args}


def from_link():
    return json.loads(base64.b64decode(parse_qs(urlsplit(deeplink(Launch())).query)["config"][0]))


def filled_in(entry, variables):
    """The entry with its variables as the client replaces them."""

    def value(found):
        return variables.get(found["name"], found["otherwise"] if found["otherwise"] is not None else found[0])

    return [VARIABLE.sub(value, word) for word in (entry["command"], *entry["args"])]


def test_every_form_of_one_client_starts_the_same():
    claude = Launch().entry(CLAUDE.root)
    assert from_file(".mcp.json") == from_file("prompts/plugin/.mcp.json") == from_line() == claude
    assert from_file(".cursor/mcp.json") == from_link() == Launch().entry(CURSOR.root)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project, and a PATH on which only our program is."""
    for name in ("project", "bin"):
        (tmp_path / name).mkdir()
    script = tmp_path / "bin" / "opguard-harness"
    script.write_text(SCRIPT.format(python=sys.executable, repository=str(REPOSITORY)))
    script.chmod(0o755)
    return tmp_path / "project"


def started(words, project):
    """What a client learns from the server: its name, instructions, tools, and what an answer over it says."""
    from mcp import Client, StdioServerParameters

    home = project.parent
    environment = {"PATH": os.pathsep.join([str(home / "bin"), os.defpath]), "HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"

    async def talk():
        command = StdioServerParameters(command=words[0], args=words[1:], env=environment, cwd=str(project))
        async with Client(command, mode="legacy") as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            runs = await client.call_tool("list_runs", {})
            return client.server_info, client.instructions, tools, runs

    return anyio.run(talk)


@pytest.mark.parametrize(
    ("entry", "variables"),
    [
        pytest.param(from_file(".mcp.json"), {}, id="claude"),
        pytest.param(from_file(".cursor/mcp.json"), {"workspaceFolder": "."}, id="cursor"),
    ],
)
def test_a_shipped_entry_starts_the_server(project, entry, variables):
    info, instructions, tools, runs = started(filled_in(entry, variables), project)
    assert (info.name, info.version) == ("opguard", __version__)
    assert instructions.startswith("OpGuard")
    assert sorted(tools) == sorted(tool.name for tool in TOOLS)
    assert not runs.is_error
    assert runs.structured_content["summary"]


@pytest.mark.full
def test_what_install_writes_starts_the_server_without_our_path(project):
    (project.parent / "away").mkdir()
    script = (project.parent / "bin" / "opguard-harness").rename(project.parent / "away" / "opguard-harness")
    put(project / ".mcp.json", project, Launch((str(script),)).entry(CLAUDE.root))
    entry = json.loads((project / ".mcp.json").read_text())["mcpServers"]["opguard"]
    info, *_ = started(filled_in(entry, {"CLAUDE_PROJECT_DIR": str(project)}), project)
    assert info.name == "opguard"
