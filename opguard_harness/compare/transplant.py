"""Was that the cause? The suspect once more with the reference's bytes in place of what differs first; then what still differs.

    the first difference -> its boundary gets the reference's bytes -> all equal: that was the cause
                         -> the same expression differs again: every execution of it gets them, with its backward
                         -> another place differs: that is a second cause, which gets them, too

A fault in the source differs in each step and in its backward; that is not a second fault. All of it runs in private copies, and a run
that has bytes of another one is labelled in its contract.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opguard_core.errors import EvidenceNotFound, TraceFormatError
from opguard_core.evidence.site import Execution, Site, execution_at, executions, forward_of, paired, site_of
from opguard_core.ids import SIDES, Origin
from opguard_core.plan.keeping import ARGUMENTS, MAX_BOUNDARIES
from opguard_core.trace.boundary import BoundaryKey
from opguard_core.trace.reader import RankTrace, Run
from opguard_harness.compare.replay import Pair, Replay, Replayer

MAX_ROUNDS = 6
LIMIT_BYTES = 1 << 30
TRANSPLANTED = "transplanted"
"""Reason slug of a verdict that would be `identical`, but for the transplant."""

_READ = (Origin.INPUT_DATA, Origin.INITIAL_STATE, Origin.MUTATED, Origin.UNOBSERVED_PRODUCER)
"""Origins whose difference is in what the boundary reads: that is what gets other bytes."""


@dataclass(frozen=True)
class Investigation:
    """What transplants showed.

    Attributes:
        outcome: "cause" (all equal once one place was replaced), "several causes" (once more places were), "not all" (something still
            differs), or "not possible".
        causes: Pivots that were found one after another, each by itself: the answer's ``pivot`` objects.
        text: What that means, in sentences.
        steps: Half-open window in which it holds.
        rounds: What was done: ``put`` boundaries got bytes; ``replay`` holds the traces; ``verdict`` and ``reasons`` of the comparison
            afterwards.
    """

    outcome: str
    causes: tuple[dict[str, Any], ...]
    text: str
    steps: tuple[int, int]
    rounds: tuple[dict[str, Any], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain form for JSON."""
        return {
            "outcome": self.outcome,
            "text": self.text,
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
        whole: Every execution is replaced.
    """

    pivot: dict[str, Any]
    sites: tuple[Site | None, Site | None]
    window: tuple[int, int]
    whole: bool = False


@dataclass
class _Search:
    """One investigation in progress.

    Attributes:
        replayer: Runs the programs.
        here: Where a trace lies while the results are unfinished.
    """

    replayer: Replayer
    here: Callable[[str], Path]
    causes: list[_Cause] = field(default_factory=list)
    pairs: dict[BoundaryKey, Pair] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)

    def run(self, found: Replay) -> Investigation:
        """Go on until nothing differs, or nothing can be done about it."""
        steps = found.steps
        try:
            for _ in range(MAX_ROUNDS):
                assert found.answer is not None
                self._add(found.answer)
                found = self.replayer.transplanted(steps, list(self.pairs.values()), LIMIT_BYTES)
                self._note(found)
                if found.answer is None:
                    raise _NotPossibleError(found.problem)
                if found.answer["pivot"] is None:
                    return self._all_equal(steps) if is_equal(found.answer) else self._told("not all", steps, f"Then {found.outcome}.")
        except _NotPossibleError as error:
            return self._told("not all" if self.rounds and self.causes[1:] else "not possible", steps, str(error))
        return self._told("not all", steps, f"After {MAX_ROUNDS} replays something still differs.")

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
        elif not self._widen(known, ranks, pivot):
            raise _NotPossibleError(f"{_shown(pivot)} differs again although its results were replaced.")

    def _start(self, pivot: dict[str, Any], traces: tuple[RankTrace, RankTrace], seqs: list[int]) -> None:
        """A place that differs by itself: replace the one boundary."""
        found = [site_of(trace, seq) for trace, seq in zip(traces, seqs, strict=True)]
        left, right = (execution_at(trace, pivot["rank"], seq) for trace, seq in zip(traces, seqs, strict=True))
        if left is None or right is None or found[0] is None or found[1] is None:
            raise _NotPossibleError(f"{_shown(pivot)} is no operator whose results can be replaced.")
        self.causes.append(_Cause(pivot, (found[0][0], found[1][0]), (found[0][1], found[1][1])))
        pair = _pair(pivot, left, right)
        if pair is None:
            raise _NotPossibleError(f"{_shown(pivot)}: the two sides have no results of the same dtype and shape there.")
        self.pairs[pair.suspect] = pair

    def _known(self, traces: tuple[RankTrace, RankTrace], seqs: list[int]) -> _Cause | None:
        """The cause that a difference belongs to: the same expression again, or its backward."""
        sites = []
        for trace, seq in zip(traces, seqs, strict=True):
            forward = forward_of(trace, seq)
            sites.append({found[0] for number in (seq, forward) if number is not None and (found := site_of(trace, number)) is not None})
        return next((cause for cause in self.causes if cause.sites[0] in sites[0] and cause.sites[1] in sites[1]), None)

    def _widen(self, cause: _Cause, ranks: list[dict[int, RankTrace]], pivot: dict[str, Any]) -> bool:
        """Replace every execution of a place, on all ranks; whether that is more than before."""
        if cause.whole:
            return False
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

    def _note(self, found: Replay) -> None:
        verdict = None if found.answer is None else found.answer["verdict"]
        reasons = [] if found.answer is None else [item["slug"] for item in found.answer["reasons"]]
        self.rounds.append({"put": len(self.pairs), "replay": found.name, "verdict": verdict, "reasons": reasons, "problem": found.problem})

    def _all_equal(self, steps: tuple[int, int]) -> Investigation:
        return self._told(when_equal(len(self.causes)), steps, "")

    def _told(self, outcome: str, steps: tuple[int, int], why: str) -> Investigation:
        """The investigation as a value."""
        pivots = tuple(cause.pivot for cause in self.causes)
        first, last = steps[0], steps[1] - 1
        window = f"step {first}" if first == last else f"steps {first} to {last}"
        places = "; then ".join(
            f"{_shown(cause.pivot)}{' (each time it ran, with its backward)' if cause.whole else ''}" for cause in self.causes
        )
        text = {
            "cause": f"With the reference's bytes in place of {places}, both sides are equal in {window}: that was the cause.",
            "several causes": f"{len(pivots)} places differ by themselves: {places}. With the reference's bytes in place of all of them, "
            f"both sides are equal in {window}.",
            "not all": f"Replaced: {places}. {why}",
            "not possible": f"Nothing could be shown by a transplant. {why}",
        }[outcome]
        return Investigation(outcome, pivots, text, steps, tuple(self.rounds))


def investigate(first: Replay, replayer: Replayer, here: Callable[[str], Path]) -> Investigation:
    """Find out by transplants whether the first difference of a replay is the cause of all others in its steps.

    Args:
        first: A replay that shows a difference.
        replayer: Runs both programs again, in private copies.
        here: Where the trace lies now that an answer names by its final place.

    Cost: a replay of both sides for each round, at most `MAX_ROUNDS`.
    """
    try:
        return _Search(replayer, here).run(first)
    except (TraceFormatError, EvidenceNotFound) as error:
        return Investigation("not possible", (), f"Nothing could be shown by a transplant. {error.message}", first.steps)


def _pair(pivot: dict[str, Any], left: Execution, right: Execution) -> Pair | None:
    """What is put where for one execution; None if nothing fits."""
    slot = pivot["slot"]
    if pivot["origin"] in _READ and slot.startswith(ARGUMENTS):
        fits = slot in left.reads and left.reads[slot] == right.reads.get(slot)
        return Pair(left.key, right.key, {slot: slot}) if fits else None
    shared = {name: name for name, form in right.results.items() if left.results.get(name) == form}
    return Pair(left.key, right.key, shared) if shared and shared.keys() == right.results.keys() else None


def when_equal(causes: int) -> str:
    """The outcome of an investigation after which nothing differs, by the places that were replaced."""
    return "cause" if causes == 1 else "several causes"


def is_equal(answer: dict[str, Any]) -> bool:
    """Whether nothing keeps the sides from being equal but the transplant itself."""
    return answer["verdict"] == "inconclusive" and {item["slug"] for item in answer["reasons"]} == {TRANSPLANTED}


def _shown(pivot: dict[str, Any]) -> str:
    """A pivot in a few words."""
    place = pivot["suspect"] or pivot["reference"]
    return f"{pivot['operator']} at {place['file']}:{place['line']}" if place else str(pivot["operator"])
