"""The main job: two sides in, one checked answer out.

Order: resolve both sides (and copy what must be copied) before anything runs; run the reference, then the suspect; judge
the traces; check the answer against its schema; give the result folder its name. Only then is there an answer.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from opguard_core.errors import Interrupted
from opguard_harness.answer.plain import dumps, plain
from opguard_harness.answer.schema import checked
from opguard_harness.compare.folders import Results, choose_out, scratch
from opguard_harness.compare.interpreter import Interpreter, find, refuse_foreign
from opguard_harness.compare.launching import SideRun, run_side
from opguard_harness.compare.processes import Interrupts
from opguard_harness.compare.request import CaptureRequest, CompareRequest
from opguard_harness.compare.sides import ProgramSide, Side, TraceSide, resolve
from opguard_harness.doctor.probe import foreign_owners
from opguard_harness.report.progress import Progress

ANSWER_FILE = "answer.json"


def compare(request: CompareRequest, progress: Progress) -> dict[str, Any]:
    """Run or read both sides and compare them.

    Args:
        request: The comparison.
        progress: Where to say what goes on.

    Returns:
        The documented answer, checked; it also lies in ``answer.json`` under the result folder.

    Raises:
        OpGuardError: Anything that kept a verdict from being given.
    """
    began = time.monotonic()
    refuse_foreign(foreign_owners(), sys.executable)
    with scratch("compare", [request.reference.folder, request.suspect.folder]) as temporary:
        sides = resolve(request, temporary)
        final = choose_out(request.out, [side.origin if isinstance(side, ProgramSide) else side.trace for side in sides])
        _say_what_is_ignored(request, sides, progress)
        interpreter = _interpreter(sides, request.capture, progress)
        with Results(final) as results:
            runs = _run_all(sides, interpreter, request.capture, results, progress)
            progress.say("comparing the traces")
            answer = _judge(runs, results.partial, final, request.capture.steps, progress)
            answer["seconds"]["total"] = round(time.monotonic() - began, 3)
            checked(answer)
            (results.partial / ANSWER_FILE).write_text(dumps(answer, indent=1) + "\n", "ascii")
            results.finish()
    return answer


def _say_what_is_ignored(request: CompareRequest, sides: tuple[Side, Side], progress: Progress) -> None:
    """Two traces run nothing: options about running must not pass in silence."""
    if any(isinstance(side, ProgramSide) for side in sides):
        return
    capture = request.capture
    given = {"ARGV": request.argv, "--python": capture.python, "--timeout": capture.timeout_s, "--deterministic": capture.deterministic}
    ignored = [name for name, value in given.items() if value]
    if ignored:
        progress.say(f"note: both sides are traces, so nothing is run; {', '.join(ignored)} had no effect")


def _interpreter(sides: tuple[Side, Side], capture: CaptureRequest, progress: Progress) -> Interpreter | None:
    """The training's interpreter, if anything is to be run; a pair we never tested is said aloud."""
    if not any(isinstance(side, ProgramSide) for side in sides):
        return None
    interpreter = find(capture.python)
    if interpreter.untested():
        progress.say(f"note: {interpreter.untested()}")
    return interpreter


def _run_all(
    sides: tuple[Side, Side], interpreter: Interpreter | None, capture: CaptureRequest, results: Results, progress: Progress
) -> tuple[SideRun, SideRun]:
    """Run what is to be run, one side after the other."""

    async def both(interrupts: Interrupts) -> list[SideRun]:
        runs = []
        for side in sides:
            if isinstance(side, TraceSide):
                runs.append(SideRun(side.name, side.trace, None, 0.0))
                continue
            assert interpreter is not None, "a program side has an interpreter"
            kept = results.keep() / side.name
            folder = results.partial / side.name
            runs.append(await run_side(side, interpreter, capture, folder, kept=kept, interrupts=interrupts, progress=progress))
        return runs

    with Interrupts() as interrupts:
        reference, suspect = anyio.run(partial(both, interrupts))
    if interrupts.count:  # the last program ended by itself just then
        raise Interrupted("Interrupted when both programs had run.", hint="Run the command again.")
    return reference, suspect


def _judge(
    runs: tuple[SideRun, SideRun], partial_dir: Path, final: Path, steps: tuple[int, int] | None, progress: Progress
) -> dict[str, Any]:
    """Have the traces judged and add what the runs tell."""
    from opguard_harness.compare.judging import judge  # the readers of traces cost a second to import

    answer: dict[str, Any] = plain(judge(*runs, steps, progress))
    answer["trace"] = {run.name: str(_final_place(run.trace, partial_dir, final)) for run in runs}
    answer["seconds"].update({run.name: round(run.seconds, 3) for run in runs})
    return answer


def _final_place(path: Path, partial_dir: Path, final: Path) -> Path:
    """Where a file of the unfinished results will lie."""
    return final / path.relative_to(partial_dir) if path.is_relative_to(partial_dir) else path
