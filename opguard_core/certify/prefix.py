"""The equal prefix of a rank pair: counted window by window, up to the first difference or the end."""

from __future__ import annotations

import numpy as np

from opguard_core.align import slots
from opguard_core.align.aligned import Aligned
from opguard_core.align.columns import KINDS, MARKER, READ, Ints
from opguard_core.align.timeline import REFERENCE, SUSPECT, Row, Step
from opguard_core.certify.accounted import Accounted
from opguard_core.certify.findings import RankFindings
from opguard_core.certify.index import WindowIndex
from opguard_core.certify.roots import Node
from opguard_core.certify.standing import Rows
from opguard_core.certify.statecompare import StateBoundary
from opguard_core.ids import Kind, Marker

_GAP = KINDS.index(Kind.GAP)


def note_state(findings: RankFindings, number: int, state: StateBoundary, accounted: Accounted) -> None:
    """Count what the state boundary of a window says: what is equal, what is missing, what has no counterpart.

    Parameters that only one side keeps have one all the same where the other side made the same values.
    """
    for side in (REFERENCE, SUSPECT):
        if not state.present[side]:
            findings.state_missing[side].append(number)
    findings.state_slots += state.count_same()
    findings.updates += state.count_same("param")
    lone = (
        [name for name, row in names.get("param", {}).items() if not accounted.kept(Row(side, number, row))]
        for side, names in ((REFERENCE, state.reference_only), (SUSPECT, state.suspect_only))
    )
    left, right = lone
    findings.drawn_apart = state.drawn_apart  # of the last window that is compared
    if left or right:
        findings.state_unmatched.append((number, left, right))


def note_optimizers(findings: RankFindings, aligned: Aligned) -> None:
    """Count the optimizers that each side made in a window."""
    for side, flow in ((REFERENCE, aligned.reference), (SUSPECT, aligned.suspect)):
        window = flow.window
        made = window.operator[window.kind == MARKER]
        findings.optimizers[side] += sum(window.text(number) == Marker.OPTIMIZER_INIT for number in made.tolist())


def count(findings: RankFindings, rows: Rows, step: Step, index: WindowIndex, pivot: Node | None) -> None:
    """Add a window to the equal prefix: all of it, or what stands before the pivot.

    Args:
        findings: Where to count.
        rows: Look-ups over the rank pair.
        step: The window, which both sides have.
        index: The same, indexed.
        pivot: The first difference that matters, if it is known by now; it may lie in an earlier window.
    """
    aligned = index.aligned
    outputs, reads = aligned.outputs, aligned.inputs
    equal = ~aligned.differs
    within = np.ones(len(aligned.pairs), bool)
    if pivot is not None:
        limit = rows.order(pivot)
        within = np.array([(step.number, order) < limit for order in orders(index).tolist()], bool)
    kept = equal & within
    findings.prefix.pairs += int(kept.sum())
    for matched in (outputs, reads):
        part = kept[matched.pair] & matched.same & (matched.code != slots.UNKNOWN)
        findings.prefix.tensors += int(part.sum())
        findings.prefix.bytes += int(aligned.suspect.window.nbytes[matched.right[part]].sum())
    is_read = aligned.reference.window.kind[aligned.pairs] == READ
    findings.reads += int((is_read & within & ~aligned.reads_differ).sum())
    for side, event in ((REFERENCE, pivot.left if pivot else None), (SUSPECT, pivot.right if pivot else None)):
        window = index.window(side)
        before = pivot is None or pivot.window == step.number
        seq = int(window.seq[event]) if event is not None and before else int(window.seq[-1])
        findings.last_seq[side] = seq
        findings.gaps[side] += int(((window.kind == _GAP) & (window.seq <= seq)).sum())
        table = step.suspect if side == SUSPECT else step.reference
        assert table is not None
        findings.dropped[side] += sum(min(last, seq) - first + 1 for first, last in table.dropped if first <= seq)


def orders(index: WindowIndex) -> Ints:
    """`WindowIndex.order` of all pairs; int64[pairs]."""
    aligned = index.aligned
    right = aligned.left[aligned.pairs]
    return 2 * (np.arange(len(right)) + np.searchsorted(np.sort(right), right))
