"""The answer that a tool is asked about, by the id of a comparison or its job, or by its folder; and the ids of what it cites."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from opguard_core.errors import EvidenceNotFound, OpGuardError, TraceFormatError
from opguard_core.evidence.refs import EventRef, JobRef, is_holder
from opguard_core.ids import SIDES
from opguard_harness.access.untrusted import one_line
from opguard_harness.answer.ranks import rank_on
from opguard_harness.config import runs_dir
from opguard_harness.errors import ComparisonNotReady, SideNotFound
from opguard_harness.interface.declaration import Evidence, Next
from opguard_harness.tools.job_result import MOST_WAIT_S
from opguard_harness.tools.shown import line, shown
from opguard_harness.workspace.evidence import digest_of, evidence
from opguard_harness.workspace.stored import ANSWER_FILE, answer_of, folder_of

_QUOTE_CHARS = 100


@dataclass(frozen=True)
class Found:
    """A stored answer.

    Attributes:
        answer: The documented object.
        name: What other tools take for the comparison.
    """

    answer: dict[str, Any]
    name: str

    @cached_property
    def digests(self) -> dict[str, str]:
        """Digest of each side's trace; a side whose trace has gone or was changed is missing."""
        found = {}
        for side in SIDES:
            try:
                digest = digest_of(Path(self.answer["trace"][side]))
            except (EvidenceNotFound, TraceFormatError):
                continue
            if self.answer.get("digests", {}).get(side, digest) == digest:
                found[side] = digest
        return found

    @property
    def problem(self) -> str:
        """What keeps some evidence from being shown; empty if nothing does."""
        gone = [side for side in SIDES if side not in self.digests]
        return f"The trace of {' and '.join(gone)} is gone or was changed, so evidence of it cannot be shown." if gone else ""

    def event_id(self, side: str, boundary: dict[str, Any], part: str = "") -> str:
        """Reference to one side of a boundary of the answer; empty where that side has nothing or its trace has gone."""
        seq = (boundary.get("seq") or {}).get(side)
        if seq is None or side not in self.digests:
            return ""
        return str(EventRef(self.digests[side], self._rank(side, boundary), seq, part))

    def ranks(self, boundary: dict[str, Any]) -> dict[str, int]:
        """The rank of each side."""
        return {side: self._rank(side, boundary) for side in SIDES}

    def _rank(self, side: str, boundary: dict[str, Any]) -> int:
        """The rank of one side."""
        return rank_on(self.answer, side, boundary["rank"])

    def either_id(self, boundary: dict[str, Any]) -> str:
        """Reference to the suspect's side of a boundary, or the reference's where that has nothing."""
        return self.event_id("suspect", boundary) or self.event_id("reference", boundary)

    def events(self, boundary: dict[str, Any], part: str = "") -> list[Evidence]:
        """Evidence of a boundary, the reference's side first."""
        found = []
        for side in SIDES:
            seq = (boundary.get("seq") or {}).get(side)
            if seq is not None and side in self.digests:
                quote = one_line(f"{side}: {boundary['operator']} {part}".rstrip(), _QUOTE_CHARS)
                found.append(evidence(EventRef(self.digests[side], self._rank(side, boundary), seq), quote))
        return found

    def confirming(self) -> list[Next]:
        """The call that replays the comparison, if it can be replayed from its record."""
        from opguard_harness.compare.programs import is_replayable

        if not is_replayable(folder_of(self.name)):
            return []
        from opguard_harness.tools.recording import case_of

        case = case_of(self.name)
        given = {"comparison": self.name, **({"case": case} if case else {})}
        return [Next("confirm_difference", given, "replay both sides in private copies: does it come again there")]

    def itself(self) -> list[Evidence]:
        """Evidence of the verdict: the stored answer; nothing for a comparison outside the state folder."""
        if not is_holder(self.name) or not (runs_dir() / self.name).is_dir():
            return []
        return [evidence(JobRef(self.name, "answer"), self.answer["verdict"])]


