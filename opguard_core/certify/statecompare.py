"""The state boundary at the end of a window: parameters, gradients, optimizer state and buffers of both sides, matched.

It gives `identical` its meaning and catches a last update that nobody reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import compress

import numpy as np

from opguard_core.align import slots
from opguard_core.align.aligned import Aligned
from opguard_core.align.columns import STATE, Ints, Window

Key = Callable[[int], Hashable]

COUNTED = ("param", "optim", "buffer")
"""Kinds of state whose difference matters by itself; a gradient matters only through the update that uses it."""

_HOST_GENERATORS = ("rng:python", "rng:numpy")


@dataclass(frozen=True)
class StateSlot:
    """One piece of state that differs.

    Attributes:
        left: Slot row in the reference's window.
        right: Slot row in the suspect's window.
        left_event: State event of the reference.
        right_event: State event of the suspect.
        kind: "param", "grad", "optim", "buffer" or "rng".
    """

    left: int
    right: int
    left_event: int
    right_event: int
    kind: str

    @property
    def counts(self) -> bool:
        """The difference matters by itself."""
        return self.kind in COUNTED


@dataclass(eq=False)
class StateBoundary:
    """All state of one window's end.

    Attributes:
        present: Whether each side recorded it.
        events: State event of each side.
        left: int64[k], slot rows of the reference that have a counterpart.
        right: int64[k], their counterparts.
        code: uint8[k], how they compare.
        kinds: Kind of each.
        reference_only: Names only the reference has, with their rows, by kind.
        suspect_only: Names only the suspect has, with their rows, by kind.
        drawn_apart: Generators of torch that differ; those of Python and numpy are often not seeded at all.
        exchanged: What counts differs by name only: both sides hold the same contents, under names given to each other.
    """

    present: tuple[bool, bool]
    events: tuple[int, int] = (-1, -1)
    left: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    right: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    code: slots.Codes = field(default_factory=lambda: np.zeros(0, np.uint8))
    kinds: list[str] = field(default_factory=list)
    reference_only: dict[str, dict[str, int]] = field(default_factory=dict)
    suspect_only: dict[str, dict[str, int]] = field(default_factory=dict)
    drawn_apart: list[str] = field(default_factory=list)
    exchanged: bool = False

    def count_same(self, kind: str | None = None) -> int:
        """Number of pieces of state (of one kind) that are the same."""
        same = (self.code <= slots.LAST_SAME).tolist()
        return sum(same) if kind is None else list(compress(self.kinds, same)).count(kind)

    def differing(self) -> list[StateSlot]:
        """Pieces of state that differ."""
        return [
            StateSlot(int(self.left[at]), int(self.right[at]), *self.events, self.kinds[at])
            for at in np.flatnonzero(self.code > slots.LAST_SAME).tolist()
        ]


def kind_of(name: str) -> str:
    """Kind of state by slot name (``param:blocks.0.weight``)."""
    return name.partition(":")[0]


def compare_state(aligned: Aligned) -> StateBoundary:
    """Match the last state event of both sides: by name, then by equal content, then by what alone has its shape.

    Names differ where code was rewritten; contents never pair across windows, so an equal content is the same state.
    """
    left, right = aligned.reference.window, aligned.suspect.window
    events = _boundaries(left, right)
    boundary = StateBoundary((events[0] >= 0, events[1] >= 0))
    if not all(boundary.present):
        return boundary
    left_rows, right_rows = (np.arange(side.first[event], side.first[event + 1]) for side, event in zip((left, right), events, strict=True))
    _, at, other = np.intersect1d(left.slot[left_rows], right.slot[right_rows], return_indices=True)
    pairs = list(zip(left_rows[at].tolist(), right_rows[other].tolist(), strict=True))
    left_rows, right_rows = np.delete(left_rows, at), np.delete(right_rows, other)
    for left_key, right_key in (
        (_by_content(left), _by_content(right)),
        (_by_writer(aligned, suspect=False), _by_writer(aligned, suspect=True)),
        (_by_shape(left), _by_shape(right)),
    ):
        if not len(left_rows) or not len(right_rows):
            break
        made = _matches(_classes(left_rows, left_key), _classes(right_rows, right_key))
        pairs += made
        left_rows = left_rows[~np.isin(left_rows, [a for a, _ in made])]
        right_rows = right_rows[~np.isin(right_rows, [b for _, b in made])]
    if pairs:
        boundary.left, boundary.right = np.array([a for a, _ in pairs]), np.array([b for _, b in pairs])
        boundary.code = slots.compare(left, right, boundary.left, boundary.right)
        boundary.kinds = right.vocabulary.kinds_of_state(right.slot[boundary.right])
        boundary.events = events
        boundary.drawn_apart = _drawn_apart(boundary, left, right)
        if any(slot.counts for slot in boundary.differing()):
            boundary.exchanged = _contents(left, events[0]) == _contents(right, events[1])
    boundary.reference_only, boundary.suspect_only = _names(left, left_rows), _names(right, right_rows)
    return boundary


def _contents(window: Window, event: int) -> list[tuple[str, int, int]]:
    """Kind, shape and content of everything that counts in one state event, names left aside."""
    rows = np.arange(window.first[event], window.first[event + 1])
    kinds = window.vocabulary.kinds_of_state(window.slot[rows])
    return sorted((kind, int(window.shape[row]), int(window.mix[row])) for kind, row in zip(kinds, rows, strict=True) if kind in COUNTED)


def _drawn_apart(boundary: StateBoundary, left: Window, right: Window) -> list[str]:
    """Names of generators that both sides have under the same name, in different states."""
    pairs = [
        (left.text(int(left.slot[slot.left])), right.text(int(right.slot[slot.right])))
        for slot in boundary.differing()
        if slot.kind == "rng"
    ]
    return sorted(name.partition(":")[2] for name, other in pairs if name == other and name not in _HOST_GENERATORS)


def _boundaries(left: Window, right: Window) -> tuple[int, int]:
    """The last state event of each side; both for the same occasion (an update, the end of the run) where both have one.

    What is in view when a run ends is not what is in view after an update, so the two are not compared.
    """
    states = np.flatnonzero(left.kind == STATE), np.flatnonzero(right.kind == STATE)
    common = np.intersect1d(left.args[states[0]], right.args[states[1]])
    chosen = [
        events[np.isin(window.args[events], common)] if len(common) else events[:0]
        for window, events in zip((left, right), states, strict=True)
    ]
    if not all(len(events) for events in states):
        chosen = list(states)
    return int(chosen[0][-1]) if len(chosen[0]) else -1, int(chosen[1][-1]) if len(chosen[1]) else -1


def _by_content(window: Window) -> Key:
    def key(row: int) -> Hashable:
        return (
            (kind_of(window.text(int(window.slot[row]))), int(window.shape[row]), int(window.value[row])) if window.telling[row] else None
        )

    return key


def _by_writer(aligned: Aligned, *, suspect: bool) -> Key:
    """State last written by the two events of one pair."""
    flow = aligned.suspect if suspect else aligned.reference

    def key(row: int) -> Hashable:
        writer = int(flow.writer[row])
        if writer < 0:
            return None
        event = int(flow.window.event[writer])
        pair = int(aligned.right[event]) if suspect else event if aligned.left[event] >= 0 else -1
        place = int(np.searchsorted(flow.window.outputs(event), writer))
        return (pair, place) if pair >= 0 else None

    return key


def _by_shape(window: Window) -> Key:
    return lambda row: (kind_of(window.text(int(window.slot[row]))), int(window.shape[row]))


def _classes(rows: Ints, key: Key) -> dict[Hashable, list[int]]:
    classes: dict[Hashable, list[int]] = defaultdict(list)
    for row in rows.tolist():
        value = key(row)
        if value is not None:
            classes[value].append(row)
    return classes


def _matches(left: dict[Hashable, list[int]], right: dict[Hashable, list[int]]) -> list[tuple[int, int]]:
    """Members of keys that occur equally often on both sides, in order; equal contents may occur more than once."""
    pairs: list[tuple[int, int]] = []
    for value, members in left.items():
        others = right.get(value, [])
        if len(members) == len(others) and (len(members) == 1 or (isinstance(value, tuple) and len(value) == 3)):
            pairs += zip(members, others, strict=True)
    return pairs


def _names(window: Window, rows: Ints) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for row in rows.tolist():
        name = window.text(int(window.slot[row]))
        found[kind_of(name)][name] = row
    return dict(found)
