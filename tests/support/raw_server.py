"""A server as a bare process: frames in, frames out, and nothing of an SDK in between."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PLANTED = "tests.support.planted_tools"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
}


def command(*options, module=PLANTED):
    """The command line of a server with planted tools, or of the real one."""
    return [sys.executable, "-m", module, "mcp", *options]


class RawServer:
    """Talks to one server over its pipes; leaving ends it."""

    def __init__(self, *options, environment=None, cwd=REPOSITORY, module=PLANTED, **popen):
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY), **(environment or {})}
        self.process = subprocess.Popen(
            command(*options, module=module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd=cwd,
            **popen,
        )

    def __enter__(self):
        return self

    def __exit__(self, *what):
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):  # what was not read is not written either
                stream.close()

    def write(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, *messages):
        self.write(b"".join(json.dumps(message).encode() + b"\n" for message in messages))

    def call(self, number, tool, arguments=None):
        self.send({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": tool, "arguments": arguments or {}}})

    def frame(self):
        """The next line, which has to be a message."""
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read().decode()
        return json.loads(line)

    def shake_hands(self):
        self.send(INITIALIZE)
        first = self.frame()
        assert first["result"]["protocolVersion"] == "2025-11-25"
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return first["result"]

    def close(self):
        """End the input; returns exit code, what was left on the output, and standard error."""
        out, err = self.process.communicate()
        return self.process.returncode, out, err.decode()
