"""The real command over its pipes, in the era that clients of today speak: whole frames only, and an end that always comes."""

import json
import os
import signal
import subprocess
import sys

import pytest
from mcp import Client, StdioServerParameters

from opguard_harness.registry import TOOLS
from opguard_harness.server.lines import FRAME_LIMIT_BYTES
from tests.support.raw_server import INITIALIZE, REPOSITORY, RawServer, command


@pytest.mark.anyio
async def test_the_command_lists_and_calls_in_the_handshake_era(tmp_path):
    words = command("--root", str(tmp_path), module="opguard_harness")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    async with Client(StdioServerParameters(command=words[0], args=words[1:], env=environment), mode="legacy") as agent:
        assert agent.protocol_version == "2025-11-25"
        assert [tool.name for tool in (await agent.list_tools()).tools] == [tool.name for tool in TOOLS]
        good = await agent.call_tool("list_runs", {"limit": 3})
        bad = await agent.call_tool("list_runs", {"lmit": 3})
    assert json.loads(good.content[0].text) == good.structured_content
    assert not good.is_error
    assert bad.is_error
    assert "'limit'" in bad.content[0].text


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One server for all tests that do not end it; at its end nothing may be left on the wire."""
    with RawServer(environment={"XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))}) as server:
        server.shake_hands()
        yield server
        code, out, err = server.close()
        assert (code, out) == (0, b"")
        assert "Traceback" not in err


def test_nothing_that_a_tool_or_its_child_prints_gets_between_two_frames(shared):
    shared.call("prints", "planted_prints")
    shared.call("after", "planted_answers", {"size": 3})
    frames = {frame["id"]: frame["result"] for frame in (shared.frame(), shared.frame())}
    assert set(frames) == {"prints", "after"}
    assert frames["prints"]["structuredContent"]["text"] == "''"  # a child of a tool does not read the wire either
    said = [shared.process.stderr.readline() for _ in range(4)]
    assert sorted(said) == [b"planted child\n", b"planted descriptor\n", b"planted print\n", b"planted write\n"]


GARBAGE = [
    b"\n",
    b"\xff\xfe\x00\n",
    b"not json\n",
    b"[1, 2]\n",
    b'{"jsonrpc": "2.0"}\n',
    b'{"jsonrpc":"2.0","id":1,"result":{},"error":7}\n',
    b"{" * 5_000 + b"\n",
    b"[" * 100_000 + b"\n",
]


def test_garbage_is_passed_over_and_the_next_call_is_answered(shared):
    for number, junk in enumerate(GARBAGE):
        shared.write(junk)
        shared.call(f"after-{number}", "planted_answers")
        assert shared.frame()["id"] == f"after-{number}"


def test_a_request_that_cannot_be_read_is_refused_and_nobody_waits_for_ever(shared):
    unreadable = [
        b'{"jsonrpc":"2.0","id":"method","method":7}',
        b'{"jsonrpc":"2.0","id":"half","method":"tools/call","params":{"name":"planted_answers","arguments":{"words":["\\ud800"]}}}',
        b'{"jsonrpc":"2.0","id":"digits","method":"ping","params":{"x":' + b"9" * 10_000 + b"}}",
    ]
    for frame in unreadable:
        shared.write(frame + b"\n")
        refused = shared.frame()
        assert refused["id"] == json.loads(frame, parse_int=str)["id"]
        assert refused["error"]["code"] == -32600
    shared.write(b"[" + b",".join(unreadable) + b"]\n")
    assert [shared.frame()["id"] for _ in unreadable] == ["method", "half", "digits"]


def test_a_frame_beyond_the_limit_is_refused_and_one_below_it_is_answered(shared):
    shared.call("large", "planted_answers", {"words": ["x" * FRAME_LIMIT_BYTES]})
    refused = shared.frame()
    shared.call("less", "planted_answers", {"words": ["x" * (FRAME_LIMIT_BYTES // 4)]})
    answered = shared.frame()
    assert (refused["id"], refused["error"]["code"]) == (None, -32600)
    assert (answered["id"], answered["result"]["isError"]) == ("less", False)


def test_fifty_calls_at_once_are_answered_each_once(shared):
    sizes = {number: 20_000 + number for number in range(50)}
    for number, size in sizes.items():
        shared.call(number, "planted_answers" if number % 2 else "list_runs", {"size": size} if number % 2 else {})
    frames = {frame["id"]: frame["result"]["structuredContent"] for frame in (shared.frame() for _ in sizes)}
    assert sorted(frames) == list(sizes)
    assert {number: len(frames[number]["text"]) for number in sizes if number % 2} == {n: size for n, size in sizes.items() if n % 2}


def test_a_name_that_is_no_utf8_does_not_end_the_server(shared):
    shared.call("odd", "planted_answers")
    assert shared.frame()["result"]["structuredContent"]["summary"] == "\u00e9\\ud800 of a size"


def test_a_first_frame_that_comes_after_garbage_and_in_pieces_is_one_frame_and_half_a_frame_is_none():
    whole = json.dumps(INITIALIZE).encode() + b"\n"
    with RawServer() as server:
        server.write(b"".join(GARBAGE))
        for place in range(0, len(whole), 7):
            server.write(whole[place : place + 7])
        assert server.frame()["id"] == 0
        server.write(b'{"jsonrpc":"2.0","id":5,"method":"pi')
        assert server.close()[:2] == (0, b"")


@pytest.mark.parametrize("number", [signal.SIGTERM, *(pytest.param(n, marks=pytest.mark.full) for n in (signal.SIGINT, signal.SIGHUP))])
def test_a_signal_ends_it_whatever_it_is_doing(number):
    with RawServer() as server:
        server.shake_hands()
        server.call(1, "planted_stuck")
        assert server.process.stderr.readline() == b"planted stuck\n"
        server.process.send_signal(number)
        assert server.process.stdout.read() == b""  # the input is open all the while
        assert server.process.wait() == 0
        err = server.process.stderr.read().decode()
    assert number.name in err
    assert "Traceback" not in err


def test_the_end_of_input_ends_it_in_the_middle_of_a_call():
    with RawServer() as server:
        server.shake_hands()
        server.call(1, "planted_stuck")
        assert server.process.stderr.readline() == b"planted stuck\n"
        code, out, err = server.close()
    assert code == 0
    assert [json.loads(line)["error"]["message"] for line in out.splitlines()] == ["Connection closed"]
    assert "Traceback" not in err


def test_it_ends_when_the_process_that_started_it_has_gone_although_its_input_stays_open():
    starter = "import subprocess, sys; subprocess.Popen(sys.argv[1:]).wait()"
    incoming, held = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", starter, *command()], stdin=incoming, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=REPOSITORY
    )
    os.close(incoming)
    try:
        os.write(held, json.dumps(INITIALIZE).encode() + b"\n")
        assert json.loads(process.stdout.readline())["id"] == 0
        process.kill()
        assert process.stdout.read() == b""  # ends only when the server has closed its end
    finally:
        os.close(held)
        process.stdout.close()
        process.wait()


def test_a_client_that_has_closed_its_reading_end_ends_it_with_the_next_answer():
    with RawServer() as server:
        server.shake_hands()
        server.process.stdout.close()
        server.call(1, "planted_answers")
        assert server.process.wait() == 0
        assert "Traceback" not in server.process.stderr.read().decode()


@pytest.mark.full
def test_a_client_that_stops_reading_does_not_keep_it_from_ending():
    with RawServer() as server:
        server.shake_hands()
        for number in range(1, 41):
            server.call(number, "planted_answers", {"size": 30_000})
        server.call(41, "planted_stuck")
        assert server.process.stderr.readline() == b"planted stuck\n"
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait() == 0


@pytest.mark.full
def test_messages_from_a_file_are_answered_too(tmp_path):
    (tmp_path / "in").write_text(json.dumps(INITIALIZE) + "\n")
    with (tmp_path / "in").open("rb") as stream:
        done = subprocess.run(command(), stdin=stream, capture_output=True, cwd=REPOSITORY, check=True)
    assert json.loads(done.stdout)["id"] == 0


SERVE = """
import json, sys
{extra}
from opguard_harness.__main__ import main
code = main(["mcp"])
sys.stderr.write("\\n" + json.dumps([code, sorted(name for name in {heavy!r} if name in sys.modules)]))
"""
HEAVY = ("numpy", "pyarrow", "torch", "hypothesis", "libcst")


@pytest.mark.parametrize(
    ("extra", "loaded"),
    [pytest.param("", [], id="served"), pytest.param("import numpy", ["numpy"], id="the check can fail", marks=pytest.mark.full)],
)
def test_serving_and_the_first_calls_import_nothing_heavy(tmp_path, extra, loaded):
    names = ("list_runs", "open_case", "get_job")
    calls = [{"jsonrpc": "2.0", "id": name, "method": "tools/call", "params": {"name": name, "arguments": {"case": ""}}} for name in names]
    opening = [INITIALIZE, {"jsonrpc": "2.0", "method": "notifications/initialized"}, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}]
    with subprocess.Popen(
        [sys.executable, "-c", SERVE.format(extra=extra, heavy=HEAVY)], stdin=-1, stdout=-1, stderr=-1, cwd=REPOSITORY
    ) as process:
        process.stdin.write(b"".join(json.dumps(message).encode() + b"\n" for message in (*opening, *calls)))
        process.stdin.flush()
        answered = {json.loads(process.stdout.readline())["id"] for _ in range(5)}
        err = process.communicate()[1].decode()
    assert answered == {0, 1, *names}
    assert json.loads(err.splitlines()[-1]) == [0, loaded]
