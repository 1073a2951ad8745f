"""Where to go from an answer: calls that are complete and can be made as they stand.

A verdict that is not strong leads to what could make it so: the same comparison with something changed where the caller's
arguments are known, else a look at what there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opguard_core.ids import SIDES
from opguard_harness.config import runs_dir
from opguard_harness.interface.declaration import Next

MOST = 3
_MORE_STEPS = 3

_CLOSER = frozenset(
    (
        "low-confidence",
        "auxiliary-output",
        "low-coverage",
        "unobserved-work",
        "unattributed-work",
        "unresolved-difference",
        "generators-apart",
        "state-reordered",
    )
)
_SETTINGS = frozenset(("contract-conflict", "precision-policy", "unseeded", "runs-differ", "ranks-differ", "plan-mismatch"))
_OUTPUT = frozenset(
    ("torn-trace", "ended-early", "rank-missing", "exit-codes-differ", "uncaptured-process", "nothing-compared", "state-missing")
)
_FILTERS = frozenset(("filtered-difference", "filters-too-wide", "filter-refused"))
_REPEAT = frozenset(("not-reproduced", "dropped-records", "runs-differ"))


def leads(answer: Mapping[str, Any], comparison: str, again: Mapping[str, Any] | None = None, *, first: bool = True) -> list[Next]:
    """What to call now.

    Args:
        answer: The answer of a comparison.
        comparison: Its id.
        again: Arguments of the `compare` call that gave it, if it may be repeated with some of them changed.
        first: Begin with `first_difference`.
    """
    calls = [Next("first_difference", {"comparison": comparison}, _WHY[answer["verdict"]])] if first else []
    if answer["verdict"] == "inconclusive":
        calls += [call for reason in answer["reasons"] for call in _for_reason(reason["slug"], answer, comparison, again or {})]
        calls.append(Next("list_differences", {"comparison": comparison}, "everything that differs, worst first"))
    elif answer["verdict"] == "diverged" and again and _is_open(answer):
        calls.append(_repeat(again, "a replay of that step in mode verify decides which origin it is", narrow=True))
    return _distinct(calls)[:MOST]


_WHY = {
    "diverged": "where they part: both sources, origin, spread",
    "identical": "what was compared, and what the verdict does not cover",
    "inconclusive": "what kept a verdict from being given, and the nearest candidates",
}


def _for_reason(slug: str, answer: Mapping[str, Any], comparison: str, again: Mapping[str, Any]) -> list[Next]:
    """Calls that answer one reason, the surest first."""
    calls = []
    if slug in _SETTINGS:
        calls.append(Next("compare_contracts", {"comparison": comparison}, "which settings differ, and what makes them equal"))
    if slug in _FILTERS:
        named = {"filters": again["filters"]} if again.get("filters") else {}
        calls.append(Next("list_filters", named, "the filters that hide it, each with its reason"))
    if again:
        calls += _repeats(slug, answer, again)
    if slug in _OUTPUT:
        calls += _output(answer, comparison)
    return calls


def _output(answer: Mapping[str, Any], comparison: str) -> list[Next]:
    """What the side that failed printed, if the comparison ran it."""
    side = next((name for name in reversed(SIDES) if answer["exit"].get(name)), SIDES[1])
    return printed(answer, comparison, side, "stderr", f"what the {side} said before it ended")


def printed(answer: Mapping[str, Any], comparison: str, side: str, stream: str, why: str) -> list[Next]:
    """The call that shows what a side printed, if the comparison ran it."""
    trace, base = Path(answer["trace"][side]), runs_dir() / comparison
    if not trace.is_relative_to(base):
        return []
    name = "-".join([*trace.relative_to(base).parts[:-1], stream])
    return [Next("tail_log", {"job": comparison, "stream": name}, why)]


def _repeats(slug: str, answer: Mapping[str, Any], again: Mapping[str, Any]) -> list[Next]:
    """The same comparison with something changed."""
    planned = bool(again.get("plan"))
    if slug in ("contract-conflict", "runs-differ") and not again.get("deterministic") and not planned:
        return [_repeat(again, "under the determinism settings on both sides", deterministic=True)]
    if slug in _REPEAT:
        return [_repeat(again, "once more: a difference that moves is a race", token=f"{again.get('token', '')}again"[-64:])]
    if planned:
        return []
    if slug == "unresolved-difference" and again.get("steps"):
        first, last = again["steps"].split(":")
        return [_repeat(again, "some steps more, so that what reads it is seen", steps=f"{first}:{int(last) + _MORE_STEPS}")]
    if slug == "trusted-work":
        return [_repeat(again, "with every operator observed", mode="full")]
    if slug in _CLOSER and answer["mode"] != "verify":
        return [_repeat(again, "with every input read again", mode="verify")]
    if slug in ("unequal-length", "ended-early") and not again.get("steps"):
        steps = answer["compared"]["steps"]
        # The last one in common is what the shorter side did after its last update: no step.
        if steps and min(steps) < max(steps):
            return [_repeat(again, "only the steps that both sides made", steps=f"{min(steps)}:{max(steps)}")]
    return []


def _repeat(again: Mapping[str, Any], why: str, **changed: Any) -> Next:
    return Next("compare", {**again, **changed}, why)


def _is_open(answer: Mapping[str, Any]) -> bool:
    """Whether the replay of one step could say more, as the answer itself offers."""
    return any("--narrow" in offered["options"] for offered in answer.get("next", []))


def _distinct(calls: list[Next]) -> list[Next]:
    """Each call once, in order."""
    found: list[Next] = []
    for call in calls:
        if not any(call.tool == other.tool and call.arguments == other.arguments for other in found):
            found.append(call)
    return found
