"""What a replay showed about a comparison: whether the difference came again, and its bytes, described again from the kept tensors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opguard_core.errors import OpGuardError
from opguard_core.evidence.kept_pair import compare_kept, document
from opguard_core.evidence.refs import JobRef
from opguard_core.ids import SIDES
from opguard_core.trace.files import read_checked
from opguard_core.trace.reader import Run
from opguard_harness.access.untrusted import one_line
from opguard_harness.answer.plain import plain
from opguard_harness.compare.kept_boundary import DAMAGE_FILE, digests_of, kept_of, rank_of, runs_alone
from opguard_harness.compare.replay import place_of
from opguard_harness.config import runs_dir
from opguard_harness.workspace.refusing import refused
from opguard_harness.workspace.replays import replays
from opguard_harness.workspace.reporting.rejudged import differences, rejudged
from opguard_harness.workspace.reporting.transplanted import transplanted, window_of
from opguard_harness.workspace.stored import ANSWER_FILE, answer_of

MOST_REPLAYS = 8
_MAX_BYTES = 64 << 20
_SLOTS_SHOWN = 16
_ANEW = "`confirm_difference` with another `token` makes a replay that can be checked; the newest one is reported."
_TEXT_CHARS = 400
_OF_A_REPLAY = ("pivot", "prefix", "digests")


def confirmation(comparison: str, answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the replays of a comparison showed: the newest one, how the others ended, and the newest transplants.

    Args:
        comparison: Its id.
        answer: Its answer as computed now.

    Returns:
        ``id``, ``confirms`` (the comparison that was run again), ``outcome``, ``verdict``, ``steps``, ``slots`` with the damage of each,
        ``replays`` (how many had which outcome) and ``transplant``; None where there was no replay.

    Raises:
        ReportRefused: A stored outcome, damage or transplant is not what traces and kept tensors give now.

    Cost: judges the traces of the newest `MOST_REPLAYS` again, and compares the kept bytes of the newest again.
    """
    found = list(replays(comparison, answer))[:MOST_REPLAYS] if answer["pivot"] is not None else []
    if not found:
        return None
    judged = [_judged_again(comparison, answer, name, result) for name, result in found]
    (name, result), again = found[0], judged[0]
    told: dict[str, Any] = {
        "id": str(JobRef(name, "result")),
        "confirms": one_line(result["confirms"], 80),
        "outcome": result["outcome"],
        "steps": result["steps"],
        "verdict": "" if again is None else again["verdict"],
        "slots": [],
        "slots_total": 0,
        "counts": {},
        "effect": None,
        "replays": dict(sorted(Counter(one["outcome"] for _, one in found).items())),
        "transplant": _transplants(comparison, found, judged),
    }
    damage = None if again is None else _damage(comparison, name, again if again["pivot"] is not None else answer, again)
    if damage is None:
        return told
    slots = [slot for slot in damage["slots"] if slot["state"] != "equal"][:_SLOTS_SHOWN]
    shown = {"slots": [_slot(slot) for slot in slots], "slots_total": len(damage["slots"]), "counts": damage["counts"]}
    return {**told, "id": str(JobRef(name, "damage")), **shown, "effect": _texts(damage.get("effect"))}


def _judged_again(comparison: str, answer: Mapping[str, Any], name: str, result: Mapping[str, Any]) -> dict[str, Any] | None:
    """The answer of a replay as computed now; None of one that came to none."""
    if not (runs_dir() / name / ANSWER_FILE).is_file():
        if result["outcome"] != "not reproduced" or result.get("comparison"):
            raise refused(comparison, f"its replay {name} is said to be {result['outcome']}, and its answer is not there")
        return None
    again = rejudged(name, answer_of(name), _OF_A_REPLAY)
    pivot = again["pivot"] if again["verdict"] == "diverged" else None
    outcome = "not reproduced" if pivot is None else "same place" if place_of(pivot) == place_of(answer["pivot"]) else "another place"
    if outcome != result["outcome"]:
        raise refused(comparison, f"its replay {name} is said to be {one_line(result['outcome'], 40)}, and its traces say {outcome}")
    steps = window_of(again)
    if steps is not None and list(steps) != result["steps"]:
        what = f"steps {one_line(str(result['steps']), 40)}, and its traces recorded {list(steps)}"
        raise refused(comparison, f"its replay {name} is said to be one of {what}")
    return again


def _transplants(
    comparison: str, found: Sequence[tuple[str, Mapping[str, Any]]], judged: Sequence[Mapping[str, Any] | None]
) -> dict[str, Any] | None:
    """The newest transplants that there are; ``elsewhere``: they are about another difference than the comparison's."""
    for (name, result), again in zip(found, judged, strict=True):
        if again is None or again["pivot"] is None:
            continue
        told = transplanted(comparison, name, again, asked=bool(result.get("transplant")))
        if told is not None:
            return {**told, "elsewhere": result["outcome"] != "same place"}
    return None


def _damage(comparison: str, name: str, about: Mapping[str, Any], again: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the kept tensors of a replay give, which has to be what it stored; None where it kept nothing."""
    path = runs_dir() / name / DAMAGE_FILE
    traces = {side: Path(again["trace"][side]) for side in SIDES}
    ranks = {side: rank_of(about, side) for side in SIDES}
    try:
        kept = tuple(kept_of(traces[side], ranks[side]) for side in SIDES)
        if kept == (None, None):
            if path.exists():
                raise refused(comparison, f"its replay {name} has {DAMAGE_FILE}, and kept no tensors")
            return None
        recorded = tuple(digests_of(Run.open(traces[side]), ranks[side], one) for side, one in zip(SIDES, kept, strict=True))
        stored = json.loads(read_checked(path, limit=_MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise refused(comparison, f"{DAMAGE_FILE} of its replay {name} is no JSON") from error
    except OpGuardError as error:
        if error.slug == "report-refused":
            raise
        raise refused(comparison, f"the damage that its replay {name} shows cannot be read: {error.message}") from error
    both = (kept[0], kept[1])
    compared, slot = compare_kept(both, (recorded[0], recorded[1]), alone=runs_alone(about)), str(about["pivot"].get("slot") or "")
    now: dict[str, Any] = plain(document(both, compared, slot, alone=runs_alone(about)))
    for at, then, found in differences(stored, now, "damage"):
        what = f"{at} is {one_line(repr(then), 60)} in {DAMAGE_FILE}, and the kept tensors give {one_line(repr(found), 60)}"
        raise refused(comparison, f"replay {name}: {what}", _ANEW)
    return now


def _slot(slot: Mapping[str, Any]) -> dict[str, Any]:
    """One slot as a report tells it."""
    fingerprints = {side: {"equal": told["equal"], "by": sorted(told["mix64"])} for side, told in slot["fingerprints"].items()}
    told: dict[str, Any] = _texts(
        {
            "slot": slot["slot"],
            "state": slot["state"],
            "why": slot.get("why", ""),
            "fingerprints": fingerprints,
            "damage": slot.get("damage"),
        }
    )
    return told


def _texts(value: Any) -> Any:
    """Plain values with every text on one visible line."""
    if isinstance(value, str):
        return one_line(value, _TEXT_CHARS)
    if isinstance(value, dict):
        return {one_line(str(key), 80): _texts(item) for key, item in value.items()}
    return [_texts(item) for item in value] if isinstance(value, list) else value
