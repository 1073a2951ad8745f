"""What an agent's client is sent before and after any call: names, hints, schemas and texts within the limits of clients."""

import json
import re

import pytest

from opguard_harness.access.rules import Access
from opguard_harness.registry import TOOLS
from opguard_harness.server.instructions import instructions
from tests.support.driving.transports import InMemory

PREFIX = "mcp__plugin_opguard_opguard__"  # the longest that a client puts before a name
NAME_CHARS, TEXT_CHARS, INSTRUCTION_BYTES, FIRST_CHARS, LIST_CHARS = 64, 1_500, 1_900, 300, 24_000
READS, WRITES = (True, False, True, False), (False, False, True, False)
LAUNCHES, ENDS = (False, True, True, True), (False, True, True, False)
"""Read-only, destructive, idempotent, open-world."""
HINTS = {
    "open_case": WRITES,
    "list_runs": READS,
    "doctor": READS,
    "compare": LAUNCHES,
    "launch_preflight": LAUNCHES,
    "run_guarded": LAUNCHES,
    "get_job": READS,
    "cancel_job": ENDS,
    "tail_log": READS,
    "compare_contracts": READS,
    "align": WRITES,
    "first_difference": READS,
    "explain_difference": READS,
    "list_differences": READS,
    "confirm_difference": LAUNCHES,
    "get_evidence": READS,
    "show_source": READS,
    "search_source": READS,
    "add_benign_filter": WRITES,
    "list_filters": READS,
    "record_finding": WRITES,
    "write_report": WRITES,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        with InMemory(tmp_path_factory.mktemp("root")) as started:
            yield started


@pytest.fixture(scope="module")
def listed(server):
    return {tool["name"]: tool for tool in server.tools()}


def parts(value):
    """Every object in a schema."""
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from parts(item)
    elif isinstance(value, list):
        for item in value:
            yield from parts(item)


def test_the_tools_are_these_and_their_hints_are_what_they_do(listed):
    kinds = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
    assert {name: tuple(tool["annotations"].get(kind) for kind in kinds) for name, tool in listed.items()} == HINTS


def test_names_fit_behind_the_longest_prefix(listed):
    assert all(re.fullmatch(r"[a-z][a-z_]*", name) and len(PREFIX + name) <= NAME_CHARS for name in listed)


def test_inputs_are_flat_closed_and_described(listed):
    for name, tool in listed.items():
        schema = tool["inputSchema"]
        assert schema["type"] == "object", name
        assert schema["additionalProperties"] is False, name
        for argument, what in schema["properties"].items():
            assert what["description"].strip(), f"{name}.{argument}"
            assert what["type"] in ("string", "integer", "number", "boolean", "array"), f"{name}.{argument}"
        found = {word for part in parts(schema) for word in part if word in ("$ref", "$defs", "anyOf", "allOf", "oneOf", "not", "if")}
        assert not found, name


def test_outputs_promise_a_summary(listed):
    assert all(tool["outputSchema"]["required"] == ["summary"] for tool in listed.values())


def test_texts_fit_the_limits_of_clients(listed):
    assert [name for name, tool in listed.items() if len(tool["description"]) >= TEXT_CHARS] == []
    assert [name for name, tool in listed.items() if not tool["annotations"]["title"]] == []


def test_the_whole_list_fits(server):
    tools = server.tools()
    sizes = sorted(((len(json.dumps(tool, separators=(",", ":"))), tool["name"]) for tool in tools), reverse=True)
    assert len(json.dumps({"tools": tools}, separators=(",", ":"))) <= LIST_CHARS, f"largest: {sizes[:6]}"


@pytest.mark.parametrize("rules", [{}, {"read_only": True}, {"groups": ("runs",)}], ids=["all", "read-only", "one group"])
def test_instructions_fit_and_begin_with_what_is_needed(tmp_path, rules):
    text = instructions(Access(roots=(tmp_path,), **rules))
    assert len(text.encode()) < INSTRUCTION_BYTES
    first = text[:FIRST_CHARS]
    assert re.search(r"\. Use it when .*?\.", first)
    whole = re.split(r"(?<=\.)\s", text)
    assert sum(len(sentence) + 1 for sentence in whole[:3]) <= FIRST_CHARS + 1, "the third sentence is cut"
    assert re.findall(r"`(\w+)`", " ".join(whole[:3])) == ["compare", "get_job", "first_difference"]


def test_every_name_in_the_instructions_is_one(listed):
    text = instructions(Access())
    known = (
        set(listed)
        | {"identical", "inconclusive", "next", "compare"}
        | {key for tool in listed.values() for key in tool["inputSchema"]["properties"]}
    )
    assert set(re.findall(r"`(\w+)`", text)) <= known
    assert set(listed) <= set(re.findall(r"`(\w+)`", text)) | {"list_filters"}


def test_every_name_in_a_description_is_one(listed):
    fields = {"cursor", "evidence", "next", "truncated", "new", "python", "error", "log", "observed"}
    fields |= {"identical", "diverged", "inconclusive"}
    known = set(listed) | fields | {key for tool in listed.values() for key in tool["inputSchema"]["properties"]}
    for name, tool in listed.items():
        said = tool["description"] + " ".join(what["description"] for what in tool["inputSchema"]["properties"].values())
        assert set(re.findall(r"`([a-z_]+)`", said)) <= known, name


def misspelt(argument):
    return argument[:-1] if len(argument) > 4 else argument + argument[-1]


@pytest.mark.parametrize("tool", [tool.name for tool in TOOLS])
def test_an_unknown_argument_is_refused_with_the_closest_name(server, listed, tool):
    for argument in listed[tool]["inputSchema"]["properties"]:
        reply = server.call(tool, {misspelt(argument): "x"})
        assert reply.failed
        assert reply.value["error"]["slug"] == "invalid-arguments"
        close = re.findall(r"did you mean '(\w+)'", reply.value["error"]["text"])
        assert close == [argument], f"{misspelt(argument)}: {reply.value['error']['text']}"
