"""What transplants showed about the cause, judged again from the traces of the replays in which bytes were replaced."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opguard_core.errors import OpGuardError
from opguard_core.evidence.refs import JobRef
from opguard_core.ids import SIDES
from opguard_harness.access.untrusted import one_line
from opguard_harness.answer.plain import plain
from opguard_harness.compare.confirm import TRANSPLANT_FILE
from opguard_harness.compare.judging import judge
from opguard_harness.compare.launching import SideRun
from opguard_harness.compare.replay import place_of
from opguard_harness.compare.transplant import is_equal, when_equal
from opguard_harness.config import runs_dir
from opguard_harness.report.progress import Silent
from opguard_harness.workspace.listing import json_object
from opguard_harness.workspace.refusing import refused
from opguard_harness.workspace.reporting.rejudged import filters_of

_UNEQUAL = ("not all", "not possible")
_OUTCOMES = ("cause", "several causes", *_UNEQUAL)
_REPLAY = re.compile(r"replay-[1-9]\d{0,3}")
_MAX_PLACES = 8
_TEXT_CHARS = 200


def transplanted(comparison: str, name: str, again: Mapping[str, Any]) -> dict[str, Any] | None:
    """The transplants that followed a replay.

    Args:
        comparison: Id of the comparison, for messages.
        name: Id of the replay.
        again: The replay's own answer as computed now; it has a pivot.

    Returns:
        ``id``, ``outcome``, ``replays`` (how many), ``put`` (boundaries that got the reference's bytes in the last of them) and
        ``places`` (operator and place of each); None where none were asked for, or an older release made them.

    Raises:
        ReportRefused: The stored outcome is not what the traces of those replays give now.

    Cost: judges the traces of every round, at most `transplant.MAX_ROUNDS`.
    """
    path = runs_dir() / name / TRANSPLANT_FILE
    if not path.exists():
        return None
    told = _stored(path)
    if told is None:
        raise refused(comparison, f"{TRANSPLANT_FILE} of its replay {name} is not what was written")
    rounds, causes = told["rounds"], told["causes"]
    if any("replay" not in one for one in rounds):
        return None
    whole = [one for one in rounds if one["verdict"] is not None]
    judged = [_judged(comparison, runs_dir() / name / one["replay"], again) for one in whole]
    said = [(one["verdict"], sorted(one["reasons"])) for one in whole]
    now = [(one["verdict"], sorted(item["slug"] for item in one["reasons"])) for one in judged]
    if said != now:
        what = f"are said to have given {_brief(said)}, and its traces give {_brief(now)}"
        raise refused(comparison, f"the transplants after its replay {name} {what}")
    found = [place_of(one["pivot"]) for one in (again, *judged) if one["pivot"] is not None]
    if any(place_of(cause) not in found for cause in causes) or (causes and place_of(causes[0]) != found[0]):
        raise refused(comparison, f"the transplants after its replay {name} are said to have found a cause that is in none of its traces")
    equal = bool(judged) and rounds[-1]["verdict"] is not None and is_equal(judged[-1])
    if (told["outcome"] == when_equal(len(causes))) if equal else (told["outcome"] in _UNEQUAL):
        places = [_place(cause) for cause in causes[:_MAX_PLACES]]
        put = rounds[-1]["put"] if rounds else 0
        return {"id": str(JobRef(name, "transplant")), "outcome": told["outcome"], "replays": len(rounds), "put": put, "places": places}
    raise refused(comparison, f"the transplants after its replay {name} are said to show {told['outcome']}, and its traces do not")


def _stored(path: Path) -> dict[str, Any] | None:
    """What an investigation has written; None if that is not its form."""
    found = json_object(path)
    try:
        rounds, causes = found["rounds"], found["causes"]
        whole = found["outcome"] in _OUTCOMES and isinstance(rounds, list) and isinstance(causes, list)
        whole = whole and all(map(_is_round, rounds)) and all(map(place_of, causes))
    except (KeyError, TypeError, AttributeError):
        return None
    return found if whole else None


def _is_round(one: Mapping[str, Any]) -> bool:
    """Whether that is the form of a round; an older release did not name its replay."""
    named = "replay" not in one or _REPLAY.fullmatch(one["replay"]) is not None
    told = one["verdict"] in (None, "identical", "diverged", "inconclusive") and type(one["put"]) is int
    return named and told and all(isinstance(slug, str) for slug in one["reasons"])


def _judged(comparison: str, folder: Path, again: Mapping[str, Any]) -> dict[str, Any]:
    """The two traces of a round, judged now."""
    try:
        sides = [SideRun(side, folder / side / "trace", None, 0.0) for side in SIDES]
        found: dict[str, Any] = plain(judge(sides[0], sides[1], None, Silent(), filters_of(again)))
    except OpGuardError as error:
        raise refused(comparison, f"the transplants after a replay cannot be judged again: {error.message}") from error
    return found


def _brief(rounds: list[tuple[Any, list[str]]]) -> str:
    """Verdicts and reasons of rounds, for a message."""
    return one_line("; ".join(f"{verdict} ({', '.join(slugs)})" for verdict, slugs in rounds), _TEXT_CHARS)


def _place(pivot: Mapping[str, Any]) -> dict[str, str]:
    """A pivot in a few words of the run's."""
    place = pivot["suspect"] or pivot["reference"]
    at = f"{place['file']}:{place['line']}" if place else ""
    return {"operator": one_line(pivot["operator"], _TEXT_CHARS), "at": one_line(at, _TEXT_CHARS)}
