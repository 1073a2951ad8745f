"""Run one side under capture, in a child process of the training's interpreter.

``opguard_core`` need not be installed there: a two-line bootstrap makes that one package importable from where the
harness has it. Neither PYTHONPATH nor the working directory is used for that, so nothing of it reaches the program's
environment, and no file of the program's folder can stand in for a module of ours or of the standard library.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import opguard_core
from opguard_harness.compare.interpreter import Interpreter, command_line
from opguard_harness.compare.processes import Interrupts, Spawn, run_to_end
from opguard_harness.compare.request import CaptureRequest
from opguard_harness.compare.sides import ProgramSide
from opguard_harness.report.progress import Progress

# What `python -m opguard_core` does, without its search path: under -c the current folder comes first and is dropped.
_BOOT = """\
import sys
if sys.path and sys.path[0] == "":
    del sys.path[0]
import importlib.util, runpy
home = sys.argv.pop(1)
spec = importlib.util.spec_from_file_location("opguard_core", home + "/__init__.py", submodule_search_locations=[home])
sys.modules["opguard_core"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
runpy.run_module("opguard_core", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class SideRun:
    """What one run left: its trace directory, its exit code (negative: a signal's number), its duration."""

    name: str
    trace: Path
    exit_code: int | None
    seconds: float


async def run_side(
    side: ProgramSide, interpreter: Interpreter, capture: CaptureRequest, folder: Path, *, interrupts: Interrupts, progress: Progress
) -> SideRun:
    """Run one program under capture and wait for it.

    Args:
        side: The program.
        interpreter: The training's interpreter.
        capture: How to observe it.
        folder: Folder of this side under the results, absent; gets ``trace``, ``stdout.txt`` and ``stderr.txt``.
        interrupts: Installed interrupt counter.
        progress: Where to say what goes on.

    Raises:
        LaunchFailed: The program could not be started, or left no trace at all.
        TimedOut: It ran longer than allowed.
        Interrupted: The user interrupted.
    """
    spawn = _spawn(side, interpreter, capture, folder)
    progress.say(f"{side.name}: {' '.join(side.argv)}   (in {side.folder})")
    took = 0.0

    def tick(elapsed: float) -> None:
        nonlocal took
        took = elapsed
        progress.tick(f"{side.name}: {elapsed:.0f} s")

    try:
        code = await run_to_end(spawn, interrupts, tick)
    finally:
        progress.done()
    return SideRun(side.name, folder / "trace", code, took)


def _spawn(side: ProgramSide, interpreter: Interpreter, capture: CaptureRequest, folder: Path) -> Spawn:
    """The child process of one side; makes its result folder."""
    folder.mkdir(mode=0o700)
    trace = folder / "trace"
    options = ["--out", str(trace), "--mode", capture.mode]
    if capture.steps is not None:
        options += ["--steps", f"{capture.steps[0]}:{capture.steps[1]}"]
    if capture.deterministic:
        options.append("--deterministic")
    core = str(Path(opguard_core.__file__).resolve().parent)
    argv = command_line(side.argv, interpreter.path)
    return Spawn(
        command=[str(interpreter.path), "-c", _BOOT, core, "run", *options, "--", *argv],
        cwd=side.folder,
        env=side_environment(side.env),
        stdout=folder / "stdout.txt",
        stderr=folder / "stderr.txt",
        mark=str(trace),
        timeout_s=capture.timeout_s,
        label=f"{side.name} side",
    )


def side_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of one side: ours, a rendezvous port of its own, no byte code written, then what the user set."""
    port = str(_free_port())
    ours = {"MASTER_PORT": port, "PET_MASTER_PORT": port, "PYTHONDONTWRITEBYTECODE": "1"}
    return {**os.environ, **ours, **extra}


def last_line(path: Path) -> str:
    """The last non-empty line of a program's output, for messages; at most 200 characters."""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - 4096))
        lines = [line.strip() for line in stream.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return f"it said last: {lines[-1][:200]}" if lines else "it said nothing"


def _free_port() -> int:
    """A port that was free a moment ago; a fixed one would collide with another job on the machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
