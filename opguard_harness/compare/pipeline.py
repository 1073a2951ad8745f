"""The main job: two sides in, one checked answer out.

Order: resolve both sides (and copy what must be copied) before anything runs; run the reference, then the suspect; judge
the traces; check the answer against its schema; give the result folder its name. Only then is there an answer.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from opguard_core.errors import Interrupted
from opguard_core.ids import SENTINEL
from opguard_core.plan.config import AUTO
from opguard_core.trace.files import write_atomic
from opguard_harness.answer.plain import dumps, plain
from opguard_harness.answer.schema import checked
from opguard_harness.compare.folders import Results, choose_out, scratch
from opguard_harness.compare.interpreter import Interpreter, find, refuse_foreign
from opguard_harness.compare.launching import SideRun, run_side
from opguard_harness.compare.locate import locate
from opguard_harness.compare.narrow import narrow, offer
from opguard_harness.compare.planned import add_plan, require_room
from opguard_harness.compare.processes import Interrupts
from opguard_harness.compare.programs import write_programs
from opguard_harness.compare.replay import Pristine, Replayer, keep_pristine
from opguard_harness.compare.request import CaptureRequest, CompareRequest
from opguard_harness.compare.sides import ProgramSide, Side, TraceSide, resolve
from opguard_harness.doctor.probe import foreign_owners
from opguard_harness.report.progress import Progress

if TYPE_CHECKING:
    from opguard_core.certify.filters import Filter

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
        again = keep_pristine(sides, temporary) if request.narrow or request.capture.mode == SENTINEL else None
        final = choose_out(request.out, [side.origin if isinstance(side, ProgramSide) else side.trace for side in sides])
        _say_what_is_ignored(request, sides, progress)
        require_room(request.capture.plan, final, sides=[side.name for side in sides if isinstance(side, ProgramSide)])
        interpreter = _interpreter(sides, request.capture, progress)
        with Results(final) as results:
            write_programs(results.partial, sides, request)  # before a program can move what a commit is named by
            runs = run_all(sides, interpreter, request.capture, results, progress)
            progress.say("comparing the traces")
            progress.steps("comparing", None, None)
            answer = judged(runs, results.partial, final, request.capture.steps, progress, request.filters)
            _say_what_was_not_applied(answer, progress)
            answer = _look_again(answer, request, again, interpreter, results, progress)
            add_plan(answer, request.capture.plan, runs, progress)
            answer["seconds"]["total"] = round(time.monotonic() - began, 3)
            checked(answer)
            write_atomic(results.partial / ANSWER_FILE, f"{dumps(answer, indent=1)}\n".encode("ascii"))  # only the user can read it
            results.finish()
    return answer


def _look_again(
    answer: dict[str, Any],
    request: CompareRequest,
    again: Pristine | None,
    interpreter: Interpreter | None,
    results: Results,
    progress: Progress,
) -> dict[str, Any]:
    """Replay the step that a sentinel found, or that the answer leaves open if that was asked for."""
    replayer = None
    if again is not None:
        replayer = Replayer(
            again,
            request.capture,
            run=lambda sides, capture, name: run_all(sides, interpreter, capture, results, progress, below=name),
            judge=lambda runs, steps: judged(runs, results.partial, results.final, steps, progress, request.filters),
            say=progress.say,
        )
    answer = locate(answer, replayer)
    return narrow(answer, replayer) if request.narrow else offer(answer)


def _say_what_is_ignored(request: CompareRequest, sides: tuple[Side, Side], progress: Progress) -> None:
    """Two traces run nothing: options about running must not pass in silence."""
    if any(isinstance(side, ProgramSide) for side in sides):
        return
    capture = request.capture
    given = {
        "ARGV": request.argv,
        "--python": capture.python,
        "--timeout": capture.timeout_s,
        "--deterministic": capture.deterministic,
        "--engine": capture.engine != AUTO,
        "--compiled": capture.compiled != AUTO,
        "--semantic": capture.semantic,
        "--callsites": capture.callsites,
        "--stop-on-contract": capture.stop_on_contract,
    }
    ignored = [name for name, value in given.items() if value]
    if ignored:
        progress.say(f"note: both sides are traces, so nothing is run; {', '.join(ignored)} had no effect")


def _say_what_was_not_applied(answer: dict[str, Any], progress: Progress) -> None:
    """A knob that does not hold in a run must not pass in silence."""
    for side, knobs in answer.get("determinism", {}).items():
        for knob in knobs:
            if knob["problem"]:
                progress.say(f"note: --deterministic: {side}: {knob['name']} is not {knob['value']}: {knob['problem']}")


def _interpreter(sides: tuple[Side, Side], capture: CaptureRequest, progress: Progress) -> Interpreter | None:
    """The training's interpreter, if anything is to be run; a pair we never tested is said aloud."""
    if not any(isinstance(side, ProgramSide) for side in sides):
        return None
    interpreter = find(capture.python)
    if interpreter.untested():
        progress.say(f"note: {interpreter.untested()}")
    return interpreter


def run_all(
    sides: tuple[Side, Side],
    interpreter: Interpreter | None,
    capture: CaptureRequest,
    results: Results,
    progress: Progress,
    below: str = "",
) -> tuple[SideRun, SideRun]:
    """Run what is to be run, one side after the other; results lie below ``below`` in the result folder."""
    base = results.partial / below
    base.mkdir(mode=0o700, exist_ok=True)

    async def both(interrupts: Interrupts) -> list[SideRun]:
        runs = []
        for side in sides:
            if isinstance(side, TraceSide):
                runs.append(SideRun(side.name, side.trace, None, 0.0))
                continue
            assert interpreter is not None, "a program side has an interpreter"
            kept = results.keep() / below / side.name
            folder = base / side.name
            other = None if below else _ended(sides, runs)
            run = await run_side(side, interpreter, capture, folder, kept=kept, interrupts=interrupts, progress=progress, other=other)
            runs.append(run)
        return runs

    with Interrupts() as interrupts:
        reference, suspect = anyio.run(partial(both, interrupts))
    if interrupts.count:  # the last program ended by itself just then
        raise Interrupted("Interrupted when both programs had run.", hint="Run the command again.")
    return reference, suspect


def _ended(sides: tuple[Side, Side], runs: list[SideRun]) -> Path | None:
    """Trace of the side that has ended, or that was a trace from the beginning."""
    traces = [run.trace for run in runs] + [side.trace for side in sides if isinstance(side, TraceSide)]
    return traces[0] if traces else None


def judged(
    runs: tuple[SideRun, SideRun],
    partial_dir: Path,
    final: Path,
    steps: tuple[int, int] | None,
    progress: Progress,
    filters: tuple[Filter, ...],
) -> dict[str, Any]:
    """Have the traces judged and add what the runs tell."""
    from opguard_harness.compare.judging import judge  # the readers of traces cost a second to import

    answer: dict[str, Any] = plain(judge(*runs, steps, progress, filters))
    answer["trace"] = {run.name: str(_final_place(run.trace, partial_dir, final)) for run in runs}
    answer["seconds"].update({run.name: round(run.seconds, 3) for run in runs})
    return answer


def _final_place(path: Path, partial_dir: Path, final: Path) -> Path:
    """Where a file of the unfinished results will lie."""
    return final / path.relative_to(partial_dir) if path.is_relative_to(partial_dir) else path
