"""Does all that differs go through one place? The suspect once more with the reference's bytes in place of what differs first.

    the first difference -> its boundary gets the reference's bytes -> all equal: nothing else differs by itself
                         -> the same expression differs again: every execution of it gets them, with its backward
                         -> another place differs: that one parts by itself, and gets them, too

A fault in the source differs in each step and in its backward; that is not a second fault. All of it runs in private copies, and a run
that has bytes of another one is labelled in its contract. That what was put changed anything is asked of each run: a difference that
does not come each time would else be taken away by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from opguard_core.errors import EvidenceNotFound, TraceFormatError
from opguard_core.evidence.site import Execution, Site, execution_at, executions, forward_of, paired, site_of
from opguard_core.ids import SIDES, Origin
from opguard_core.plan.keeping import ARGUMENTS, MAX_BOUNDARIES
from opguard_core.trace.boundary import BoundaryKey, parse_key
from opguard_core.trace.reader import RankTrace, Run
from opguard_harness.compare.replay import Pair, Replay
from opguard_harness.report.transplant_words import recorded

MAX_ROUNDS = 6
LIMIT_BYTES = 1 << 30
TRANSPLANTED = "transplanted"
"""Reason slug of a verdict that would be `identical`, but for the transplant."""

_READ = (Origin.INPUT_DATA, Origin.INITIAL_STATE, Origin.MUTATED, Origin.UNOBSERVED_PRODUCER)
"""Origins of memory that holds what it should not: that is what gets other bytes, for all its readers."""


class Transplanting(Protocol):
    """Runs both sides once more, or finds the traces of such a run."""

    def transplanted(self, steps: tuple[int, int], pairs: Sequence[Pair], limit_bytes: int) -> Replay:
        """As `replay.Replayer.transplanted`."""


@dataclass(frozen=True)
class Investigation:
    """What transplants showed.

    Attributes:
        outcome: "cause" (all equal once one place was replaced), "several causes" (once more places were), "not all" (something still
            differs), "not judged" (whether something does could not be said), or "not possible".
        causes: Pivots that were found one after another, each by itself: the answer's ``pivot`` objects.
        text: What that means, in sentences.
        why: Why it is not more; empty if all is equal.
        steps: Half-open window in which it holds; of the last step up to its update.
        rounds: What was done: ``asked`` boundaries were to get bytes, and in ``put`` of them that changed something; ``replay`` holds
            the traces; ``verdict`` and ``reasons`` of the comparison afterwards.
    """

    outcome: str
    causes: tuple[dict[str, Any], ...]
    text: str
    why: str
    steps: tuple[int, int]
    rounds: tuple[dict[str, Any], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain form for JSON."""
        return {
            "outcome": self.outcome,
            "text": self.text,
            "why": self.why,
            "steps": list(self.steps),
            "causes": list(self.causes),
            "rounds": list(self.rounds),
        }


class _NotPossibleError(Exception):
    """A difference that no transplant can take away; the text says why."""


@dataclass
class _Cause:
    """A place that was found to differ by itself.

    Attributes:
        pivot: As it was told first.
        sites: Its site on both sides; None for one that is not known.
        window: First window of each side that it differs in.
        own: The boundary of the suspect that it was told of.
        whole: Every execution is replaced.
    """

    pivot: dict[str, Any]
    sites: tuple[Site | None, Site | None]
    window: tuple[int, int]
    own: BoundaryKey
    whole: bool = False


