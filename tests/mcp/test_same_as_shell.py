"""A call answers the same object over MCP and from a shell, failed ones too; in a shell those end with exit code 2."""

import json

import anyio
import pytest
from mcp import Client

from opguard_harness.__main__ import main
from opguard_harness.access.rules import Access
from opguard_harness.server.adapter import build

CALLS = {
    "an answer": ("list_runs", {"limit": 3}, False),
    "an answer with a case": ("planted_answers", {"size": 3, "words": ["\u00e9"]}, False),
    "an unknown tool": ("list_run", {}, True),
    "an unknown argument": ("list_runs", {"lmit": 3}, True),
    "a value that does not fit": ("list_runs", {"limit": 1_000}, True),
    "an id that is not there": ("get_job", {"job": "compare-000000000000"}, True),
    "an error that leads out": ("planted_refuses", {}, True),
    "a path outside": ("compare", {"reference": "/etc", "suspect": "/etc"}, True),
    "a result that is too large": ("planted_answers", {"size": 60_000}, True),
}


@pytest.mark.parametrize(("name", "given", "failed"), CALLS.values(), ids=CALLS)
def test_a_call_gives_the_same_either_way(planted, tmp_path, capsys, name, given, failed):
    async def over_mcp():
        async with Client(build(Access(roots=(tmp_path,)))) as agent:
            return await agent.call_tool(name, given)

    result = anyio.run(over_mcp)
    code = main(["call", name, json.dumps(given), "--root", str(tmp_path)])
    captured = capsys.readouterr()
    assert (result.is_error, code) == (failed, 2 if failed else 0)
    assert captured.out == result.content[0].text + "\n"
    if failed:
        assert f"[{result.structured_content['error']['slug']}]" in captured.err


def test_what_goes_wrong_inside_is_a_reference_in_a_shell_too(planted, capsys, state):
    assert main(["call", "planted_crashes", "{}"]) == 2
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert "internal error ref E-" in told["error"]["text"]
    assert "hunter2" not in captured.out


@pytest.mark.parametrize(
    "words", [["call", "list_runs", "{"], ["call", "list_runs", "[]"], ["call"], ["call", "list_runs", "{}", "--nope"]]
)
def test_a_command_line_that_does_not_parse_answers_in_the_same_form(words, capsys):
    assert main(words) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["summary"]
    assert set(told["error"]) == {"slug", "text", "fix"}
    assert (told["evidence"], told["truncated"]) == ([], None)
