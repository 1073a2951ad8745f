"""The command line that starts an observed run, for whoever starts one (the harness, scripts, tests).

Standard library only; imports nothing of the training side.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from opguard_core.plan.config import AUTO

PACKAGE = Path(__file__).parent.parent
RUN_VARIABLE = "OPGUARD_RUN"  # holds the trace directory in the environment of every process of an observed program
GIVEN_VARIABLE = "OPGUARD_GIVEN"  # tells a launcher names of what was set for its program, as a JSON list


def launch_argv(
    python: str | Path,
    out: str | Path,
    argv: Sequence[str],
    *,
    mode: str = "full",
    steps: tuple[int, int] | None = None,
    step_offset: int | None = None,
    deterministic: bool = False,
    engine: str = AUTO,
    compiled: str = AUTO,
    semantic: Sequence[str] = (),
    callsites: Sequence[str] = (),
    plan: str | Path | None = None,
    end_after: int | None = None,
    bare_steps: int = 0,
    end_with: int | None = None,
    keep: str | Path | None = None,
    transplant: str | Path | None = None,
) -> list[str]:
    """Command line of ``opguard_core run`` around a program's own command line.

    Args:
        python: Interpreter that runs the launcher; the training's own, so that it can be checked before anything starts.
        out: The run's trace directory; absent or empty.
        argv: The program and its arguments; started as they are, never through a shell.
        mode: One of ``ids.MODES``.
        steps: Half-open window of 0-based steps.
        step_offset: Updates done before this run, for a resumed one.
        deterministic: Apply the determinism knobs in every rank.
        engine: One of ``config.ENGINES``.
        compiled: One of ``config.COMPILED``.
        semantic: Patterns of ``plan.semantic``: calls that get a name.
        callsites: Patterns of ``plan.callsites``: callees that are observed where they are called.
        plan: File of the plan that the run follows.
        end_after: Updates after which the program is ended; only for a program in a private copy.
        bare_steps: Unobserved updates to time before that.
        end_with: Process that starts it; when that has gone, the program is ended.
        keep: File that says which boundaries are kept in full, see ``plan.keeping``.
        transplant: File that says after which boundary kept bytes are put in place of its results.

    Returns:
        Words for ``subprocess``. The package is started by its folder, so it need not be installed in ``python``; where it
        is, ``python -m opguard_core`` means the same.
    """
    words = [str(python), str(PACKAGE), "run", "--out", str(out), "--mode", mode]
    if steps is not None:
        words += ["--steps", f"{steps[0]}:{steps[1]}"]
    if step_offset is not None:
        words += ["--step-offset", str(step_offset)]
    if deterministic:
        words.append("--deterministic")
    if engine != AUTO:
        words += ["--engine", engine]
    if compiled != AUTO:
        words += ["--compiled", compiled]
    for pattern in semantic:
        words += ["--semantic", pattern]
    for pattern in callsites:
        words += ["--callsites", pattern]
    if plan is not None:
        words += ["--plan", str(plan)]
    if end_after is not None:
        words += ["--end-after", str(end_after), "--bare-steps", str(bare_steps)]
    if end_with is not None:
        words += ["--end-with", str(end_with)]
    if keep is not None:
        words += ["--keep", str(keep)]
    if transplant is not None:
        words += ["--transplant", str(transplant)]
    return [*words, "--", *argv]


def names_given(names: Iterable[str]) -> dict[str, str]:
    """What tells a launcher which variables somebody set for its program; empty if there are none."""
    found = sorted(names)
    return {GIVEN_VARIABLE: json.dumps(found)} if found else {}
