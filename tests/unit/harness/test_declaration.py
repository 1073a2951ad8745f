"""Tools are declared once; their arguments are checked strictly and refused in our words."""

import pytest
from jsonschema import Draft202012Validator

from opguard_harness.errors import InvalidArguments, UnknownTool
from opguard_harness.interface.declaration import GROUPS
from opguard_harness.interface.parsing import parse_arguments
from opguard_harness.interface.schemas import describe
from opguard_harness.registry import TOOLS, find

FLAT = {"string", "integer", "number", "boolean"}


def test_names_are_unique_and_groups_are_known():
    assert len({tool.name for tool in TOOLS}) == len(TOOLS)
    assert {tool.group for tool in TOOLS} <= set(GROUPS)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_every_declaration_is_whole(tool):
    described = describe(tool)
    Draft202012Validator.check_schema(described["arguments"])
    Draft202012Validator.check_schema(described["result"])
    assert described["arguments"]["additionalProperties"] is False
    for name, schema in described["arguments"]["properties"].items():
        assert schema["description"], name
        kind = schema["type"]
        assert kind in FLAT or (kind == "array" and schema["items"]["type"] in FLAT), f"{name} is not flat"
    assert {"summary", "evidence", "next", "truncated"} <= set(described["result"]["properties"])
    assert "Use it" in tool.text
    assert not (tool.read_only and tool.destructive)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("list_runs", {"limi": 3}, "did you mean 'limit'"),
        ("list_runs", {"zzz": 3}, "known: case, kind"),
        ("list_runs", {"limit": "3"}, "limit: "),
        ("list_runs", {"limit": 0}, "greater than or equal to 1"),
        ("list_runs", [], "JSON object"),
        ("list_filters", {"filters": "a\0b"}, "filters: it has a NUL character"),
        ("run_guarded", {"folder": "a", "command": ["python", "\0"]}, "command: it has a NUL character"),
        ("get_evidence", {"comparison": "x"}, "id: "),
        ("run_guarded", {"folder": "x", "command": []}, "command: "),
        ("run_guarded", {"folder": "x", "mode": "telescope"}, "mode: "),
    ],
)
def test_arguments_that_do_not_fit_are_refused(name, given, said):
    with pytest.raises(InvalidArguments, match=said) as caught:
        parse_arguments(find(name), given)
    assert "http" not in str(caught.value)


def test_defaults_are_filled_in_and_not_shared():
    one, two = (parse_arguments(find("run_guarded"), {"folder": "x"}) for _ in range(2))
    assert one.command == ["python", "train.py"]
    assert one.command is not two.command


def test_an_unknown_tool_names_the_closest():
    with pytest.raises(UnknownTool, match="did you mean 'first_difference'"):
        find("first_diference")
