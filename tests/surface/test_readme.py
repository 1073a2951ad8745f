"""The README is checked: its two commands, its tool table, and an entry for every slug that can be shown."""

import ast
import inspect
import os
import re
from pathlib import Path

import pytest

import opguard_core.errors
import opguard_harness.errors
from opguard_core.certify import reasons
from opguard_core.errors import OpGuardError
from opguard_core.ids import MODES, Origin
from opguard_harness.compare import judging
from opguard_harness.compare.launching import side_environment
from opguard_harness.registry import markdown_table

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text("utf-8")


def section(title):
    return README.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def rows(title):
    """Names in the first column of a section's tables; one row may have several."""
    return {name for cell in re.findall(r"^\| (`[^|]*) \|", section(title), re.MULTILINE) for name in re.findall(r"`([a-z-]+)`", cell)}


def sources():
    for package in ("opguard_core", "opguard_harness"):
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            yield path, ast.parse(path.read_text("utf-8"))


def error_classes():
    """All classes of the error tree."""
    for module in (opguard_core.errors, opguard_harness.errors):
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, OpGuardError) and kind.__module__ == module.__name__:
                yield kind


def keyword_slugs():
    """Every literal ``slug=...`` of a call or class body, with where it stands."""
    found = {}
    for path, tree in sources():
        for node in ast.walk(tree):
            literals = []
            if isinstance(node, ast.Call):
                literals = [keyword.value for keyword in node.keywords if keyword.arg == "slug"]
            if isinstance(node, ast.ClassDef):
                literals = [
                    item.value
                    for item in node.body
                    if isinstance(item, (ast.Assign, ast.AnnAssign))
                    and "slug" in [getattr(t, "id", "") for t in (item.targets if isinstance(item, ast.Assign) else [item.target])]
                ]
            for literal in literals:
                if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
                    found[literal.value] = f"{path.relative_to(REPOSITORY)}:{literal.lineno}"
    return found


def test_there_are_exactly_two_set_up_and_go_commands():
    commands = re.findall(r"^    (\S.*)$", section("Set up and go"), re.MULTILINE)
    assert len(commands) == 2
    assert commands[0].endswith("opguard-harness demo")
    assert commands[1].endswith('pytest -n auto --dist worksteal -m "not full"')


def test_ci_runs_the_command_of_the_readme():
    script = (REPOSITORY / ".ci" / "run").read_text("utf-8")
    assert "README.md" in script
    assert "pip install" not in script


def test_the_tool_table_is_that_of_the_registry():
    table = README.split("<!-- tools -->\n", 1)[1].split("\n<!-- /tools -->", 1)[0]
    assert table == markdown_table(), "run: python -m tests.support.readme"


def test_every_mode_and_origin_is_explained():
    assert rows("Modes") == set(MODES)
    assert {str(origin) for origin in Origin} <= rows("How to read a verdict")


def test_every_error_slug_has_an_entry():
    listed = rows("Every error, by slug") | rows("Every reason, by slug")
    literals = keyword_slugs()
    shown = {kind.slug for kind in error_classes()}
    missing = {slug: literals.get(slug, "error tree") for slug in (shown | set(literals)) - listed}
    assert not missing


def test_no_error_is_explained_that_does_not_exist():
    assert rows("Every error, by slug") <= {kind.slug for kind in error_classes()} | set(keyword_slugs())


def test_no_error_class_is_dead():
    used = {
        node.id if isinstance(node, ast.Name) else node.attr
        for path, tree in sources()
        if path.name != "errors.py"
        for node in ast.walk(tree)
        if isinstance(node, (ast.Name, ast.Attribute))
    }
    assert not [kind.__name__ for kind in error_classes() if not kind.__subclasses__() and kind.__name__ not in used]


def test_every_reason_slug_has_an_entry():
    listed = rows("Every reason, by slug")
    assert set(reasons.SLUGS) <= listed
    assert listed <= set(reasons.SLUGS) | judging.OWN_REASONS, "a reason is explained that does not exist"


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX"])
def test_nothing_is_left_open(word):
    assert word not in README


def test_the_limits_name_every_variable_that_the_harness_sets(monkeypatch):
    for name in set(os.environ) - {"PATH"}:
        monkeypatch.delenv(name)
    ours = set(side_environment({})) - {"PATH"}
    assert ours
    assert not [name for name in (*ours, "PYTHONPATH", "OPGUARD_", "`--python`", "`fork`") if name not in section("Limits")]
