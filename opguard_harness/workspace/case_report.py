"""What a report of a case may say: the verdict computed again, its pivot looked up in both traces again, each finding checked again.

Nothing is taken from what an earlier answer said about itself: a difference that its traces do not show now, and a finding
whose evidence does not resolve, are refused by name.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opguard_core.errors import OpGuardError
from opguard_core.evidence.refs import EventRef
from opguard_core.ids import SIDES, Origin
from opguard_harness.access.rules import current
from opguard_harness.access.untrusted import one_line
from opguard_harness.answer.ranks import rank_on
from opguard_harness.errors import ReportRefused
from opguard_harness.interface.declaration import Evidence, Next
from opguard_harness.workspace.belonging import Belonging
from opguard_harness.workspace.cases import require_case
from opguard_harness.workspace.citations import QUOTE_CHARS, recheck, unchecked
from opguard_harness.workspace.evidence import digest_of, evidence, recorded_in
from opguard_harness.workspace.facts import Fact
from opguard_harness.workspace.findings import Finding
from opguard_harness.workspace.refusing import refused
from opguard_harness.workspace.stored import ANSWER_FILE, MAX_ANSWER_BYTES, answer_of, folder_of

if TYPE_CHECKING:
    from opguard_core.trace.schema import SlotRow
    from opguard_harness.workspace.evidence import Recorded

_NAMED = 5
_CONTENT = ("mix64", "value64", "bag64", "xor32", "nbytes", "dtype", "shape")


@dataclass(frozen=True)
class CheckedSide:
    """One side's event of a pivot as its trace holds it now.

    Attributes:
        evidence: The event, and its slot where it has one of that name.
        operator: Its operator.
        content: Data type, shape, bytes and fingerprint of the slot; empty where it has none.
    """

    evidence: Evidence
    operator: str
    content: str


@dataclass(frozen=True)
class CheckedVerdict:
    """A comparison's answer that was read again.

    Attributes:
        comparison: Its id or path.
        answer: The answer.
        digest: Of the file answer.json.
        sides: What the traces hold at the pivot; empty without one.
    """

    comparison: str
    answer: dict[str, Any]
    digest: str
    sides: dict[str, CheckedSide] = field(default_factory=dict)


def check_verdict(comparison: str) -> CheckedVerdict:
    """Read an answer again and look its pivot up in both traces.

    Raises:
        SideNotFound: There is no such comparison.
        ReportRefused: The traces do not show now what the answer says.
    """
    answer = answer_of(comparison)
    digest = hashlib.sha256(current().read(folder_of(comparison) / ANSWER_FILE, "comparison", MAX_ANSWER_BYTES)).hexdigest()
    _check_traces(comparison, answer)
    pivot = answer["pivot"]
    if pivot is None:
        return CheckedVerdict(comparison, answer, digest)
    seqs = pivot.get("seq") or {}
    found = {side: _look_up(comparison, answer, side, seqs[side]) for side in SIDES if seqs.get(side) is not None}
    if not found:
        raise refused(comparison, "its pivot names no event of either trace", "Compare again: an older release made this answer.")
    operators = {side: item.event.operator for side, (item, _) in found.items()}
    if pivot["operator"] not in operators.values():
        there = " and ".join(one_line(name, 60) for name in operators.values())
        raise refused(comparison, f"its pivot is {one_line(pivot['operator'], 60)!r}, and the traces hold {there} there")
    slots = {side: next((row for row in item.slots if row.slot == pivot["slot"]), None) for side, (item, _) in found.items()}
    _check_difference(comparison, pivot, {side: item for side, (item, _) in found.items()}, slots)
    sides = {side: CheckedSide(cited, operators[side], _content(slots[side])) for side, (_, cited) in found.items()}
    return CheckedVerdict(comparison, answer, digest, sides)


def check_findings(findings: list[Finding], case: str) -> list[tuple[Finding, list[Evidence]]]:
    """Check all findings again.

    Returns:
        Each, with the numbers in it that were not checked, and what it cites as it is now.

    Raises:
        ReportRefused: Some do not hold any more; the message names each claim and id.
    """
    checked, wrong = [], []
    known: dict[str, Fact | OpGuardError] = {}
    belonging = Belonging(require_case(case))
    for finding in findings:
        cited, refuted = recheck(finding, belonging, known)
        checked.append((replace(finding, unchecked=unchecked(finding, known)), cited))
        wrong += refuted
    if wrong:
        more = f" And {len(wrong) - _NAMED} more." if len(wrong) > _NAMED else ""
        names = list(dict.fromkeys(item.finding for item in wrong))
        calls = [Next("record_finding", {"case": case, "withdraw": name}, "take it back, or compare again") for name in names[:2]]
        raise ReportRefused(f"No report was written. {' '.join(f'{item}.' for item in wrong[:_NAMED])}{more}", next=calls)
    return checked


def _check_traces(comparison: str, answer: dict[str, Any]) -> None:
    """Both traces are there, and are those that were compared."""
    for side in SIDES:
        try:
            now = digest_of(Path(answer["trace"][side]))
        except OpGuardError as error:
            raise refused(comparison, f"the {side}'s trace cannot be read: {error.message}") from error
        then = answer.get("digests", {}).get(side, now)
        if now != then:
            raise refused(comparison, f"the {side}'s trace was changed after it was compared: digest {then[:12]} then, {now[:12]} now")


def _look_up(comparison: str, answer: dict[str, Any], side: str, seq: int) -> tuple[Recorded, Evidence]:
    """One side's event of the pivot."""
    pivot, trace = answer["pivot"], Path(answer["trace"][side])
    reference = EventRef(digest_of(trace), rank_on(answer, side, pivot["rank"]), seq)
    try:
        found = recorded_in(trace, reference)
    except OpGuardError as error:
        raise refused(comparison, f"{reference} of the {side} does not resolve: {error.message}") from error
    named = EventRef(reference.trace, reference.rank, seq, pivot["slot"] if any(row.slot == pivot["slot"] for row in found.slots) else "")
    return found, evidence(named, one_line(f"{found.event.operator} {pivot['slot']}", QUOTE_CHARS))


def _check_difference(comparison: str, pivot: dict[str, Any], found: dict[str, Recorded], slots: dict[str, SlotRow | None]) -> None:
    """The two events differ: in the slot, in an argument, or in what they drew."""
    if len(found) < len(SIDES):
        if pivot["origin"] != Origin.STRUCTURE.value:
            raise refused(comparison, f"its pivot has an event of the {next(iter(found))} only, and its origin is {pivot['origin']}")
        return
    contents = [row and [getattr(row, name) for name in _CONTENT] for row in (slots[side] for side in SIDES)]
    others = [(item.event.operator, item.event.args, item.event.rng_before) for item in (found[side] for side in SIDES)]
    if contents[0] == contents[1] and others[0] == others[1] and pivot["origin"] != Origin.STRUCTURE.value:
        raise refused(comparison, f"both traces hold the same at its pivot, {one_line(pivot['slot'], 60)!r}")


def _content(slot: SlotRow | None) -> str:
    """What a trace holds about the content of a slot, in a line."""
    return "" if slot is None else f"{slot.dtype}[{slot.shape}], {slot.nbytes} bytes, fingerprint {slot.mix64 & (1 << 64) - 1:016x}"
