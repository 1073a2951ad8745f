"""What the server costs before it answers: `python -m tests.benchmarks --only server`.

The shipped command is started again and again and asked for its handshake, its list of tools and one call, beside a Python
that only imports the SDK's server, in turn, so that both meet the same machine. CPU time is that of the whole process from
its start to the answer that it gave last.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks.report import Criterion, Section, table
from tests.support.raw_server import INITIALIZE, REPOSITORY

BEYOND_S = 1.0  # what the first answer may cost beyond importing the SDK
SDK = "import mcp.server.lowlevel.server, mcp.server.stdio"
READY: dict[str, Any] = {"jsonrpc": "2.0", "method": "notifications/initialized"}
LIST: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
CALL: dict[str, Any] = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "list_runs", "arguments": {}}}


def measure(folder: Path, *, progress: Callable[[str], None], rounds: int = 15) -> Section:
    """Time the starts.

    Args:
        folder: Scratch space; the servers' state folder.
        progress: Told what is being done.
        rounds: Starts of each program.
    """
    programs: dict[str, Callable[[], tuple[float, float]]] = {
        "python -c pass": lambda: _run("pass"),
        "importing the SDK's server": lambda: _run(SDK),
        "first answer": lambda: _serve(folder, INITIALIZE),
        "and the list of tools": lambda: _serve(folder, INITIALIZE, READY, LIST),
        "and a call of list_runs": lambda: _serve(folder, INITIALIZE, READY, LIST, CALL),
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for number in range(rounds + 1):
        progress(f"server: round {number} of {rounds}")
        for name, program in programs.items():
            spent = program()
            if number:  # the first round writes byte code and fills caches
                taken[name].append(spent)
    wall, work = ({name: min(pair[at] for pair in pairs) for name, pairs in taken.items()} for at in (0, 1))
    _, sdk, first, _, called = programs
    rows = [[name, wall[name], work[name], wall[name] / wall[sdk], wall[name] - wall[sdk]] for name in programs]
    return Section(
        how=f"The fastest of {rounds} starts in turn, over pipes, in the older era; each row counts from the start of the process.",
        tables=[table(["until", "seconds", "CPU seconds", "times importing the SDK", "seconds beyond it"], rows)],
        criteria=[
            Criterion("the server's first answer, beyond importing the SDK", wall[first] - wall[sdk], BEYOND_S, "s"),
            Criterion("the server's first answer against importing the SDK, CPU time", work[first] / work[sdk], 2.0, "x"),
            Criterion("a list of tools and a call after it against the first answer, CPU time", work[called] / work[first], 1.5, "x"),
        ],
    )


def _run(code: str) -> tuple[float, float]:
    """Seconds and CPU seconds of a Python that runs so much."""
    before, began = _spent(), time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began, _spent() - before


def _serve(state: Path, *messages: dict[str, Any]) -> tuple[float, float]:
    """Seconds until the last message is answered, and CPU seconds of that server, its ending included."""
    environment = {**os.environ, "XDG_STATE_HOME": str(state), "PYTHONPATH": str(REPOSITORY)}
    before, began = _spent(), time.perf_counter()
    command = [sys.executable, "-m", "opguard_harness", "mcp", "--root", str(state)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None and process.stdout is not None
        for message in messages:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
            if "id" in message:
                answer = json.loads(process.stdout.readline())
                assert answer["id"] == message["id"] and "result" in answer
        wall = time.perf_counter() - began
        process.stdin.close()
    return wall, _spent() - before


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
