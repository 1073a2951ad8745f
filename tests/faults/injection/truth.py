"""What an answer should have said of an injected fault, and the mark it gets.

The truth comes from where the injector stood, never from the aligner. An uninjected run of the same program tells which
later events a fault reached: up to the fault both are one sequence of events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from opguard_core.align.columns import READ, STATE, Window
from opguard_core.align.loading import RankColumns
from opguard_core.align.timeline import Timeline
from opguard_core.align.vocabulary import Vocabulary
from opguard_core.certify.answer import to_dict
from opguard_core.certify.compare import compare
from opguard_core.errors import OpGuardError
from opguard_core.trace.reader import RankTrace, Run
from tests.faults.injection import faults
from tests.faults.injection.faults import Fault

EXACT, EXPRESSION, CONSUMER, LATE, EARLIER = "exact", "expression", "first consumer", "late", "EARLIER"
ABSORBED, MISSED, REFUSED = "absorbed", "MISSED", "refused"
_DRAWS = ("uniform", "normal", "bernoulli", "random", "rand", "dropout", "exponential", "multinomial")
MARKS = (EXACT, EXPRESSION, CONSUMER, LATE, ABSORBED, REFUSED, EARLIER, MISSED)


@dataclass(frozen=True)
class Event:
    """One event of a trace: its window's columns and its row there."""

    window: Window
    row: int

    @property
    def stack(self) -> int:
        return int(self.window.stack[self.row])

    @property
    def args(self) -> str:
        return self.window.text(int(self.window.args[self.row]))

    def rows(self, *, written: bool) -> list[int]:
        """Slot rows it wrote, or read."""
        rows = range(int(self.window.first[self.row]), int(self.window.first[self.row + 1]))
        return [row for row in rows if self.window.written[row] == written]

    def shown(self) -> list[tuple[int, int]]:
        """What it shows of its work: results, or what it read where it has none."""
        rows = self.rows(written=True) or self.rows(written=False)
        return [(int(self.window.mix[row]), int(self.window.status[row])) for row in rows]


class Events:
    """Every event of one rank by number, list operators whole."""

    def __init__(self, trace: RankTrace) -> None:
        self.by_seq: dict[int, Event] = {}
        columns = RankColumns(trace, Vocabulary())
        for _, window in columns.iter_windows():
            for row, seq in enumerate(window.seq.tolist()):
                self.by_seq.setdefault(seq, Event(window, row))
        self._windows = sorted({id(event.window): event.window for event in self.by_seq.values()}.values(), key=lambda w: int(w.seq[0]))

    def readers(self, storage: int, lo: int, hi: int, after: int) -> Iterator[int]:
        """Events that read bytes of a storage later on, in order, until they are overwritten."""
        left = [(lo, hi)]
        for window in self._windows:
            rows = np.flatnonzero((window.storage == storage) & (window.seq[window.event] > after))
            for row in rows.tolist():
                start, end = int(window.lo[row]), int(window.hi[row])
                if not any(start < b and a < end for a, b in left):
                    continue
                if window.read[row] or window.kind[window.event[row]] == STATE:
                    yield int(window.seq[window.event[row]])
                elif window.output[row] and end - start == window.nbytes[row]:
                    left = [piece for a, b in left for piece in ((a, min(b, start)), (max(a, end), b)) if piece[0] < piece[1]]


def counterparts(reference: RankTrace, suspect: RankTrace) -> dict[int, list[int]]:
    """Reference events by suspect event, of an uninjected pair: those that read the same and gave the same.

    A list operator stands for many.
    """
    found: dict[int, set[int]] = {}
    for step in Timeline(reference, suspect).steps():
        if step.aligned is not None:
            left = step.aligned.pairs[~(step.aligned.differs | step.aligned.reads_differ)]
            right = step.aligned.left[left]
            r, s = step.aligned.reference.window, step.aligned.suspect.window
            for seq, other in zip(s.seq[right].tolist(), r.seq[left].tolist(), strict=True):
                found.setdefault(seq, set()).add(other)
    return {seq: sorted(others) for seq, others in found.items()}


def answer(reference: Path, suspect: Path) -> dict[str, Any]:
    """The answer about two traces; an error that refuses them is one of `inconclusive`."""
    try:
        return to_dict(compare(Run.open(reference), Run.open(suspect)))
    except OpGuardError as error:
        return {"verdict": "inconclusive", "pivot": None, "reasons": [{"slug": error.slug}], "rank_firsts": []}


@dataclass(frozen=True)
class Case:
    """One injected run with everything its mark depends on.

    Attributes:
        fault: What was injected.
        rank: Where.
        placed: Event of the suspect that it hit (for a removed operator: the event that follows).
        counterparts: That event in the reference; several where the suspect does in one call what the reference does in many.
        suspect: Trace of the injected run.
        plain: Trace of the same program without the fault.
        absorbed: The two computed the same.
        paired: Events of the plain run with an equal counterpart in the reference; what one side does alone cannot be compared.
    """

    fault: Fault
    rank: int
    placed: int
    counterparts: tuple[int, ...]
    suspect: Path
    plain: Path
    absorbed: bool
    paired: frozenset[int]


