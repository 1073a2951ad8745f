"""What a client is told before any call: tools, hints, schemas, instructions, all in the older era over the wire's own form."""

import json

import pytest
from mcp import Client

from opguard_harness.access.rules import Access
from opguard_harness.interface.declaration import GROUPS
from opguard_harness.registry import TOOLS
from opguard_harness.server import listing
from opguard_harness.server.adapter import build
from opguard_harness.server.instructions import instructions

pytestmark = pytest.mark.anyio
INSTRUCTIONS_BYTES = 1_900


def client(**rules):
    return Client(build(Access(**rules)), mode="legacy")


async def listed(**rules):
    """The tools as they go over the wire."""
    async with client(**rules) as agent:
        result = await agent.list_tools()
    return [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in result.tools]


async def test_all_tools_are_listed_in_their_order():
    assert [tool["name"] for tool in await listed()] == [tool.name for tool in TOOLS]


async def test_every_tool_has_a_title_a_text_and_all_four_hints_as_declared():
    for tool, wire in zip(TOOLS, await listed(), strict=True):
        assert wire["description"] == tool.text
        assert wire["annotations"] == {
            "title": tool.heading,
            "readOnlyHint": tool.read_only,
            "destructiveHint": tool.destructive,
            "idempotentHint": tool.idempotent,
            "openWorldHint": tool.open_world,
        }


async def test_schemas_are_flat_closed_and_described():
    for wire in await listed():
        schema = wire["inputSchema"]
        assert schema["type"] == "object", wire["name"]
        assert schema["additionalProperties"] is False
        text = json.dumps(schema)
        assert not [word for word in ('"$ref"', '"$defs"', '"anyOf"', '"oneOf"', '"allOf"', '"title": "') if word in text], wire["name"]
        for name, argument in schema["properties"].items():
            assert argument["description"], f"{wire['name']} {name}"
            assert argument["type"] in ("string", "integer", "number", "boolean", "array"), f"{wire['name']} {name}"
            assert argument.get("items", {"type": "string"})["type"] == "string"
        assert wire["outputSchema"] == {"type": "object", "required": ["summary"]}


async def test_what_the_list_leaves_unsaid_is_checked_all_the_same():
    (wire,) = [wire for wire in await listed() if wire["name"] == "compare"]
    assert "pattern" not in wire["inputSchema"]["properties"]["mode"]
    assert "verify" in wire["inputSchema"]["properties"]["mode"]["description"]
    assert wire["inputSchema"]["properties"]["command"]["default"] == ["python", "train.py"]
    async with client() as agent:
        result = await agent.call_tool("compare", {"reference": ".", "suspect": ".", "mode": "quick"})
    assert result.structured_content["error"]["slug"] == "invalid-arguments"
    assert "mode" in result.structured_content["summary"]


async def test_what_a_client_is_told_about_tools_is_about_tools_that_there_are():
    assert {*listing._ALWAYS_LOADED, *listing._LARGE} <= {tool.name for tool in TOOLS}
    loaded = {wire["name"] for wire in await listed() if wire.get("_meta", {}).get("anthropic/alwaysLoad")}
    assert loaded == {"compare", "get_job", "first_difference", "open_case"}


async def test_a_read_only_server_lists_only_what_reads_and_refuses_the_rest_by_its_reason():
    names = [wire["name"] for wire in await listed(read_only=True)]
    assert names == [tool.name for tool in TOOLS if tool.read_only]
    async with client(read_only=True) as agent:
        result = await agent.call_tool("compare", {})
    assert result.structured_content["error"]["slug"] == "tool-not-offered"
    assert "--read-only" in result.structured_content["summary"]


@pytest.mark.parametrize("group", GROUPS)
async def test_a_group_is_offered_alone(group):
    names = [wire["name"] for wire in await listed(groups=(group,))]
    assert names == [tool.name for tool in TOOLS if tool.group == group]


async def test_instructions_come_with_the_handshake_and_say_what_is_left_out():
    async with client() as agent:
        text = agent.instructions
    assert text == instructions(Access())
    assert len(text.encode()) < INSTRUCTIONS_BYTES
    least = instructions(Access(read_only=True, groups=GROUPS[1:]))
    assert len(least.encode()) < INSTRUCTIONS_BYTES
    assert "read-only" in least
    assert GROUPS[1] in least.splitlines()[-1]
    assert GROUPS[0] not in least.splitlines()[-1]
