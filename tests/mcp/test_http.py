"""Over HTTP: only this machine, only with the token, and nothing that a web page could have sent."""

import os
import re
import socket
import stat
import subprocess

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.support.raw_server import INITIALIZE, REPOSITORY, command

HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


class HttpServer:
    """The real command on a free port."""

    def __init__(self, *options):
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        self.process = subprocess.Popen(
            command("--http", "127.0.0.1:0", *options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        said = [self.process.stderr.readline() for _ in range(3)]
        self.url = re.search(r"http://127\.0\.0\.1:\d+/mcp", said[0])[0]
        self.token = re.search(r"Authorization: Bearer (\S+)", said[1])[1]
        self.port = int(re.search(r":(\d+)/", self.url)[1])

    def __enter__(self):
        return self

    def __exit__(self, *what):
        self.process.terminate()
        self.left = self.process.communicate()

    def ask(self, **headers):
        return httpx2.post(self.url, json=INITIALIZE, headers={**HEADERS, **headers}, trust_env=False)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        with HttpServer() as running:
            yield running


def test_only_the_token_opens_it(server):
    good = {"Authorization": f"Bearer {server.token}"}
    assert server.ask(**good).status_code == 200
    assert server.ask(Authorization=f"bearer {server.token}").status_code == 200  # the scheme has no case
    wrong = (
        "",
        "Bearer",
        f"Bearer {server.token}x",
        f"Bearer {server.token[:-1]}",
        f"Bearer  {server.token}",
        server.token,
        f"Basic {server.token}",
    )
    answers = [server.ask(), *(server.ask(Authorization=value) for value in wrong)]
    assert [answer.status_code for answer in answers] == [401] * len(answers)
    assert {answer.headers["www-authenticate"] for answer in answers} == {"Bearer"}
    twice = httpx2.post(
        server.url, json=INITIALIZE, headers=[*HEADERS.items(), *good.items(), ("Authorization", "Bearer x")], trust_env=False
    )
    assert twice.status_code == 401


def test_without_the_token_no_path_says_more_than_another(server):
    base = server.url.removesuffix("/mcp")
    answers = [httpx2.get(base + path, trust_env=False) for path in ("/", "/mcp", "/docs", "/.well-known/oauth-protected-resource")]
    assert len({(answer.status_code, answer.content) for answer in answers}) == 1


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1:1", "127.0.0.1.evil.example:{port}", "0.0.0.0:{port}"])
def test_another_host_is_refused_even_with_the_token(server, host):
    answer = server.ask(Authorization=f"Bearer {server.token}", Host=host.format(port=server.port))
    assert answer.status_code == 421


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:{port}", "http://127.0.0.1.evil.example:{port}"]
)
def test_another_origin_is_refused_even_with_the_token(server, origin):
    answer = server.ask(Authorization=f"Bearer {server.token}", Origin=origin.format(port=server.port))
    assert answer.status_code == 403


def test_its_own_origin_is_taken(server):
    answer = server.ask(Authorization=f"Bearer {server.token}", Origin=f"http://127.0.0.1:{server.port}")
    assert answer.status_code == 200


def test_a_body_that_is_too_large_is_refused(server):
    answer = httpx2.post(
        server.url, content=b"x" * (5 << 20), headers={**HEADERS, "Authorization": f"Bearer {server.token}"}, trust_env=False
    )
    assert answer.status_code == 413


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_with_the_token_calls_and_hears_progress(server, mode):
    heard = []

    async def hear(done, total, message):
        heard.append(message)

    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {server.token}"}, trust_env=False) as carrier:
        async with Client(streamable_http_client(server.url, http_client=carrier), mode=mode) as agent:
            result = await agent.call_tool("planted_waits", {"rounds": 2}, progress_callback=hear)
    assert result.structured_content["summary"] == "waited"
    assert heard == ["round 1", "round 2"]


@pytest.mark.full
def test_the_token_is_new_each_time_kept_for_its_user_alone_and_gone_at_the_end(state):
    with HttpServer() as first:
        kept = state / f"http-{first.port}.token"
        assert kept.read_text().strip() == first.token
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    with HttpServer() as second:
        assert len(second.token) >= 40
    assert first.token != second.token
    assert not list(state.glob("*.token"))
    assert (first.process.returncode, first.left[0]) == (0, "")
    assert "Traceback" not in first.left[1]
    assert first.token not in first.left[1]  # it was printed once


@pytest.mark.parametrize(
    "place", ["0.0.0.0:0", "8.8.8.8:80", "[::]:0", "example.com:80", "127.0.0.1", "127.0.0.1:99999", ":80", "127.0.0.1:x", "8080"]
)
def test_what_is_not_of_this_machine_alone_is_refused(place, capsys):
    from opguard_harness.__main__ import main

    assert main(["mcp", "--http", place]) == 2
    captured = capsys.readouterr()
    assert "[listen-refused]" in captured.err
    assert captured.out == ""


def test_a_port_that_is_taken_is_an_error_of_ours(capsys):
    from opguard_harness.__main__ import main

    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["mcp", "--http", f"127.0.0.1:{taken.getsockname()[1]}"]) == 2
    assert "[listen-refused]" in capsys.readouterr().err
