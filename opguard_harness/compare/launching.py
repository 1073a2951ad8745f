"""Run one side under capture, in a child process of the training's interpreter.

``opguard_core`` need not be installed there: the interpreter is started on the package's folder, which makes that one
package importable. Neither PYTHONPATH nor the working directory is used for that, so nothing of it reaches the program's
environment, and no file of the program's folder can stand in for a module of ours or of the standard library.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opguard_core.errors import CaptureError, NothingCaptured, TraceFormatError
from opguard_core.plan.command import RUN_VARIABLE, launch_argv, names_given
from opguard_core.plan.keeping import save_transplants
from opguard_core.plan.redact import redact_argv, redact_text
from opguard_core.trace.manifest import read_run_manifest
from opguard_harness.access.traces import trace_folder
from opguard_harness.compare.contract_watch import ContractWatch
from opguard_harness.compare.cost import PaceWatch, expected
from opguard_harness.compare.interpreter import Interpreter, command_line
from opguard_harness.compare.processes import Interrupts, Spawn, run_to_end
from opguard_harness.compare.request import CaptureRequest
from opguard_harness.compare.sides import ProgramSide
from opguard_harness.compare.step_watch import StepWatch, planned_steps
from opguard_harness.report.progress import Progress

_LAUNCHER_ERROR = 2  # exit code of `opguard_core run` for errors of its own; a program may use it too
_TOLD = re.compile(r"^opguard: (?P<text>.*) \[(?P<slug>[a-z][a-z-]*)\]\Z", re.DOTALL | re.MULTILINE)
_TAIL_BYTES = 64 * 1024
KEEP, TRANSPLANT = "keep.json", "transplant.json"


@dataclass(frozen=True)
class SideRun:
    """What one run left: its trace directory, its exit code (negative: a signal's number), its duration."""

    name: str
    trace: Path
    exit_code: int | None
    seconds: float


async def run_side(
    side: ProgramSide,
    interpreter: Interpreter,
    capture: CaptureRequest,
    folder: Path,
    *,
    kept: Path | None,
    interrupts: Interrupts,
    progress: Progress,
    other: Path | None = None,
) -> SideRun:
    """Run one program under capture and wait for it.

    Args:
        side: The program.
        interpreter: The training's interpreter.
        capture: How to observe it.
        folder: Folder of this side under the results, absent; gets ``trace``, ``stdout.txt`` and ``stderr.txt``.
        kept: Where ``folder`` will lie if this fails; None if it will be removed.
        interrupts: Installed interrupt counter.
        progress: Where to say what goes on.
        other: Trace of the other side, if there is one: settings that cannot give the same bits are said while this one runs.

    Raises:
        LaunchFailed: The launcher could not be started.
        CaptureError: Nothing was captured, for the reason that the launcher told.
        TimedOut: It ran longer than allowed.
        Interrupted: The user interrupted.
        ContractStopped: A setting that changes arithmetic differs, and that was to end the comparison.
    """
    watch = None if other is None else ContractWatch(side.name, folder / "trace", other, progress, stop=capture.stop_on_contract)
    planned = planned_steps(capture, other)
    cost = expected(side.name, capture, planned, other)
    pace = PaceWatch(folder / "trace", capture.mode, planned, known=cost is not None)
    steps = StepWatch(side.name, folder / "trace", capture.steps, planned, progress, pace)
    spawn = _spawn(side, interpreter, capture, folder, kept)
    progress.say(f"{side.name}: {shlex.join(redact_argv(side.argv))}   (in {side.folder})")
    if cost is not None:
        progress.say(f"{side.name}: {cost}")
    took = 0.0

    def tick(elapsed: float) -> None:
        nonlocal took
        took = elapsed
        steps.look(elapsed)
        progress.tick(f"{side.name}: {f'{steps.text}, ' if steps.text else ''}{elapsed:.0f} s")
        if watch is not None:
            watch.look()

    try:
        code = await run_to_end(spawn, interrupts, tick)
        steps.look(math.inf)
        if watch is not None:
            watch.look()  # a program that was faster than one tick
    finally:
        progress.done()
    return outcome(side.name, folder, kept, code, took)


def outcome(name: str, folder: Path, kept: Path | None, code: int, seconds: float) -> SideRun:
    """What a launcher that has ended left, or the error that it told.

    Args:
        name: "reference" or "suspect".
        folder: Folder of this side under the results.
        kept: Where it will lie if this fails; None if it will be removed.
        code: The launcher's own exit code.
        seconds: How long it took.

    Raises:
        NothingCaptured: No rank left a trace; the text is the launcher's own reason.
        CaptureError: Capture could not start in a process that matters; likewise.
    """
    trace, stderr = folder / "trace", folder / "stderr.txt"
    hint = f"Its output is in {kept / stderr.name}." if kept else "Run it once by itself and look at its output."
    told = _launcher_error(stderr) if code == _LAUNCHER_ERROR else None
    if told is not None:
        text = f"{name}: {told['text']}"
        raise CaptureError(text, slug=told["slug"], hint=hint)
    if trace_folder(trace) is None:
        raise NothingCaptured(f"The {name} side left no trace (exit code {code}; {_last_line(stderr)}).", hint=hint)
    try:
        ended = read_run_manifest(trace).exit
    except TraceFormatError:
        ended = None  # the launcher was killed; the ranks' traces are read as far as they go
    if ended is None:
        return SideRun(name, trace, code, seconds)
    number = ended.get("signal")
    return SideRun(name, trace, ended.get("code") if number is None else -number, seconds)


def _launcher_error(stderr: Path) -> dict[str, str] | None:
    """The error that the launcher told last, as its text and slug; None if the program's output ends otherwise."""
    found = list(_TOLD.finditer(_tail(stderr).rstrip()))
    if not found:
        return None
    text = found[-1]["text"]
    return {"text": text[text.rfind("\nopguard: ") + 1 :].removeprefix("opguard: "), "slug": found[-1]["slug"]}


def _spawn(side: ProgramSide, interpreter: Interpreter, capture: CaptureRequest, folder: Path, kept: Path | None) -> Spawn:
    """The child process of one side; makes its result folder."""
    folder.mkdir(mode=0o700)
    trace = folder / "trace"
    plan = None
    if capture.plan is not None:
        plan = folder / "plan.json"
        capture.plan.save(plan)
    keep, transplants = capture.keep.get(side.name), capture.transplants.get(side.name, ())
    if keep is not None:
        keep.save(folder / KEEP)
    if transplants:
        save_transplants(folder / TRANSPLANT, transplants)
    command = launch_argv(
        interpreter.path,
        trace,
        command_line(side.argv, interpreter.path),
        mode=capture.mode,
        steps=capture.steps,
        deterministic=capture.deterministic,
        engine=capture.engine,
        compiled=capture.compiled,
        semantic=capture.semantic,
        callsites=capture.callsites,
        plan=plan,
        end_after=capture.end_after,
        bare_steps=capture.bare_steps,
        end_with=os.getpid() if capture.attached else None,
        keep=None if keep is None else folder / KEEP,
        transplant=folder / TRANSPLANT if transplants else None,
    )
    return Spawn(
        command=command,
        cwd=side.folder,
        env=side_environment(side.env),
        stdout=folder / "stdout.txt",
        stderr=folder / "stderr.txt",
        mark=f"{RUN_VARIABLE}={trace}",
        timeout_s=capture.timeout_s,
        label=f"{side.name} side",
        kept=f"What it left is in {kept}." if kept else "",
        sweep=capture.end_after is not None,
    )


def side_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of one side: ours, a rendezvous port of its own, no byte code written, then what the user set."""
    port = str(_free_port())
    ours = {"MASTER_PORT": port, "PET_MASTER_PORT": port, "PYTHONDONTWRITEBYTECODE": "1"}
    return {**os.environ, **ours, **extra, **names_given(extra)}


def _last_line(path: Path) -> str:
    """The last non-empty line of a program's output, for messages; at most 200 characters."""
    lines = [line.strip() for line in _tail(path).splitlines() if line.strip()]
    return f"it said last: {redact_text(lines[-1][:200])}" if lines else "it said nothing"


def _tail(path: Path) -> str:
    """The end of a program's output."""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return stream.read().decode("utf-8", "replace")


def _free_port() -> int:
    """A port that was free a moment ago; a fixed one would collide with another job on the machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