def brief(found: Found, boundary: dict[str, Any]) -> dict[str, Any]:
    """A boundary in one or two lines, with the evidence id of the side that shows it."""
    own = "suspect" if boundary.get("suspect") or (boundary.get("seq") or {}).get("suspect") is not None else "reference"
    facts = {
        key: shown(boundary[key], 80)
        for key in ("reason", "origin", "rank", "step", "phase", "slot")
        if boundary.get(key) not in (None, "")
    }
    alone = [side for side in SIDES if (boundary.get("seq") or {}).get(side) is None] if boundary.get("seq") else []
    return {
        "id": found.either_id(boundary),
        "operator": shown(boundary.get("operator", ""), 80),
        **facts,
        "at": line(boundary.get(own)),
        **({"only": next(side for side in SIDES if side not in alone)} if len(alone) == 1 else {}),
    }


def side_named(tool: str, arguments: dict[str, Any], run: str, side: str) -> Path:
    """The trace of a run, or of one side of a comparison.

    Args:
        tool: The tool that was called, for the call that leads out of an error.
        arguments: What it was called with, less what is empty.
        run: A run or comparison.
        side: The side of a comparison; empty for a run.

    Raises:
        SideNotFound: There is no such thing, or a side is missing or too much; says what to call.
    """
    from opguard_harness.workspace.stored import side_of

    try:
        return side_of(run, side)
    except SideNotFound as error:
        given = {name: value for name, value in arguments.items() if value and name != "side"}
        try:
            compared = (folder_of(run) / ANSWER_FILE).exists()
        except OpGuardError:
            compared = False
        way = (
            Next(tool, {**given, "side": "suspect"}, "the suspect of that comparison")
            if compared
            else Next("list_runs", {}, "what there is")
        )
        raise SideNotFound(error.message, hint=error.as_dict()["fix"], next=(way,)) from error


def answer_named(name: str) -> Found:
    """Look a comparison up.

    Args:
        name: Its id, the id of its job, or its result folder.

    Raises:
        ComparisonNotReady: It is a job that has not ended, or ended without an answer; says how to go on.
        SideNotFound: There is no such comparison.
    """
    try:
        answer = answer_of(name)
    except SideNotFound as error:
        raise _not_there(name) or SideNotFound(
            f"{one_line(name, 80)!r} is no comparison.",
            hint="`list_runs` lists comparisons; `compare` or `align` makes one.",
            next=(Next("list_runs", {}, "the comparisons that there are"),),
        ) from error
    folder = folder_of(name)
    return Found(answer, folder.name if folder.parent == runs_dir() else str(folder))


def _not_there(name: str) -> ComparisonNotReady | None:
    """The error for a job without an answer; None if there is no such job."""
    from opguard_harness.jobs.standing import standing

    if not is_holder(name):
        return None
    try:
        now = standing(name)
    except OpGuardError:
        return None
    look = Next("get_job", {"job": now.job}, "how it stands")
    if not now.finished:
        look = Next("get_job", {"job": now.job, "wait_s": MOST_WAIT_S}, "wait for its end")
        return ComparisonNotReady(f"Job {now.job} is {now.state}: there is no answer yet.", next=(look,))
    if now.state == "succeeded" and now.result.get("comparison") == now.job:
        return ComparisonNotReady(
            f"Job {now.job} of {now.tool} has succeeded, but its answer was removed, or is not what was written.",
            hint=f"Call `{now.tool}` again with the same arguments and another `token`.",
            next=(Next("list_runs", {"kind": "compare"}, "other comparisons that there are"),),
        )
    if now.state == "succeeded":
        text = f"Job {now.job} of {now.tool} has succeeded; it is no comparison."
        return ComparisonNotReady(text, hint="`align` compares two runs; `get_job` shows what this one found.", next=(look,))
    return ComparisonNotReady(f"Job {now.job} is {now.state}: it left no answer.", hint="`get_job` says why; compare again.", next=(look,))
