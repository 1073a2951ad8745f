"""A look before a long run: the first steps of both sides, in private copies that are thrown away."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from opguard_core.errors import NothingCaptured, TimedOut
from opguard_harness.compare.folders import private_copy, scratch
from opguard_harness.compare.interpreter import Interpreter, find
from opguard_harness.compare.judging import contract_differences
from opguard_harness.compare.launching import run_side
from opguard_harness.compare.processes import Interrupts
from opguard_harness.compare.request import CaptureRequest
from opguard_harness.compare.sides import ProgramSide, trace_folder
from opguard_harness.report.progress import Silent
from opguard_harness.workspace.contents import boundaries
from opguard_harness.workspace.guarded import existing_folder


@dataclass(frozen=True)
class Preflight:
    """Contract differences, counts of common boundaries, and what each side did."""

    contract: list[dict[str, Any]]
    common: dict[str, Any]
    sides: dict[str, Any]


def preflight(reference: Path, suspect: Path, argv: tuple[str, ...], capture: CaptureRequest) -> Preflight:
    """Run the first steps of both sides in private copies and compare what they share.

    Raises:
        OpGuardError: A side could not be captured at all.
    """
    interpreter = find(capture.python)
    with scratch("preflight", [existing_folder(reference), existing_folder(suspect)]) as folder, Interrupts() as interrupts:
        traces = {}
        sides: dict[str, Any] = {}
        for name, source in (("reference", reference), ("suspect", suspect)):
            copy = private_copy(existing_folder(source), folder / name)
            side = ProgramSide(name, copy, argv, {}, source)
            traces[name], sides[name] = _first_steps(side, interpreter, capture, folder / f"{name}-results", interrupts)
        counts = {name: boundaries(trace) for name, trace in traces.items()}
        for name, (found, windows) in counts.items():
            sides[name].update({"boundaries": found.total(), "windows": windows})
        common = _common(counts["reference"][0], counts["suspect"][0])
        contract = contract_differences(traces["reference"], traces["suspect"])
    return Preflight(contract, common, sides)


def _first_steps(
    side: ProgramSide, interpreter: Interpreter, capture: CaptureRequest, folder: Path, interrupts: Interrupts
) -> tuple[Path, dict[str, Any]]:
    """Capture one side; a side that is still running when its time is up is ended and read as far as it came."""
    try:
        run = anyio.run(partial(run_side, side, interpreter, capture, folder, kept=None, interrupts=interrupts, progress=Silent()))
    except TimedOut:
        trace = trace_folder(folder)
        if trace is None:
            raise NothingCaptured(
                f"The {side.name} side had captured nothing when its {capture.timeout_s:g} s were over.",
                hint="Give it more time with timeout_s.",
            ) from None
        return trace, {"exit": None, "seconds": capture.timeout_s, "cut": True}
    return run.trace, {"exit": run.exit_code, "seconds": round(run.seconds, 3), "cut": False}


def _common(reference: Counter[tuple[str, str]], suspect: Counter[tuple[str, str]]) -> dict[str, Any]:
    """How many boundaries both sides have, and the most frequent ones that only one has."""
    shared = reference & suspect
    lacking = {"only_reference": reference - suspect, "only_suspect": suspect - reference}
    examples = {
        f"{name}_examples": [f"{phase} {operator} x{count}" for (phase, operator), count in left.most_common(8)]
        for name, left in lacking.items()
    }
    return {"shared": shared.total(), **{name: left.total() for name, left in lacking.items()}, **examples}
