"""``compare --mode sentinel``: the first runs tell the step, a replay of that step tells the place.

A sentinel alone never names a place. When its replay shows nothing, the answer says so; it does not fall back to a guess,
nor to `identical`.
"""

from __future__ import annotations

from typing import Any

from opguard_core.certify.reasons import reason
from opguard_harness.compare.replay import Replay, Replayer

REORDERED = "state-reordered"
"""Why a replay of the first step may explain the order of the state: another layout."""


def locate(answer: dict[str, Any], replayer: Replayer | None) -> dict[str, Any]:
    """Answer from a replay of the step that a sentinel comparison found.

    Args:
        answer: The answer of the sentinel traces.
        replayer: Runs the programs again; None if a side is a trace.

    Returns:
        The same answer if it names no step or nothing can be replayed; else the replay's, with how the step was found in
        ``located``.
    """
    located = answer.get("located")
    if located is None or replayer is None:
        return answer
    step = located["step"]
    found = replayer.look(located.get("since", step), step + 1, answer["compared"]["steps"][0])
    located = {**located, "replay": found.facts(answer)}
    if found.answer is not None and found.answer["verdict"] != "identical":
        return {**found.answer, "exit": answer["exit"], "located": located}
    if found.answer is not None and located["why"] == REORDERED:
        return explained(answer, located)
    return _not_reproduced(answer, located, found)


def explained(answer: dict[str, Any], located: dict[str, Any]) -> dict[str, Any]:
    """The layout of the state explains its order, as the operators of the first step show.

    Args:
        answer: Of the sentinel traces.
        located: The step that was replayed, and how.
    """
    from opguard_core.certify.caveats import LIMITS  # readers of traces cost a second to import

    compared = {**answer["compared"], "state_order": "another layout, as the replay of the first step shows"}
    rest = _other_reasons(answer, located)
    told = {**answer, "reasons": rest, "compared": compared, "located": located}
    if rest:
        return told
    return {**told, "verdict": "identical", "scope": {**answer["scope"], "limit": LIMITS[answer["scope"]["determinism"]]}}


def _other_reasons(answer: dict[str, Any], located: dict[str, Any]) -> list[dict[str, Any]]:
    """Reasons of an answer less the one that sent us looking."""
    return [entry for entry in answer["reasons"] if entry["slug"] != located["why"]]


def _not_reproduced(answer: dict[str, Any], located: dict[str, Any], found: Replay) -> dict[str, Any]:
    told = reason(
        "not-reproduced",
        what=f"The state of rank {located['rank']} differs at the end of step {located['step']} ({', '.join(located['kinds'])})",
        first=found.steps[0],
        last=found.steps[1] - 1,
        detail=found.outcome,
        fix="Run the comparison again: a step that moves means a race, or something outside the program that changed in between "
        f"(time, files at absolute paths). A step that stays: `--mode verify --steps {found.steps[0]}:{found.steps[1]}`.",
    )
    rest = _other_reasons(answer, located)
    return {**answer, "reasons": [vars(told), *rest], "located": located}