def mark(case: Case, given: dict[str, Any]) -> tuple[str, str]:
    """The mark of an answer, and what it named."""
    pivot = given["pivot"]
    if given["verdict"] == "inconclusive":
        return REFUSED, ",".join(entry["slug"] for entry in given["reasons"])
    if pivot is None:
        return (ABSORBED if case.absorbed else MISSED), "identical"
    left, right = pivot["seq"]["reference"], pivot["seq"]["suspect"]
    said = f"rank {pivot['rank']} {pivot['operator']} [{pivot['origin']}] {left}/{right}"
    if pivot["rank"] != case.rank:
        return LATE, f"{said} on another rank"
    if case.fault.kind != faults.REMOVE:
        return _changed(case, left, right), said
    found = _removed(case, left, right)
    draws = pivot["origin"] == "random-state" and any(name in case.fault.operator for name in _DRAWS)
    return (CONSUMER if found == LATE and draws else found), said  # a draw left out shifts the draws that follow


def _changed(case: Case, left: int | None, right: int | None) -> str:
    silent = case.fault.kind == faults.SILENT
    if right is None:  # named as work that the suspect lacks
        return EXPRESSION if left in case.counterparts else _before(case, left)
    if right < case.placed:
        return EARLIER
    if right == (_first_shown(case) if silent else case.placed):
        return EXACT
    events = _events(case.suspect, case.rank)
    here, there = events.by_seq[case.placed], events.by_seq.get(right)
    if there is not None and here.stack == there.stack and here.window is there.window:
        return EXPRESSION
    return CONSUMER if right in _consumers(case) else LATE


def _removed(case: Case, left: int | None, right: int | None) -> str:
    """The operator itself, as work that the suspect lacks, or the first that reads what it should have written."""
    if left in case.counterparts:
        return EXACT
    if right is None:
        return _before(case, left)
    if right < case.placed:
        return EARLIER
    return CONSUMER if right + 1 in _consumers(case) else LATE


def _before(case: Case, left: int | None) -> str:
    """Whether a reference event stands before the fault's own."""
    return EARLIER if left is not None and case.counterparts and left < min(case.counterparts) else LATE


def _consumers(case: Case) -> set[int]:
    """Events that read what the fault changed, up to the first with a counterpart that shows it; numbered as in the plain run."""
    found: set[int] = set()
    told: set[int] = set()
    for seq in sorted(_reached(case)):
        found.add(seq)
        told = told or _told(case, seq)  # a mode that carries digests does not look at the value again
        if seq in case.paired and _shows(case, seq):
            break
    return found | told


def _told(case: Case, seq: int) -> set[int]:
    """After a value was told to Python: the first operator that has other arguments because of it."""
    plain, injected = _events(case.plain, case.rank), _events(case.suspect, case.rank)
    if plain.by_seq[seq].window.kind[plain.by_seq[seq].row] != READ:
        return set()
    shift = int(case.fault.kind == faults.REMOVE)
    for later in sorted(number for number in plain.by_seq if number > seq):
        one, other = plain.by_seq[later], injected.by_seq.get(later - shift)
        if other is not None and one.args != other.args:
            return {later}
    return set()


def _reached(case: Case) -> set[int]:
    """Events that read the bytes the fault changed, in the plain run, also through work that has no counterpart."""
    plain = _events(case.plain, case.rank)
    start, silent = case.fault.seq, case.fault.kind == faults.SILENT
    event = plain.by_seq[start]
    rows = event.rows(written=not silent)
    path = "in." + case.fault.where.removeprefix("a.")
    rows = ([row for row in rows if event.window.text(int(event.window.slot[row])) == path] or rows) if silent else rows
    found = {start} if silent else set()
    waiting = [(event, rows, start)]
    while waiting:
        event, rows, after = waiting.pop()
        window = event.window
        for row in rows:
            for seq in plain.readers(int(window.storage[row]), int(window.lo[row]), int(window.hi[row]), after):
                if seq not in found and seq not in case.paired:
                    waiting.append((plain.by_seq[seq], plain.by_seq[seq].rows(written=True), seq))
                found.add(seq)
    return found


def _first_shown(case: Case) -> int:
    """First event that reads silently changed bytes and whose own results show them; the first that reads them when none does."""
    return next((seq for seq in sorted(_reached(case)) if _shows(case, seq)), case.placed)


def _shows(case: Case, seq: int) -> bool:
    """An event of the plain run and the same event of the injected run show different bytes."""
    shift = 1 if case.fault.kind == faults.REMOVE and seq > case.fault.seq else 0
    plain, injected = _events(case.plain, case.rank).by_seq.get(seq), _events(case.suspect, case.rank).by_seq.get(seq - shift)
    return plain is None or injected is None or plain.shown() != injected.shown()


_loaded: dict[tuple[Path, int], Events] = {}


def _events(trace: Path, rank: int) -> Events:
    """Events of one rank; a process judges one case, so nothing is ever dropped."""
    if (trace, rank) not in _loaded:
        _loaded[trace, rank] = Events(Run.open(trace).ranks[rank])
    return _loaded[trace, rank]
