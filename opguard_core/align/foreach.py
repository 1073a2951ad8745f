"""Takes operators over lists of tensors apart, one event per element.

A fused or foreach optimizer does in one call what a loop does in many; element by element the two are the same work. What
stays: sequence numbers, operator text and slot names, so that a report shows the call that really ran.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opguard_core.align.columns import IN, Flags, Ints, Window
from opguard_core.align.vocabulary import bare_operator

_ELEMENTWISE = ("_foreach_", "_amp_foreach_", "_fused_")
MAX_SHARED = 16
"""Tensors beside the lists of one operator; more than any real one has."""

_SLOT_COLUMNS = frozenset(
    (
        "slot",
        "dtype",
        "shape",
        "tensor",
        "direction",
        "status",
        "storage",
        "lo",
        "hi",
        "version",
        "nbytes",
        "mix",
        "value",
        "bag",
        "trivial",
    )
)
_OTHER_COLUMNS = frozenset(("number", "vocabulary", "trusts", "rank", "first", "event", "forward", "forward_seq"))


def is_elementwise(operator: str) -> bool:
    """True for an operator that does the same to every element of its lists."""
    return bare_operator(operator).startswith(_ELEMENTWISE)


def split_lists(window: Window) -> Window:
    """Give every element of a list operator an event of its own.

    Tensors that are no list elements are read by every element's event, and written by the last one's.

    Cost: nothing when there is no such operator, else one gather per column.
    """
    texts = window.vocabulary.texts
    distinct = np.unique(window.operator)
    wanted = distinct[[is_elementwise(texts[number]) for number in distinct]] if len(distinct) else distinct
    listed = np.isin(window.operator, wanted)
    if not listed.any():
        return window
    element = _elements(window)
    listed &= _sensible(window, element)
    element = np.where(listed[window.event], element, 0)
    size = np.ones(len(window), np.int64)
    np.maximum.at(size, window.event, element + 1)
    base = np.cumsum(size) - size
    rows, events = _place(window, element, size, base)
    origin = np.repeat(np.arange(len(window)), size)
    columns: dict[str, Any] = {}
    for field in fields(window):
        if field.name in _SLOT_COLUMNS:
            columns[field.name] = getattr(window, field.name)[rows]
        elif field.name not in _OTHER_COLUMNS:
            columns[field.name] = getattr(window, field.name)[origin]
    forward = window.forward[origin]
    forward[forward >= 0] = base[forward[forward >= 0]]
    return replace(
        window,
        **columns,
        forward=forward,
        forward_seq=window.forward_seq[origin],
        event=events.astype(np.int32),
        first=np.searchsorted(events, np.arange(len(origin) + 1)),
    )


def _sensible(window: Window, element: Ints) -> Flags:
    """Events whose element numbers and shared tensors stay within what their slots can mean."""
    slots = np.diff(window.first)
    largest = np.full(len(window), -1, np.int64)
    np.maximum.at(largest, window.event, element)
    shared = np.bincount(window.event[element < 0], minlength=len(window))
    sensible: Flags = (largest >= 0) & (largest < slots) & (shared <= MAX_SHARED)
    return sensible


def _elements(window: Window) -> Ints:
    """Element number of each slot row (``in.0.3`` is 3), -1 for a tensor that is no list element."""
    texts = window.vocabulary.texts
    distinct, inverse = np.unique(window.slot, return_inverse=True)
    numbers = np.array([_element(texts[number]) for number in distinct], np.int64)
    elements: Ints = numbers[inverse.reshape(-1)]
    return elements


def _element(slot: str) -> int:
    parts = slot.split(".")
    if len(parts) == 2 and parts[0] == "out" and parts[1].isdecimal():
        return int(parts[1][:9])  # a returned list is one value per element
    return int(parts[2][:9]) if len(parts) == 3 and parts[2].isdecimal() else -1


def _place(window: Window, element: Ints, size: Ints, base: Ints) -> tuple[Ints, NDArray[np.int64]]:
    """Slot rows in their new order, shared ones repeated, and the new event of each."""
    bounded = np.minimum(element, size[window.event] - 1)
    own = bounded >= 0
    shared_write = ~own & (window.direction != IN)
    events = base[window.event] + np.where(shared_write, size[window.event] - 1, bounded)
    kept = np.flatnonzero(own | shared_write)
    shared = np.flatnonzero(~own & ~shared_write)
    counts = size[window.event[shared]]
    repeated = np.repeat(shared, counts)
    within = np.arange(len(repeated)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = np.concatenate([kept, repeated])
    places = np.concatenate([events[kept], base[window.event[repeated]] + within])
    order = np.lexsort((rows, places))
    return rows[order], places[order]
