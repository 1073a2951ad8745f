"""What an agent reads, in characters, and what a call imports: `python -m tests.benchmarks --only agent`.

Counts, not times; what starting costs is measured by the sections `calls` and `server`. The stored runs are synthetic, so the
results are of ordinary size and the same on every machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks.report import Criterion, Section, table
from tests.support.raw_server import REPOSITORY

HEAVY = ("mcp", "mcp_types", "numpy", "pyarrow", "torch")
IMPORTED = "import sys; from opguard_harness.__main__ import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
LIST_CHARS, INSTRUCTION_BYTES, FIRST_DIFFERENCE_CHARS, INVESTIGATION_CHARS = 24_000, 1_900, 6_000, 16_000
CALLS = 8


def measure(folder: Path, *, progress: Callable[[str], None], runs: int = 20) -> Section:
    """Count.

    Args:
        folder: Scratch space; holds the state folder.
        progress: Told what is being done.
        runs: Stored runs.
    """
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    try:
        progress("runs to read")
        return _counted(folder, _store(folder, runs), runs)
    finally:
        if before is None:
            del os.environ["XDG_STATE_HOME"]
        else:
            os.environ["XDG_STATE_HOME"] = before


def _store(folder: Path, runs: int) -> str:
    """Fill the state folder, and write two sides that an agent can compare; returns a comparison that diverged."""
    from tests.support.driving.world import BROKEN, PROGRAM, store_comparison, store_run, write_side

    for number in range(runs):
        store_run(f"run-{number:012x}", BROKEN if number == 1 else PROGRAM)
    for side, program in (("reference", PROGRAM), ("suspect", BROKEN)):
        write_side(folder / "root" / side, program)
    return store_comparison(f"align-{0:012x}", f"run-{0:012x}", f"run-{1:012x}")


def _counted(folder: Path, comparison: str, runs: int) -> Section:
    from tests.support.driving.agent import Agent, Fact
    from tests.support.driving.transports import InMemory

    root = folder / "root"
    facts = [
        Fact("the side that is right, the reference", str(root / "reference")),
        Fact("the side in question, the suspect", str(root / "suspect")),
    ]
    with InMemory(root) as server:
        tools = server.tools()
        sizes = {tool["name"]: len(json.dumps(tool, separators=(",", ":"))) for tool in tools}
        whole = len(json.dumps({"tools": tools}, separators=(",", ":")))
        results = [
            (name, ", ".join(arguments) or "nothing", server.call(name, arguments).size) for name, arguments in _typical(server, comparison)
        ]
        agent = Agent(server, facts)
        agent.investigate()
        instructions = len(server.instructions.encode())
    largest = max(sizes, key=lambda name: sizes[name])
    given = [
        (f"tools/list, {len(tools)} tools, the largest `{largest}` with {sizes[largest]:,}", whole),
        ("instructions", instructions),
        (f"all results of a scripted investigation, {len(agent.made)} calls", agent.characters),
    ]
    heavy, told = _heavy_modules(), {name: size for name, _, size in results}
    return Section(
        f"{runs} synthetic runs of {_events()} events stored; results with default arguments. Of {', '.join(HEAVY)}, "
        f"`call list_runs '{{}}'` imported {', '.join(heavy) or 'none'}.",
        [table(("what", "characters"), given), table(("result of", "given", "characters"), results)],
        [
            Criterion("heavy modules that `call list_runs` imports", float(len(heavy)), 0),
            Criterion("tools/list", whole, LIST_CHARS, "characters"),
            Criterion("instructions", instructions, INSTRUCTION_BYTES, "bytes"),
            Criterion(
                "first_difference",
                told["first_difference"],
                FIRST_DIFFERENCE_CHARS,
                "characters",
            ),
            Criterion("calls of the scripted investigation", len(agent.made), CALLS),
            Criterion("its results", agent.characters, INVESTIGATION_CHARS, "characters"),
        ],
    )


def _events() -> int:
    from tests.support.driving.world import PROGRAM

    return len(PROGRAM)


def _heavy_modules() -> list[str]:
    """Heavy modules that one call imports."""
    words = [sys.executable, "-c", IMPORTED, "call", "list_runs", "{}"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=REPOSITORY, env=environment)
    return sorted(set(done.stderr.split()) & set(HEAVY))


def _typical(server: Any, comparison: str) -> list[tuple[str, dict[str, Any]]]:
    evidence = server.call("first_difference", {"comparison": comparison}).value["evidence"][0]["id"]
    about = {"comparison": comparison}
    return [
        ("list_runs", {}),
        ("first_difference", about),
        ("show_source", {"evidence": evidence}),
        ("get_evidence", {"id": evidence}),
        ("explain_difference", about),
        ("list_differences", about),
        ("compare_contracts", about),
        ("search_source", {"run": f"run-{0:012x}", "text": "gelu"}),
    ]
