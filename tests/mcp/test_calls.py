"""Calls in the newest era, in memory: results, errors, progress, and what a cancelled request leaves running."""

import json
import re

import anyio
import pytest
from mcp import Client

from opguard_harness.access.rules import Access
from opguard_harness.answer.failures import LOG
from opguard_harness.config import ANSWER_LIMIT_CHARS
from opguard_harness.errors import JobNotFound, SideNotFound
from opguard_harness.invoke import error_result
from opguard_harness.server.adapter import build
from tests.support import planted_tools

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("planted")]
RESULT_KEYS = {"summary", "evidence", "next", "truncated"}


def client(tmp_path, **rules):
    return Client(build(Access(roots=(tmp_path,), **rules)), raise_exceptions=True)


def told(result):
    """The object of a result, which its text must be too."""
    assert [block.type for block in result.content] == ["text"]
    assert json.loads(result.content[0].text) == result.structured_content
    assert set(result.structured_content) >= RESULT_KEYS
    return result.structured_content


async def test_a_result_is_one_object_twice_with_its_nulls_and_odd_characters(tmp_path):
    async with client(tmp_path) as agent:
        assert agent.protocol_version == "2026-07-28"
        value = told(await agent.call_tool("planted_answers", {"size": 5}))
    assert value["truncated"] is None
    assert "nothing" in value
    assert (value["text"], value["summary"]) == ("xxxxx", "\u00e9\\ud800 of a size")


async def test_an_unknown_tool_is_answered_with_the_closest_name(tmp_path):
    async with client(tmp_path) as agent:
        result = await agent.call_tool("list_run", {})
    value = told(result)
    assert result.is_error
    assert value["error"]["slug"] == "unknown-tool"
    assert "'list_runs'" in value["summary"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"sise": 3}, "did you mean 'size'?"),
        ({"size": -1}, "size"),
        ({"size": "3"}, "size"),
        ({"words": "a"}, "words"),
        ({"size": [{}]}, "size"),
    ],
    ids=["unknown", "range", "text for a number", "text for a list", "list for a number"],
)
async def test_arguments_that_do_not_fit_are_named_in_words_of_ours(tmp_path, given, named):
    async with client(tmp_path) as agent:
        result = await agent.call_tool("planted_answers", given)
    value = told(result)
    assert result.is_error
    assert value["error"]["slug"] == "invalid-arguments"
    assert named in value["error"]["text"]
    assert "pydantic" not in json.dumps(value)


async def test_an_error_of_ours_leads_out_to_calls_that_this_server_offers(tmp_path):
    async with client(tmp_path) as agent:
        both = told(await agent.call_tool("planted_refuses"))
    async with client(tmp_path, read_only=True) as agent:
        readable = told(await agent.call_tool("planted_refuses"))
    assert both["error"] == {"slug": "evidence-not-found", "text": "Nothing is there.", "fix": "Look at what there is."}
    assert [call["tool"] for call in both["next"]] == ["list_runs", "planted_writes"]
    assert readable["next"] == [{"tool": "list_runs", "arguments": {"limit": 3}, "why": "look"}]


async def test_next_of_a_result_names_only_tools_that_this_server_offers(tmp_path):
    async with client(tmp_path, read_only=True) as agent:
        value = told(await agent.call_tool("planted_answers"))
    assert [call["tool"] for call in value["next"]] == ["list_runs"]


async def test_an_error_with_no_way_out_of_its_own_gets_that_of_its_kind_or_its_hint():
    assert [call["tool"] for call in error_result(JobNotFound("No."))["next"]] == ["list_runs"]
    assert error_result(JobNotFound("No."), Access(groups=("compare",)))["next"] == []
    assert error_result(JobNotFound("No.", next=()))["next"] == []
    assert [call["tool"] for call in error_result(SideNotFound("No.", hint="Ask `doctor`."))["next"]] == ["doctor"]
    assert error_result(SideNotFound("No.", hint="Ask somebody."))["next"] == []


async def test_of_an_unexpected_exception_only_a_reference_leaves_the_server(tmp_path, state):
    async with client(tmp_path) as agent:
        result = await agent.call_tool("planted_crashes")
    text = json.dumps(told(result))
    reference = re.search(r"internal error ref (E-[0-9a-f]{6}) \(logged in ", text)
    assert result.is_error
    assert not [word for word in (planted_tools.SECRET, "Traceback", "place.py", "pydantic", str(tmp_path)) if word in text]
    log = state / LOG
    assert log.stat().st_mode & 0o777 == 0o600
    assert reference[1] in log.read_text()
    assert planted_tools.SECRET in log.read_text()


async def test_a_log_that_is_a_link_is_not_written_through(tmp_path, state):
    state.mkdir(parents=True, mode=0o700)
    (tmp_path / "elsewhere").write_text("kept")
    (state / LOG).symlink_to(tmp_path / "elsewhere")
    async with client(tmp_path) as agent:
        value = told(await agent.call_tool("planted_crashes"))
    assert "not logged" in value["error"]["text"]
    assert (tmp_path / "elsewhere").read_text() == "kept"


async def test_a_result_above_the_cap_is_refused(tmp_path):
    async with client(tmp_path) as agent:
        result = await agent.call_tool("planted_answers", {"size": ANSWER_LIMIT_CHARS})
        assert len(result.content[0].text) < 2_000
        assert result.is_error
        assert not (await agent.call_tool("planted_answers", {"size": ANSWER_LIMIT_CHARS - 500})).is_error


async def test_progress_is_told_while_a_call_waits(tmp_path):
    heard = []

    async def hear(done, total, message):
        heard.append((done, total, message))

    async with client(tmp_path) as agent:
        value = told(await agent.call_tool("planted_waits", {"rounds": 3}, progress_callback=hear))
    assert value["summary"] == "waited"
    assert heard == [(1, 3, "round 1"), (2, 3, "round 2"), (3, 3, "round 3")]


async def test_a_cancelled_request_ends_its_wait_and_the_server_goes_on(tmp_path):
    planted_tools.ended.clear()
    begun = anyio.Event()

    async def hear(done, total, message):
        begun.set()

    async with client(tmp_path) as agent:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: agent.call_tool("planted_waits", {}, progress_callback=hear))
            await begun.wait()
            group.cancel_scope.cancel()
        assert told(await agent.call_tool("planted_answers"))["summary"]
    assert planted_tools.ended == ["cancelled"]


async def test_a_tool_that_never_returns_holds_up_no_other_call(tmp_path):
    planted_tools.released.clear()
    try:
        async with client(tmp_path) as agent, anyio.create_task_group() as group:
            group.start_soon(agent.call_tool, "planted_stuck", {})
            values = [told(await agent.call_tool("planted_answers", {"size": size})) for size in range(5)]
            group.cancel_scope.cancel()
    finally:
        planted_tools.released.set()
    assert [len(value["text"]) for value in values] == list(range(5))
