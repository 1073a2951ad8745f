"""Compares traces of mode ``sentinel``: the first step whose state differs, never a place.

Each state event has one digest per kind of state. Parameters, optimizer state and buffers count; a gradient or a random
state that differs is told, because it matters only through them. What this cannot see: which operator, which tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from opguard_core.align.ranks import RankPairs
from opguard_core.align.timeline import Timeline
from opguard_core.certify.completeness import Completeness
from opguard_core.certify.describe import Describer
from opguard_core.certify.findings import RankFindings
from opguard_core.certify.reasons import reason
from opguard_core.certify.statecompare import COUNTED
from opguard_core.certify.summary import summarise
from opguard_core.certify.verdict import Reason, Verdict
from opguard_core.ids import SENTINEL, SIDES, Kind, Status
from opguard_core.trace.reader import RankTrace, Run
from opguard_core.trace.schema import SlotRow
from opguard_core.trace.window import WindowTable

STATE_KINDS = (*COUNTED, "grad")


@dataclass(frozen=True)
class StepState:
    """The state at the end of one window.

    Attributes:
        window: Window number.
        why: Occasion of the record: an update, a skipped one, the end of the run.
        kinds: Slot by kind of state.
        random: Digest by random stream.
        gaps: Gap events of the window.
        last_seq: Last event of the window.
    """

    window: int
    why: str
    kinds: dict[str, SlotRow]
    random: dict[str, int]
    gaps: int
    last_seq: int


@dataclass
class Found:
    """What one rank pair has to say.

    Attributes:
        findings: Counts, in the words of the other judge.
        step: First window at whose end counted state differs, or None.
        kinds: Kinds that differ there.
        reordered: Kinds that hold the same elements in another order from the first common step on; compared without order.
        first: First window in which another kind differs, by kind ("grad", "rng:cpu").
        unmatched: Kinds whose tensors have no counterpart, with the first such window and both sides' sizes.
        unread: Counted kinds of which a part was lost, with the first such window and the sides: their sums say nothing.
        doubtful: Of kinds that could not be read at the last window compared: the window since which that is so.
    """

    findings: RankFindings
    step: int | None = None
    kinds: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)
    first: dict[str, int] = field(default_factory=dict)
    unmatched: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    unread: dict[str, tuple[int, str]] = field(default_factory=dict)
    doubtful: dict[str, int] = field(default_factory=dict)


def is_sentinel(run: Run) -> bool:
    """Whether a run was recorded in mode ``sentinel``."""
    return any(trace.manifest.mode == SENTINEL for trace in run.ranks.values())


def compare_sentinels(reference: Run, suspect: Run, ranks: RankPairs, conflicts: tuple[str, ...]) -> Verdict:
    """Compare two sentinel runs.

    Args:
        reference: The run that is taken to be right.
        suspect: The run under suspicion.
        ranks: Which rank stands for which.
        conflicts: Contract differences that change arithmetic.

    Returns:
        `identical` over the state at the end of the common steps, or `inconclusive`; ``located`` says which step to replay.

    Raises:
        TraceFormatError: A trace holds what no trace may hold.

    Cost: linear in the number of steps; some rows each.
    """
    traces = [(reference.ranks[a], suspect.ranks[b]) for a, b in ranks.pairs]
    found = [_compare_rank(*both, *pair) for both, pair in zip(traces, ranks.pairs, strict=True)]
    completeness = Completeness(reference, suspect, ranks, [one.findings for one in found], conflicts)
    judged = [(one.findings, Describer(Timeline(*both), one.findings.rank)) for one, both in zip(found, traces, strict=True)]
    verdict = summarise(judged, completeness, [])
    reasons = [*verdict.reasons, *_unmatched(found), *_unread(found)]
    located = None if any(entry.slug == "plan-mismatch" for entry in reasons) else _located(found)
    if located is not None:
        # What the traces lack at their ends takes nothing from a step that differs before.
        reasons = [_differs(located), *reasons]
    return replace(
        verdict,
        verdict="inconclusive" if reasons else "identical",
        mode=SENTINEL,
        scope={key: value for key, value in verdict.scope.items() if key != "limit" or not reasons},
        reasons=list(dict.fromkeys(reasons)),
        compared={**verdict.compared, **_compared(found)},
        located=located,
    )


def _states(trace: RankTrace) -> Iterator[StepState]:
    """The last state of each window of a trace, in order."""
    for table in trace.iter_windows():
        strings = table.strings["kind"]
        kinds = table.events["kind"]
        gaps = int((kinds == strings.code(Kind.GAP)).sum())
        last_seq = int(table.events["seq"][-1])
        at = [index for index, code in enumerate(kinds.tolist()) if code == strings.code(Kind.STATE)]
        if at:
            yield _state(table, at[-1], gaps, last_seq)
        else:
            yield StepState(table.window, "", {}, {}, gaps, last_seq)


def _state(table: WindowTable, index: int, gaps: int, last_seq: int) -> StepState:
    rows = table.slots_of(index)
    random = {row.slot: row.mix64 for row in rows if row.slot.startswith("rng:")}
    kinds = {row.slot: row for row in rows if row.slot in STATE_KINDS}
    return StepState(table.window, table.event(index).args.removeprefix("why="), kinds, random, gaps, last_seq)


def _compare_rank(reference: RankTrace, suspect: RankTrace, reference_rank: int, rank: int) -> Found:
    found = Found(RankFindings(rank, reference_rank))
    streams = [_states(reference), _states(suspect)]
    waiting = [next(stream, None) for stream in streams]
    ends: list[int | None] = [None, None]
    while any(waiting):
        number = min(state.window for state in waiting if state is not None)
        here = [state if state is not None and state.window == number else None for state in waiting]
        for side, state in enumerate(here):
            if state is not None:
                ends[side] = number
                waiting[side] = next(streams[side], None)
        if here[0] is None or here[1] is None:
            found.findings.one_sided[0 if here[0] is not None else 1].append(number)
            continue
        _compare_window(found, number, here[0], here[1])
        if found.step is not None:
            break
    findings = found.findings
    findings.completed = [number for number in findings.windows if all(end is not None and number < end for end in ends)]
    for side, trace in enumerate((reference, suspect)):
        findings.dropped[side] = sum(last - first + 1 for first, last in trace.dropped if first <= findings.last_seq[side])
    return found


def _compare_window(found: Found, number: int, left: StepState, right: StepState) -> None:
    findings = found.findings
    findings.windows.append(number)
    for side, state in enumerate((left, right)):
        findings.gaps[side] += state.gaps
        findings.last_seq[side] = state.last_seq
        if not state.kinds:
            findings.state_missing[side].append(number)
    if left.why != right.why or not left.kinds or not right.kinds:
        return  # the end of one run is not compared with an update of the other
    differing = []
    same = 0
    for kind in STATE_KINDS:
        a, b = left.kinds.get(kind), right.kinds.get(kind)
        if a is None and b is None:
            continue
        if a is None or b is None or a.shape != b.shape:
            if kind in COUNTED and left.why != "end":  # what is still in view when a program ends is a matter of its scopes
                found.unmatched.setdefault(kind, (number, _size(a), _size(b)))
        elif not _is_read(found, number, kind, (a, b)) or kind in found.unmatched:
            continue
        elif _is_same(found, kind, a, b):
            same += 1
            found.doubtful.pop(kind, None)
            _count(findings, kind, b)
        elif kind in COUNTED:
            differing.append(kind)
        else:
            found.first.setdefault(kind, number)
    for stream in left.random.keys() & right.random.keys():
        if left.random[stream] != right.random[stream]:
            found.first.setdefault(stream, number)
    findings.prefix.pairs += bool(same and not differing)
    if differing:
        found.step, found.kinds = number, differing


def _is_read(found: Found, number: int, kind: str, rows: tuple[SlotRow, SlotRow]) -> bool:
    """Whether both sums are known: a lost part makes a sum unknown, not different."""
    unread = [side for side, row in zip(SIDES, rows, strict=True) if row.status == Status.UNREADABLE]
    if unread and kind in COUNTED:
        found.unread.setdefault(kind, (number, " and the ".join(unread)))
        found.doubtful.setdefault(kind, number)
    return not unread


def _is_same(found: Found, kind: str, left: SlotRow, right: SlotRow) -> bool:
    """Equal values; equal values in another order where that was so from the first common step on."""
    if kind in COUNTED and len(found.findings.windows) == 1 and left.value64 != right.value64 and left.bag64 == right.bag64:
        found.reordered.append(kind)
    return left.bag64 == right.bag64 if kind in found.reordered else left.value64 == right.value64


def _count(findings: RankFindings, kind: str, row: SlotRow) -> None:
    tensors = _tensors(row)
    findings.prefix.tensors += tensors
    findings.prefix.bytes += row.nbytes
    findings.state_slots += tensors
    findings.updates += tensors if kind == "param" else 0


def _tensors(row: SlotRow) -> int:
    """Number of tensors of a slot: its shape is ``tensors,elements``."""
    count = row.shape.partition(",")[0]
    return int(count) if count.isdecimal() else 0


def _size(row: SlotRow | None) -> str:
    if row is None:
        return "none"
    tensors, _, elements = row.shape.partition(",")
    return f"{tensors} tensors of {elements} elements in all"


def _located(found: list[Found]) -> dict[str, Any] | None:
    """The step to replay: the earliest over all ranks."""
    ranks = [one for one in found if one.step is not None]
    first: dict[str, int] = {}
    for one in found:
        for kind, number in one.first.items():
            first[kind] = min(first.get(kind, number), number)
    if ranks:
        one = min(ranks, key=lambda each: (each.step, each.findings.rank))
        doubtful = [one.doubtful[kind] for kind in one.kinds if kind in one.doubtful]
        facts = {"since": min(doubtful)} if doubtful else {}
        return {"step": one.step, "rank": one.findings.rank, "kinds": one.kinds, "why": "state-differs", "also_differ": first, **facts}
    reordered = [one for one in found if one.reordered and one.findings.windows]
    if reordered:
        one = reordered[0]
        return {
            "step": one.findings.windows[0],
            "rank": one.findings.rank,
            "kinds": one.reordered,
            "why": "state-reordered",
            "also_differ": first,
        }
    return None


def _differs(located: dict[str, Any]) -> Reason:
    step = located["step"]
    first = max(0, located.get("since", step) - 1)
    facts = {"rank": located["rank"], "step": step, "kinds": ", ".join(located["kinds"]), "first": first, "end": step + 1}
    return reason(located["why"], **facts)


def _unmatched(found: list[Found]) -> list[Reason]:
    """Parameters that cannot be told apart by their sum; other kinds are named in ``compared`` only."""
    return [
        reason("state-unmatched", step=number, reference=left, suspect=right)
        for one in found
        for kind, (number, left, right) in one.unmatched.items()
        if kind == "param"
    ][:1]


def _unread(found: list[Found]) -> list[Reason]:
    """State whose sum is not known, because a device did not deliver a part of it."""
    return [
        reason("state-unread", kind=kind, step=number, side=side) for one in found for kind, (number, side) in sorted(one.unread.items())
    ][:1]


def _compared(found: list[Found]) -> dict[str, Any]:
    """What `identical` is about: the state at the end of each step, and nothing in between."""
    unmatched = sorted({kind for one in found for kind in one.unmatched})
    share = dict.fromkeys(SIDES, None)
    return {
        "boundaries": "the state at the end of each step only",
        "state_kinds": [kind for kind in COUNTED if kind not in unmatched],
        "state_not_compared": unmatched,
        "paired_share": share,
        "accounted_share": share,
    }
