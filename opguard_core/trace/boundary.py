"""The name of a boundary that holds in every run of one program: what a replay is asked to keep, or to transplant.

A number of an event is good for one trace only. A key says instead where the event stands (rank, step, phase, operator, module, and
the user's expression) and which of those that stand there it is, in the order in which they began. Capture counts the same way, so
the key that a trace gives finds its boundary in a replay. What it cannot tell apart: threads that run the same expression in the
same step, in an order of their own.

Standard library only, but for numpy's columns that a trace hands in: the bootstrap reads keys before dependencies are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from opguard_core.errors import EvidenceNotFound
from opguard_core.ids import Kind

if TYPE_CHECKING:
    from opguard_core.trace.reader import RankTrace
    from opguard_core.trace.window import WindowTable

COUNTED = (str(Kind.OPERATOR), str(Kind.COLLECTIVE), str(Kind.READ), str(Kind.GAP), str(Kind.STATE))
"""Kinds of event that can have a key."""

MAX_TEXT = 1 << 16
_TEXTS = ("phase", "operator", "module", "function", "text")
_NUMBERS = ("rank", "step", "occurrence")
_MAX_NUMBER = 1 << 53


@dataclass(frozen=True, slots=True)
class BoundaryKey:
    """One boundary of any run of a program.

    Attributes:
        rank: Global rank.
        step: Window of the trace: optimizer updates completed when it began, plus the offset of a resumed run.
        phase: One of ``ids.Phase``.
        operator: Full name of the operator.
        module: Path of the module, empty outside modules.
        function: Function that the user's innermost frame is in, empty without such a frame.
        text: The expression there.
        occurrence: Which of the boundaries that share all of this it is, 0-based, in the order they began.
    """

    rank: int
    step: int
    phase: str
    operator: str
    module: str
    function: str
    text: str
    occurrence: int = 0

    @property
    def place(self) -> tuple[int, str, str, str, str, str]:
        """What is shared by all its occurrences in one rank."""
        return self.step, self.phase, self.operator, self.module, self.function, self.text

    def as_dict(self) -> dict[str, Any]:
        """Plain form for JSON."""
        return asdict(self)

    def shown(self) -> str:
        """A few words for messages."""
        where = f" in {self.function}" if self.function else ""
        return f"{self.operator} ({self.phase}{where}, step {self.step}, rank {self.rank}, occurrence {self.occurrence})"


def parse_key(value: object) -> BoundaryKey:
    """Read the plain form of a key.

    Raises:
        ValueError: It is none; the text says what is wrong.
    """
    if not isinstance(value, Mapping):
        raise ValueError("a boundary is an object")
    names = [field.name for field in fields(BoundaryKey)]
    if sorted(value) != sorted(names):
        raise ValueError(f"a boundary has the keys {', '.join(names)}")
    for name in _NUMBERS:
        if type(value[name]) is not int or not 0 <= value[name] < _MAX_NUMBER:
            raise ValueError(f"{name} of a boundary is a whole number of at least 0")
    for name in _TEXTS:
        if not isinstance(value[name], str) or len(value[name]) > MAX_TEXT:
            raise ValueError(f"{name} of a boundary is a text of at most {MAX_TEXT} characters")
    return BoundaryKey(**value)


def key_of(trace: RankTrace, rank: int, seq: int) -> BoundaryKey:
    """The key of an event of a trace.

    Args:
        trace: The rank's trace.
        rank: Its number, as the key is to name it.
        seq: The event.

    Raises:
        EvidenceNotFound: The trace does not hold it, or it is no boundary.
        TraceFormatError: The trace cannot be read.

    Cost: reads the window it lies in.
    """
    found = trace.event_at(seq)
    if found is None:
        raise EvidenceNotFound(f"{trace.path} holds no event {seq}.")
    event = found[0]
    if event.kind not in COUNTED:
        raise EvidenceNotFound(f"Event {seq} of {trace.path} is a {event.kind}, which has no content to keep.")
    table = trace.window(event.window)
    keys = {} if table is None else keys_of(trace, rank, table, [seq])
    if seq not in keys:
        raise EvidenceNotFound(f"Event {seq} of {trace.path} began before the step that it was recorded in; it has no key.")
    return keys[seq]


def keys_of(trace: RankTrace, rank: int, table: WindowTable, seqs: Iterable[int]) -> dict[int, BoundaryKey]:
    """Keys of events of one window; what has none is left out.

    Args:
        trace: The rank's trace.
        rank: Its number, as the keys are to name it.
        table: The window, as the trace gives it.
        seqs: The events.

    Cost: one pass over the window for each distinct place.
    """
    alike: dict[BoundaryKey, list[int]] = {}
    keys = {}
    for seq in seqs:
        index = table.index_of(seq)
        if index is None:
            continue
        event = table.event(index)
        if event.kind in COUNTED and event.window == table.window:
            first = BoundaryKey(rank, event.window, event.phase, event.operator, event.module, *words_of(trace, event.user_frame))
            if first not in alike:
                alike[first] = _alike(trace, table, first)
            keys[seq] = replace(first, occurrence=alike[first].index(seq))
    return keys


def find_boundary(trace: RankTrace, key: BoundaryKey) -> int | None:
    """The event of a trace that a key names, None if there is none.

    Raises:
        TraceFormatError: The trace cannot be read.

    Cost: as `key_of`.
    """
    table = trace.window(key.step)
    if table is None:
        return None
    found = _alike(trace, table, key)
    return found[key.occurrence] if key.occurrence < len(found) else None


def words_of(trace: RankTrace, user_frame: int | None) -> tuple[str, str]:
    """Function and expression of the user's innermost frame, empty without one."""
    if user_frame is None or user_frame < 0:
        return "", ""
    columns = trace.frames.columns
    return str(columns["function"][user_frame]), str(columns["text"][user_frame])


def _alike(trace: RankTrace, table: WindowTable, key: BoundaryKey) -> list[int]:
    """Numbers of the events of a window that stand where a key says, in their order."""
    events = table.events
    mask = events["window"] == key.step
    for column in ("phase", "operator", "module"):
        mask &= events[column] == table.strings[column].code(getattr(key, column))
    kinds = {table.strings["kind"].code(kind) for kind in COUNTED}
    return [
        int(events["seq"][index])
        for index in mask.nonzero()[0].tolist()
        if int(events["kind"][index]) in kinds and words_of(trace, int(events["user_frame"][index])) == (key.function, key.text)
    ]
