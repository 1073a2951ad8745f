"""Three ways to the same tools, each as one object with the same methods: in memory, over pipes, and through a shell.

What comes back is plain JSON values; that the text of a result is its structured content, byte for byte, is checked on the way.
"""

import io
import json
import os
import subprocess
import sys
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from anyio.from_thread import start_blocking_portal
from mcp import Client

from opguard_harness.__main__ import main
from opguard_harness.access.rules import Access
from opguard_harness.server.adapter import build
from tests.support.raw_server import REPOSITORY, RawServer

HANDSHAKE, NEWEST = "2025-11-25", "2026-07-28"


@dataclass(frozen=True)
class Reply:
    """What one call answered: its object, whether it is an error, and how many characters a model reads."""

    value: dict[str, Any]
    failed: bool
    size: int


def _reply(text, structured, failed):
    assert json.loads(text) == structured, "the text of a result is not its structured content"
    return Reply(structured, failed, len(text))


class InMemory:
    """The server object, in the newest era of the protocol."""

    def __init__(self, root, python="", **rules):
        self._access = Access(roots=(root,), python=python, **rules)

    def __enter__(self):
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal())
            self._client = stack.enter_context(self._portal.wrap_async_context_manager(Client(build(self._access), raise_exceptions=True)))
            self._stack = stack.pop_all()
        assert self._client.protocol_version == NEWEST
        return self

    def __exit__(self, *what):
        return self._stack.__exit__(*what)

    @property
    def instructions(self):
        return self._client.instructions

    def tools(self):
        """The list of tools as it is on the wire."""
        listed = self._portal.call(self._client.list_tools)
        return [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed.tools]

    def call(self, name, arguments):
        result = self._portal.call(self._client.call_tool, name, arguments)
        (block,) = result.content
        return _reply(block.text, result.structured_content, bool(result.is_error))

    def read(self, uri):
        """The text of a resource."""
        (content,) = self._portal.call(self._client.read_resource, uri).contents
        return content.text


class Stdio:
    """The real command over its pipes, in the era of the handshake."""

    def __init__(self, root, python=""):
        options = ["--root", str(root), *(["--python", python] if python else [])]
        self._server = RawServer(*options, module="opguard_harness")
        self._number = 0

    def __enter__(self):
        self._server.__enter__()
        self.instructions = self._server.shake_hands()["instructions"]
        return self

    def __exit__(self, *what):
        return self._server.__exit__(*what)

    def _ask(self, method, parameters):
        self._number += 1
        self._server.send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": parameters})
        while True:
            frame = self._server.frame()
            if frame.get("id") == self._number:
                return frame["result"]

    def tools(self):
        """The list of tools as it is on the wire."""
        return self._ask("tools/list", {})["tools"]

    def call(self, name, arguments):
        result = self._ask("tools/call", {"name": name, "arguments": arguments})
        (block,) = result["content"]
        return _reply(block["text"], result["structuredContent"], result.get("isError", False))

    def kill(self):
        """End the server as a crash of the machine would: no handler runs."""
        self._server.process.kill()
        self._server.process.communicate()


class Shell:
    """`opguard-harness call`: a process for each call, or (much faster) its main function in this one."""

    processes = True

    def __init__(self, root, python=""):
        self._root = root

    def __enter__(self):
        return self

    def __exit__(self, *what):
        return None

    def call(self, name, arguments):
        words = ["call", name, json.dumps(arguments), "--root", str(self._root)]
        code, text = self._in_a_process(words) if self.processes else self._here(words)
        assert code in (0, 2)
        assert text.endswith("\n")
        text = text.removesuffix("\n")
        return _reply(text, json.loads(text), code == 2)

    @staticmethod
    def _in_a_process(words):
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-m", "opguard_harness", *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, env=environment, check=False)
        return done.returncode, done.stdout

    @staticmethod
    def _here(words):
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()):
            code = main(words)
        return code, out.getvalue()


class ShellHere(Shell):
    """The same command, without a process for each call."""

    processes = False