@dataclass
class _Search:
    """One investigation in progress.

    Attributes:
        replayer: Runs the programs.
        here: Where a trace lies while the results are unfinished.
    """

    replayer: Transplanting
    here: Callable[[str], Path]
    causes: list[_Cause] = field(default_factory=list)
    pairs: dict[BoundaryKey, Pair] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)

    def run(self, found: Replay) -> Investigation:
        """Go on until nothing differs, or nothing can be done about it."""
        steps = found.steps
        for _ in range(MAX_ROUNDS):
            assert found.answer is not None
            try:
                self._add(found.answer)
            except _NotPossibleError as error:
                return self._told("not all" if self.rounds else "not possible", steps, str(error))
            found = self.replayer.transplanted(steps, list(self.pairs.values()), LIMIT_BYTES)
            changed = self._changed(found.answer)
            self._note(found, len(changed))
            if found.answer is None:
                return self._told("not judged", steps, f"The last replay gave no answer: {found.problem}")
            if found.answer["pivot"] is None:
                return self._nothing_differs(steps, found, changed)
        return self._told("not all", steps, f"After {MAX_ROUNDS} replays something still differs.")

    def _nothing_differs(self, steps: tuple[int, int], found: Replay, changed: set[BoundaryKey]) -> Investigation:
        """The end, unless that was by chance or could not be judged."""
        assert found.answer is not None
        if not is_equal(found.answer):
            return self._told("not judged", steps, f"Then {found.outcome}.")
        absent = [cause for cause in self.causes if cause.own not in changed]
        if absent:
            return self._told("not possible", steps, f"{_shown(absent[0].pivot)} gave the reference's bytes by itself in the last replay.")
        return self._told("cause" if len(self.causes) == 1 else "several causes", steps, "")

    def _changed(self, answer: dict[str, Any] | None) -> set[BoundaryKey]:
        """The boundaries of a run in which what was put was not there already."""
        ranks = {} if answer is None else self._ranks(answer, SIDES[1])
        told = [one for trace in ranks.values() for one in trace.manifest.extra.get("transplanted", ())]
        return {parse_key(one["boundary"]) for one in told if one["changed"]}

    def _add(self, answer: dict[str, Any]) -> None:
        """Take the first difference of an answer into what is replaced."""
        pivot = answer["pivot"]
        seqs = [pivot["seq"][side] for side in SIDES]
        if None in seqs:
            raise _NotPossibleError(
                f"{pivot['operator']} runs on one side only (origin {pivot['origin']}): the other has nothing to put there."
            )
        ranks = [self._ranks(answer, side) for side in SIDES]
        traces = [ranks[side].get(pivot["rank"]) for side in range(2)]
        if traces[0] is None or traces[1] is None:
            raise _NotPossibleError(f"Rank {pivot['rank']} is not on both sides.")
        both = (traces[0], traces[1])
        known = self._known(both, seqs)
        if known is None:
            self._start(pivot, both, seqs)
        elif not self._widen(known, ranks):
            raise _NotPossibleError(self._again(both[1], pivot))

    def _start(self, pivot: dict[str, Any], traces: tuple[RankTrace, RankTrace], seqs: list[int]) -> None:
        """A place that differs by itself: replace the one boundary."""
        found = [site_of(trace, seq) for trace, seq in zip(traces, seqs, strict=True)]
        left, right = (execution_at(trace, pivot["rank"], seq) for trace, seq in zip(traces, seqs, strict=True))
        if left is None or right is None or found[0] is None or found[1] is None:
            raise _NotPossibleError(f"{_shown(pivot)} is no operator whose results can be replaced.")
        if pivot["slot"].startswith(ARGUMENTS) and pivot["origin"] not in _READ:
            # Other results would leave it as it is, and other bytes there would change that value for its other readers.
            raise _NotPossibleError(f"What {_shown(pivot)} reads ({pivot['slot']}) is another value: it parts before that operator.")
        self.causes.append(_Cause(pivot, (found[0][0], found[1][0]), (found[0][1], found[1][1]), right.key))
        pair = _pair(pivot, left, right)
        if pair is None:
            raise _NotPossibleError(f"{_shown(pivot)}: the two sides have nothing of the same dtype and shape there.")
        self.pairs[pair.suspect] = pair

    def _known(self, traces: tuple[RankTrace, RankTrace], seqs: list[int]) -> _Cause | None:
        """The cause that a difference belongs to: the same expression again, or its backward."""
        sites = []
        for trace, seq in zip(traces, seqs, strict=True):
            forward = forward_of(trace, seq)
            sites.append({found[0] for number in (seq, forward) if number is not None and (found := site_of(trace, number)) is not None})
        return next((cause for cause in self.causes if cause.sites[0] in sites[0] and cause.sites[1] in sites[1]), None)

    def _again(self, suspect: RankTrace, pivot: dict[str, Any]) -> str:
        """What to say of a place that differs again and is not replaced more often than before."""
        found = execution_at(suspect, pivot["rank"], pivot["seq"][SIDES[1]])
        if found is not None and found.key in self.pairs:
            return f"{_shown(pivot)} differs again although the reference's bytes were put there."
        return f"{_shown(pivot)} differs as well, and the two sides do not run it alike there, so nothing can be put."

    def _widen(self, cause: _Cause, ranks: list[dict[int, RankTrace]]) -> bool:
        """Replace every execution of a place, on all ranks; whether that is more than before.

        Looked for in each round anew: a run that ended early did not show all of them.
        """
        cause.whole, before = True, len(self.pairs)
        for rank in sorted(ranks[0].keys() & ranks[1].keys()):
            listed: list[list[Execution]] = []
            for side, site in enumerate(cause.sites):
                assert site is not None
                listed.append(executions(ranks[side][rank], rank, site, cause.window[side]))
            for left, right in paired(*listed):
                pair = _pair(cause.pivot, left, right)
                if pair is not None and len(self.pairs) < MAX_BOUNDARIES:
                    self.pairs.setdefault(pair.suspect, pair)
        return len(self.pairs) > before

    def _ranks(self, answer: dict[str, Any], side: str) -> dict[int, RankTrace]:
        return Run.open(self.here(answer["trace"][side])).ranks

    def _note(self, found: Replay, put: int) -> None:
        verdict = None if found.answer is None else found.answer["verdict"]
        reasons = [] if found.answer is None else [item["slug"] for item in found.answer["reasons"]]
        told = {"asked": len(self.pairs), "put": put, "replay": found.name, "verdict": verdict, "reasons": reasons}
        self.rounds.append({**told, "problem": found.problem})

    def _told(self, outcome: str, steps: tuple[int, int], why: str) -> Investigation:
        """The investigation as a value."""
        pivots = tuple(cause.pivot for cause in self.causes)
        window = recorded(steps)
        each = " (each time it ran, with its backward)"
        places = "; then ".join(f"{_read(cause.pivot)}{each if cause.whole else ''}" for cause in self.causes)
        text = {
            "cause": f"With the reference's bytes in place of {places}, both sides are equal in {window}: "
            "all that differs there goes through that place.",
            "several causes": f"{len(pivots)} places part without one following from the other: {places}. "
            f"With the reference's bytes in place of all of them, both sides are equal in {window}. They may share a line of Python.",
            "not all": f"Replaced: {places}. {why}",
            "not judged": f"Replaced: {places}. Whether something still differs could not be judged. {why}",
            "not possible": f"Nothing could be shown by a transplant. {why}",
        }[outcome]
        return Investigation(outcome, pivots, text, why, steps, tuple(self.rounds))


