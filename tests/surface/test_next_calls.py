"""Every call that the source writes out for `next` is one of a tool that there is, with arguments that it takes."""

import ast
import dataclasses
from pathlib import Path

from opguard_harness.registry import TOOLS

PACKAGE = Path(__file__).resolve().parents[2] / "opguard_harness"
ARGUMENTS = {tool.name: {field.name for field in dataclasses.fields(tool.arguments)} for tool in TOOLS}


def written():
    """Every ``Next("tool", {...})`` of the source: where, tool, and the names of arguments that are written out."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Next" and len(node.args) > 1:
                tool, given = node.args[:2]
                keys = given.keys if isinstance(given, ast.Dict) else []
                if isinstance(tool, ast.Constant):
                    yield f"{path.name}:{node.lineno}", tool.value, {key.value for key in keys if isinstance(key, ast.Constant)}


def test_every_call_that_is_written_out_can_be_made():
    found = list(written())
    assert len(found) > 20
    assert [(place, tool) for place, tool, _ in found if tool not in ARGUMENTS] == []
    assert [(place, tool, names - ARGUMENTS[tool]) for place, tool, names in found if names - ARGUMENTS[tool]] == []
