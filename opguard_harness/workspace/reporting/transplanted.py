"""What transplants showed, found out again from the traces of the replays in which bytes were replaced.

The investigation is made once more: what was put in each replay has to be what it would put there, by the labels that both runs carry,
and what it says at the end has to be what was stored, word for word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opguard_core.errors import OpGuardError
from opguard_core.evidence.refs import JobRef
from opguard_core.ids import SIDES
from opguard_core.plan.keeping import kept_file
from opguard_core.trace.reader import Run
from opguard_harness.access.untrusted import one_line
from opguard_harness.answer.plain import plain
from opguard_harness.compare.confirm import TRANSPLANT_FILE
from opguard_harness.compare.judging import judge
from opguard_harness.compare.launching import SideRun
from opguard_harness.compare.replay import Pair, Replay
from opguard_harness.compare.transplant import investigate
from opguard_harness.config import runs_dir
from opguard_harness.errors import ReportRefused
from opguard_harness.report.progress import Silent
from opguard_harness.workspace.listing import json_object
from opguard_harness.workspace.refusing import refused
from opguard_harness.workspace.reporting.rejudged import differences, filters_of

_REPLAY = re.compile(r"replay-[1-9]\d{0,3}")
_MAX_PLACES = 8
_TEXT_CHARS = 200
_WHY_CHARS = 400
_ANEW = "`confirm_difference` with `transplant` and another `token` makes replays that can be checked."


def transplanted(comparison: str, name: str, again: Mapping[str, Any], *, asked: bool) -> dict[str, Any] | None:
    """The transplants that followed a replay.

    Args:
        comparison: Id of the comparison, for messages.
        name: Id of the replay.
        again: The replay's own answer as computed now; it has a pivot.
        asked: Its result says that there were some.

    Returns:
        ``id``, ``outcome``, ``why`` it is not more, ``steps`` (half open), ``replays`` (how many), ``put`` (boundaries of the last of
        them in which the reference's bytes changed something) and ``places`` (operator and place of each); None where none were made.

    Raises:
        ReportRefused: What is stored is not what the traces of those replays give now.

    Cost: judges the traces of every round, at most `transplant.MAX_ROUNDS`.
    """
    path = runs_dir() / name / TRANSPLANT_FILE
    if not path.exists():
        if asked:
            raise refused(comparison, f"its replay {name} is said to have had transplants, and {TRANSPLANT_FILE} is gone", _ANEW)
        return None
    told = json_object(path)
    rounds = told.get("rounds")
    if not isinstance(rounds, list) or not all(map(_is_round, rounds)):
        raise refused(comparison, f"{TRANSPLANT_FILE} of its replay {name} is not what was written", _ANEW)
    stored = _Stored(comparison, name, rounds, again)
    steps = window_of(again)
    if steps is None:
        raise stored.refused("its trace is none of a replay: it has no window")
    first = Replay(steps, dict(again), "", 0.0)
    now = plain(investigate(first, stored, Path).as_dict())
    if stored.at < len(rounds):
        raise stored.refused(
            f"replays were made after {rounds[stored.at - 1]['replay'] if stored.at else 'the first'}, which nothing asked for"
        )
    for at, then, found in differences(plain(told), now, "transplant"):
        what = f"{at} is {one_line(repr(then), 60)} in {TRANSPLANT_FILE}, and the traces give {one_line(repr(found), 60)}"
        raise stored.refused(what)
    return {
        "id": str(JobRef(name, "transplant")),
        "outcome": now["outcome"],
        "why": one_line(now["why"], _WHY_CHARS),
        "steps": now["steps"],
        "replays": len(rounds),
        "put": rounds[-1]["put"] if rounds else 0,
        "places": [_place(cause) for cause in now["causes"][:_MAX_PLACES]],
    }


def window_of(again: Mapping[str, Any]) -> tuple[int, int] | None:
    """The steps that a replay recorded, as its suspect's trace says."""
    return Run.open(Path(again["trace"][SIDES[1]])).manifest.steps


class _Stored:
    """Hands out the replays that were made, instead of making them.

    Attributes:
        at: How many were handed out.
    """

    def __init__(self, comparison: str, name: str, rounds: list[dict[str, Any]], again: Mapping[str, Any]) -> None:
        self._comparison, self._name, self._rounds, self._again = comparison, name, rounds, again
        self.at = 0

    def transplanted(self, steps: tuple[int, int], pairs: Sequence[Pair], limit_bytes: int) -> Replay:
        """The next one, judged now; it has to be one in which just that was put."""
        if self.at == len(self._rounds):
            raise self.refused("more replays would have been made than there are")
        one = self._rounds[self.at]
        self.at += 1
        folder = runs_dir() / self._name / one["replay"]
        if one["verdict"] is None:
            return Replay(steps, None, one["problem"], 0.0, name=one["replay"])
        traces = {side: folder / side / "trace" for side in SIDES}
        if any(path.is_symlink() for trace in traces.values() for path in (trace, trace.parent, folder, folder.parent)):
            raise self.refused(f"the traces of {one['replay']} are links")
        try:
            runs = {side: Run.open(trace) for side, trace in traces.items()}
            self._require(one["replay"], runs, pairs)
            sides = [SideRun(side, traces[side], None, 0.0) for side in SIDES]
            found: dict[str, Any] = plain(judge(sides[0], sides[1], steps, Silent(), filters_of(self._again)))
        except ReportRefused:
            raise
        except OpGuardError as error:
            raise self.refused(f"{one['replay']} cannot be judged again: {error.message}") from error
        found["trace"] = {side: str(trace) for side, trace in traces.items()}
        return Replay(steps, found, "", 0.0, name=one["replay"])

    def _require(self, replay: str, runs: Mapping[str, Run], pairs: Sequence[Pair]) -> None:
        """Refuse a replay in which something else was put than the first difference of the one before it asks for."""
        kept = {key: index for index, key in enumerate(dict.fromkeys(pair.reference for pair in pairs))}
        for rank, trace in runs[SIDES[1]].ranks.items():
            asked = [pair for pair in pairs if pair.suspect.rank == rank]
            told = trace.manifest.extra.get("transplanted", [])
            wanted = [(pair.suspect.as_dict(), dict(pair.slots), self._seal(runs[SIDES[0]], pair, kept)) for pair in asked]
            if [(one["boundary"], one["slots"], one["kept"]) for one in told] != wanted:
                raise self.refused(f"what {replay} has put on rank {rank} is not what the replay before it asks for")

    def _seal(self, reference: Run, pair: Pair, kept: Mapping[Any, int]) -> str | None:
        rank = reference.ranks.get(pair.reference.rank)
        told = {} if rank is None else rank.manifest.extra.get("kept", {}).get(kept_file(kept[pair.reference]), {})
        return told.get("seal")

    def refused(self, what: str) -> ReportRefused:
        """An error that names the replay."""
        return refused(self._comparison, f"of the transplants after its replay {self._name}, {what}", _ANEW)


def _is_round(one: Any) -> bool:
    """Whether that is the form of a round; what it says is held against its traces."""
    if not isinstance(one, Mapping):
        return False
    named = isinstance(one.get("replay"), str) and _REPLAY.fullmatch(one["replay"]) is not None
    return named and isinstance(one.get("problem"), str) and type(one.get("put")) is int and "verdict" in one


def _place(pivot: Mapping[str, Any]) -> dict[str, str]:
    """A pivot in a few words of the run's."""
    place = pivot["suspect"] or pivot["reference"]
    at = f"{place['file']}:{place['line']}" if place else ""
    return {"operator": one_line(pivot["operator"], _TEXT_CHARS), "at": one_line(at, _TEXT_CHARS)}