def investigate(first: Replay, replayer: Transplanting, here: Callable[[str], Path]) -> Investigation:
    """Find out by transplants whether all that differs in the steps of a replay goes through its first difference.

    Args:
        first: A replay that shows a difference.
        replayer: Runs both programs again, in private copies.
        here: Where the trace lies now that an answer names by its final place.

    Cost: a replay of both sides for each round, at most `MAX_ROUNDS`.
    """
    try:
        return _Search(replayer, here).run(first)
    except (TraceFormatError, EvidenceNotFound) as error:
        return Investigation("not possible", (), f"Nothing could be shown by a transplant. {error.message}", error.message, first.steps)


def _pair(pivot: dict[str, Any], left: Execution, right: Execution) -> Pair | None:
    """What is put where for one execution; None if nothing fits."""
    slot = pivot["slot"]
    if slot.startswith(ARGUMENTS):
        fits = slot in left.reads and left.reads[slot] == right.reads.get(slot)
        return Pair(left.key, right.key, {slot: slot}) if fits else None
    shared = {name: name for name, form in right.results.items() if left.results.get(name) == form}
    return Pair(left.key, right.key, shared) if shared and shared.keys() == right.results.keys() else None


def is_equal(answer: dict[str, Any]) -> bool:
    """Whether nothing keeps the sides from being equal but the transplant itself."""
    return answer["verdict"] == "inconclusive" and {item["slug"] for item in answer["reasons"]} == {TRANSPLANTED}


def _shown(pivot: dict[str, Any]) -> str:
    """A pivot in a few words."""
    place = pivot["suspect"] or pivot["reference"]
    return f"{pivot['operator']} at {place['file']}:{place['line']}" if place else str(pivot["operator"])


def _read(pivot: dict[str, Any]) -> str:
    """A pivot, or what it reads, if that is what differs."""
    return f"what {_shown(pivot)} reads ({pivot['slot']})" if pivot["slot"].startswith(ARGUMENTS) else _shown(pivot)
