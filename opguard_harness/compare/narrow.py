"""``compare --narrow``: what a mode could not look at is looked at in a replay of the step, in mode ``verify``.

Where inputs were not read again before the operator, "operator" and "mutated" cannot be told apart; where operators are
trusted, the place is the first one that is observed. The replay reads everything. The answer follows it, also to another
place, and keeps what the first comparison said.
"""

from __future__ import annotations

from typing import Any

from opguard_core.certify.reasons import reason
from opguard_core.ids import Origin
from opguard_harness.compare.replay import REPLAY_MODE, Replay, Replayer, place_of

_LESS = ("full", "trusted")


def is_open(answer: dict[str, Any]) -> bool:
    """Whether a replay in mode ``verify`` could decide something that the answer leaves open."""
    pivot = answer["pivot"]
    return answer["verdict"] == "diverged" and answer["mode"] in _LESS and str(Origin.MUTATED) in pivot["origin_alternatives"]


def offer(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer, with the replay as the next thing to do if it leaves something open."""
    if not is_open(answer):
        return answer
    step = answer["pivot"]["step"]
    why = f"mode {answer['mode']} did not read every input there; a replay of step {step} in mode {REPLAY_MODE} decides"
    return {**answer, "next": [*answer.get("next", []), {"options": ["--narrow"], "why": why}]}


def narrow(answer: dict[str, Any], replayer: Replayer | None) -> dict[str, Any]:
    """Decide by a replay what an answer leaves open.

    Args:
        answer: The answer of the first runs.
        replayer: Runs the programs again; None if a side is a trace.

    Returns:
        The replay's answer if it shows a difference, else the first one; with ``narrow``, which says what was done.
    """
    if not is_open(answer):
        return {**answer, "narrow": _told(answer, None, "The answer leaves nothing open that a replay in mode verify could decide.")}
    if replayer is None:
        text = "A side is a trace, not a program, so nothing can be replayed; name the programs to have the step replayed."
        return {**answer, "narrow": _told(answer, None, text)}
    pivot = answer["pivot"]
    # What a reader calls step k may lie in window k or k + 1.
    found = replayer.look(pivot["step"], pivot["step"] + 2, answer["compared"]["steps"][0])
    first = f"mode {answer['mode']} said {pivot['origin']} or {' or '.join(pivot['origin_alternatives'])}"
    if found.diverged and found.answer is not None:
        decided = found.answer["pivot"]["origin"]
        if place_of(found.answer["pivot"]) == place_of(pivot):
            return {
                **found.answer,
                "exit": answer["exit"],
                "narrow": _told(answer, found, f"{first}; the replay says {decided}, at the same place.", same=True),
            }
        text = f"{first}; the replay shows the difference at another place, which this answer follows: {decided}."
        return {**found.answer, "exit": answer["exit"], "narrow": _told(answer, found, text, same=False)}
    told = reason(
        "not-reproduced",
        what=f"The first runs differ in step {pivot['step']} as told",
        first=found.steps[0],
        last=found.steps[1] - 1,
        detail=found.outcome,
        fix="Run the comparison again, or with `--mode verify`: a difference that does not come again is a race, hardware, or "
        "something outside the program (time, files at absolute paths).",
    )
    text = f"{first}; the replay did not show it: {found.outcome}."
    return {**answer, "reasons": [*answer["reasons"], vars(told)], "narrow": _told(answer, found, text)}


def _told(answer: dict[str, Any], found: Replay | None, text: str, *, same: bool | None = None) -> dict[str, Any]:
    replay = {} if found is None else {"replay": found.facts(answer)}
    return {"first": None if found is None else answer["pivot"], "mode": answer["mode"], "same_place": same, "text": text, **replay}
