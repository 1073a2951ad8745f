"""Have two traces judged: open them, let the core align and certify, add what only the harness knows."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from opguard_core.certify.answer import to_dict
from opguard_core.certify.compare import compare as certify
from opguard_core.certify.filters import Filter
from opguard_core.contract.applied import applied_knobs
from opguard_core.contract.compare import Difference, compare_ranks
from opguard_core.ids import SIDES
from opguard_core.trace.identity import trace_digest
from opguard_core.trace.reader import Run
from opguard_harness.compare.launching import SideRun
from opguard_harness.errors import WindowNotReached
from opguard_harness.report.progress import Progress

OWN_REASONS = frozenset({"exit-codes-differ"})


def judge(
    reference: SideRun, suspect: SideRun, steps: tuple[int, int] | None, progress: Progress, filters: Iterable[Filter] = ()
) -> dict[str, Any]:
    """Compare two traces.

    Args:
        reference: The reference's run.
        suspect: The suspect's run.
        steps: The window that was asked for, half open, or None.
        progress: Where to say how far the comparison is.
        filters: Benign differences somebody declared.

    Returns:
        The answer, less ``trace`` and the seconds of the runs.

    Raises:
        TraceFormatError: A trace cannot be read.
        WindowNotReached: A side recorded nothing in the window.

    Cost: linear in the traces up to the first difference; one window of one rank of each side in memory.
    """
    runs = (Run.open(reference.trace), Run.open(suspect.trace))
    contract = _contract(*runs)
    began = aligned = time.monotonic()

    def tick(what: str, done: int, total: int) -> None:
        nonlocal aligned
        aligned = time.monotonic()
        progress.tick(f"{what}: {done} of {total} events")

    try:
        conflicts = [item.key for item in contract if item.conflicts]
        verdict = certify(*runs, progress=tick, filters=filters, contract_conflicts=conflicts)
    finally:
        progress.done()
    answer = to_dict(verdict)
    answer["digests"] = {side.name: trace_digest(side.trace) for side in (reference, suspect)}
    if steps is not None:
        _require_window(runs, answer["compared"], steps)
    answer["contract"] = [item.as_dict() for item in contract]
    determinism = {side: _knobs(run) for side, run in zip(SIDES, runs, strict=True)}
    if any(determinism.values()):
        answer["determinism"] = determinism
    answer["exit"] = {side.name: _exit_code(side, run) for side, run in zip((reference, suspect), runs, strict=True)}
    answer["seconds"] = {"align": round(aligned - began, 3), "certify": round(time.monotonic() - aligned, 3)}
    _weigh_exits(answer)
    return answer


def _knobs(run: Run) -> list[dict[str, Any]]:
    """What became of the determinism knobs: as the lowest rank tells it, or the first rank that has a problem with one."""
    told: dict[str, dict[str, Any]] = {}
    for rank in sorted(run.ranks):
        for knob in applied_knobs(run.ranks[rank].manifest.contract):
            if knob["name"] not in told or (knob["problem"] and not told[knob["name"]]["problem"]):
                told[knob["name"]] = knob
    return list(told.values())


def contract_differences(reference: Path, suspect: Path) -> list[dict[str, Any]]:
    """What the two runs should share and do not, worst first.

    Args:
        reference: Trace directory of the reference.
        suspect: Trace directory of the suspect.
    """
    return [item.as_dict() for item in _contract(Run.open(reference), Run.open(suspect))]


def _contract(reference: Run, suspect: Run) -> list[Difference]:
    contracts = [{rank: trace.manifest.contract for rank, trace in run.ranks.items()} for run in (reference, suspect)]
    return compare_ranks(*contracts)


def _require_window(runs: tuple[Run, Run], compared: dict[str, Any], steps: tuple[int, int]) -> None:
    """A window that a side never reached is an error, not an empty success.

    A difference in the state at the end of the step before the window ends the comparison there, so what was compared
    can show that the window was reached, and only the traces can show that it was not.
    """
    for side, run in zip(SIDES, runs, strict=True):
        if any(steps[0] <= step < steps[1] for step in [*compared["steps"], *compared["steps_only_in"][side]]):
            continue
        spans = [span for trace in run.ranks.values() if (span := trace.window_span())]
        if not any(first < steps[1] and last >= steps[0] for first, last in spans):
            raise WindowNotReached(
                f"--steps {steps[0]}:{steps[1]}: the {side} side recorded none of these steps (it recorded {_span(spans)})."
            )


def _span(spans: list[tuple[int, int]]) -> str:
    return f"{min(first for first, _ in spans)} to {max(last for _, last in spans)}" if spans else "none"


def _exit_code(side: SideRun, run: Run) -> int | None:
    """How the program ended: told by its launcher, else by the trace's manifest; a signal is negative."""
    if side.exit_code is not None or run.manifest.exit is None:
        return side.exit_code
    number = run.manifest.exit.get("signal")
    return run.manifest.exit.get("code") if number is None else -number


def _weigh_exits(answer: dict[str, Any]) -> None:
    """Programs that compute the same and end differently are not the same: say so instead of `identical`."""
    reference, suspect = answer["exit"]["reference"], answer["exit"]["suspect"]
    if answer["verdict"] != "identical" or reference == suspect or None in (reference, suspect):
        return
    answer["verdict"] = "inconclusive"
    answer["reasons"].append(
        {
            "slug": "exit-codes-differ",
            "text": f"Everything that was compared is equal, but the reference ended with {reference} and the suspect with {suspect}.",
            "fix": "Look at the output of the side that failed; it lies beside its trace.",
        }
    )
