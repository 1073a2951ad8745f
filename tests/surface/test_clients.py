"""What ships for clients is what the one place says, has one version, and is in the wheel."""

import json
import re
import zipfile
from pathlib import Path

import pytest
from typer.main import get_command

from opguard_core import __version__
from opguard_harness.cli.app import app
from opguard_harness.clients.entry import Launch
from opguard_harness.clients.known import CLAUDE, CURSOR, add_line, plugin_lines
from opguard_harness.clients.shipped_files import generated_files

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text("utf-8")
PLUGIN = REPOSITORY / "prompts" / "plugin"
SKILL = PLUGIN / "skills" / "opguard" / "SKILL.md"


@pytest.mark.parametrize("name", sorted(generated_files()))
def test_a_shipped_file_is_the_generated_one(name):
    assert (REPOSITORY / name).read_text("utf-8") == generated_files()[name], "run: python -m tests.support.clients"


def test_the_plugin_has_nothing_that_no_test_looks_at():
    files = {str(path.relative_to(REPOSITORY)) for path in PLUGIN.rglob("*") if path.is_file()}
    assert files == {name for name in generated_files() if name.startswith("prompts/plugin/")} | {str(SKILL.relative_to(REPOSITORY))}


def test_versions_are_that_of_the_package():
    manifest = json.loads((PLUGIN / ".claude-plugin" / "plugin.json").read_text())
    marketplace = json.loads((PLUGIN / ".claude-plugin" / "marketplace.json").read_text())
    found = [manifest["version"], marketplace["metadata"]["version"], *(plugin["version"] for plugin in marketplace["plugins"])]
    assert set(found) == {__version__}


def test_the_marketplace_names_the_plugin_that_lies_there():
    marketplace = json.loads((PLUGIN / ".claude-plugin" / "marketplace.json").read_text())
    (plugin,) = marketplace["plugins"]
    manifest = json.loads((PLUGIN / plugin["source"] / ".claude-plugin" / "plugin.json").read_text())
    assert plugin["name"] == manifest["name"]
    assert plugin_lines()[1].endswith(f"{plugin['name']}@{marketplace['name']}")


def test_the_skill_has_the_front_matter_that_clients_read():
    text = SKILL.read_text("utf-8")
    head, _, body = text.removeprefix("---\n").partition("\n---\n")
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    assert set(fields) == {"name", "description"}
    assert fields["name"] == SKILL.parent.name
    assert len(fields["name"]) <= 64
    assert len(fields["description"]) <= 1024
    assert ": " not in fields["description"], "a colon would need quotes in YAML"
    assert "<" not in fields["description"]
    assert len(text) < 8_000
    assert text.isascii()
    assert body.lstrip().startswith("# ")


def test_the_readme_says_what_is_generated():
    shown = README.split("\n## For agents\n", 1)[1].split("\n## ", 1)[0]
    assert add_line("project", Launch()) in shown
    assert f"Cursor: `{CURSOR.root}`" in shown
    assert CLAUDE.files["project"] in shown
    assert CURSOR.files["project"] in shown


def test_the_readme_has_every_option_of_the_server():
    shown = README.split("| option of `opguard-harness mcp` |", 1)[1].split("\n\n", 1)[0]
    options = {option for parameter in get_command(app).commands["mcp"].params for option in parameter.opts} - {"--help"}
    assert set(re.findall(r"^\| `(--[a-z-]+)", shown, re.MULTILINE)) == options


def test_a_wheel_has_the_texts_and_the_plugin_with_its_hidden_folders(tmp_path):
    from hatchling.builders.wheel import WheelBuilder

    (wheel,) = WheelBuilder(str(REPOSITORY)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        names = {
            name.removeprefix("opguard_harness/_prompts/") for name in archive.namelist() if name.startswith("opguard_harness/_prompts/")
        }
    assert names == {str(path.relative_to(REPOSITORY / "prompts")) for path in (REPOSITORY / "prompts").rglob("*") if path.is_file()}
