"""Columns that pairs are looked for by: content signatures, and the evidence that two events do the same work.

Derived from `columns.Window` alone, whole columns at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opguard_core.align.columns import INPUTS_SCORED, Flags, Ints, Window, Words, combined, mixed

OUTPUTS_SCORED = 3


@dataclass(eq=False)
class Features:
    """What alignment asks of one window of one side; see each column."""

    window: Window

    @cached_property
    def output_place(self) -> Ints:
        """Position of each output row among the outputs of its event."""
        window = self.window
        return np.arange(len(window.output_rows)) - window.output_first[window.event[window.output_rows]]

    @cached_property
    def read_place(self) -> Ints:
        """Position of each read row among the reads of its event."""
        window = self.window
        return np.arange(len(window.read_rows)) - window.read_first[window.event[window.read_rows]]

    @cached_property
    def telling_outputs(self) -> Ints:
        """Number of outputs per event whose content is known and not trivial."""
        window = self.window
        return np.bincount(window.event[window.output_rows[window.telling[window.output_rows]]], minlength=len(window))

    @cached_property
    def telling_reads(self) -> Ints:
        """Number of reads per event whose content is known and not trivial."""
        window = self.window
        return np.bincount(window.event[window.read_rows[window.telling[window.read_rows]]], minlength=len(window))

    @cached_property
    def output_content(self) -> Words:
        """Signature of the order-free content of an event's non-trivial outputs, in order."""
        window, rows = self.window, self.window.output_rows
        words = mixed(window.bag[rows] + self.output_place.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        return _summed(words, window.telling[rows], window.event[rows], len(window))

    @cached_property
    def input_content(self) -> Words:
        """Signature of the order-free content of all reads, as a multiset: swapped operands are the same work."""
        window, rows = self.window, self.window.read_rows
        return _summed(mixed(window.bag[rows] + np.uint64(1)), window.known[rows], window.event[rows], len(window))

    @cached_property
    def output_order(self) -> Words:
        """Signature of the ordered content of an event's non-trivial outputs: a permutation of it is another one."""
        window, rows = self.window, self.window.output_rows
        words = mixed(window.value[rows] + self.output_place.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        return _summed(words, window.telling[rows], window.event[rows], len(window))

    @cached_property
    def input_order(self) -> Words:
        """As `input_content`, each read in its own order."""
        window, rows = self.window, self.window.read_rows
        return _summed(mixed(window.value[rows] + np.uint64(1)), window.known[rows], window.event[rows], len(window))

    @cached_property
    def exact(self) -> Words:
        """Key of events that are the same in every respect but the code they come from: operator, arguments, phase, all bytes."""
        window = self.window
        words: Words = window.mix + combined(window.slot, window.dtype, window.shape, window.known)
        words = mixed(words)
        kept = window.read | window.output
        slots = _summed(words, kept, window.event, len(window))
        return combined(window.op, window.args, window.phase, window.rng_before, slots)

    @cached_property
    def joined_in_order(self) -> Words:
        """First key of the content join: operator, outputs element by element, inputs."""
        return combined(self.window.op, self.output_order, self.input_order)

    @cached_property
    def produced_in_order(self) -> Words:
        """As `joined_in_order`, without inputs."""
        return combined(self.window.op, self.output_order)

    @cached_property
    def joined(self) -> Words:
        """Second key of the content join, for other layouts: operator, outputs in any order, inputs."""
        return combined(self.window.op, self.output_content, self.input_content)

    @cached_property
    def produced(self) -> Words:
        """As `joined`, without inputs."""
        return combined(self.window.op, self.output_content)

    @cached_property
    def structural(self) -> Words:
        """Key of events that look the same in the code: operator, whole call path, phase, module and shape."""
        window = self.window
        return combined(window.op, window.path, window.phase, window.module, self.shape)

    @cached_property
    def structural_site(self) -> Words:
        """As `structural`, by the place alone: what survives moving the caller."""
        window = self.window
        return combined(window.op, window.site, window.library_site, window.phase, self.shape)

    @cached_property
    def structural_loose(self) -> Words:
        """As `structural`, without any place: what survives a rewrite."""
        return combined(self.window.op, self.window.phase, self.shape)

    @cached_property
    def main_row(self) -> Ints:
        """Slot row that stands for the event: its first output, else its first read, else -1."""
        window = self.window
        rows = np.full(len(window), -1, np.int64)
        has_read = window.read_first[1:] > window.read_first[:-1]
        rows[has_read] = window.read_rows[window.read_first[:-1][has_read]]
        has_output = window.output_first[1:] > window.output_first[:-1]
        rows[has_output] = window.output_rows[window.output_first[:-1][has_output]]
        return rows

    @cached_property
    def shape(self) -> Ints:
        """Shape number of the main row, -1 when the event has no tensor."""
        return self._main(self.window.shape.astype(np.int64))

    @cached_property
    def dtype(self) -> Ints:
        """Dtype number of the main row."""
        return self._main(self.window.dtype.astype(np.int64))

    @cached_property
    def layout(self) -> Ints:
        """Number of the main row's shape up to a permutation."""
        return self._main(self.window.vocabulary.layout_class(self.window.shape))

    @cached_property
    def numel(self) -> Ints:
        """Elements of the main row."""
        return self._main(self.window.vocabulary.numel(self.window.shape))

    @cached_property
    def tensor(self) -> Ints:
        """Name number of the parameter, buffer or state an event touches, writes first; 0 when none."""
        window = self.window
        names = np.zeros(len(window), np.int64)
        for rows in (np.flatnonzero(window.tensor != 0)[::-1], np.flatnonzero((window.tensor != 0) & window.written)[::-1]):
            names[window.event[rows]] = window.tensor[rows]
        return names

    @cached_property
    def input_bags(self) -> NDArray[np.uint64]:
        """uint64[n, INPUTS_SCORED]: order-free content per read position, 0 when unknown, trivial or absent."""
        return self._columns(self.window.bag, self.window.read_rows, self.read_place, INPUTS_SCORED)

    @cached_property
    def input_values(self) -> NDArray[np.uint64]:
        """As `input_bags`, ordered content."""
        return self._columns(self.window.value, self.window.read_rows, self.read_place, INPUTS_SCORED)

    @cached_property
    def output_bags(self) -> NDArray[np.uint64]:
        """uint64[n, OUTPUTS_SCORED]: order-free content per output position, 0 when unknown, trivial or absent."""
        return self._columns(self.window.bag, self.window.output_rows, self.output_place, OUTPUTS_SCORED)

    @cached_property
    def output_values(self) -> NDArray[np.uint64]:
        """As `output_bags`, ordered content."""
        return self._columns(self.window.value, self.window.output_rows, self.output_place, OUTPUTS_SCORED)

    @cached_property
    def small(self) -> Words:
        """Ordered content of a known, trivial main row (scalars, constants), 0 otherwise."""
        window, rows = self.window, self.main_row
        small = np.zeros(len(window), np.uint64)
        good = np.flatnonzero(rows >= 0)
        good = good[window.known[rows[good]] & window.trivial[rows[good]]]
        small[good] = window.value[rows[good]] | np.uint64(1)
        return small

    @cached_property
    def forward_site(self) -> Ints:
        """Place number of the forward event, 0 when there is none."""
        return self._forward(self.window.site.astype(np.int64))

    @cached_property
    def forward_value(self) -> Words:
        """Ordered content of the forward event's first output, 0 when unknown or trivial."""
        return self._forward(self.output_values[:, 0])

    def _forward(self, column: NDArray[Any]) -> NDArray[Any]:
        found = np.zeros(len(self.window), column.dtype)
        linked = np.flatnonzero(self.window.forward >= 0)
        found[linked] = column[self.window.forward[linked]]
        return found

    def _main(self, column: Ints) -> Ints:
        found = np.full(len(self.window), -1, np.int64)
        good = self.main_row >= 0
        found[good] = column[self.main_row[good]]
        return found

    def _columns(self, words: Words, rows: Ints, place: Ints, width: int) -> NDArray[np.uint64]:
        window = self.window
        table = np.zeros((len(window), width), np.uint64)
        keep = (place < width) & window.telling[rows]
        table[window.event[rows[keep]], place[keep]] = words[rows[keep]] | np.uint64(1)
        return table

    @cached_property
    def has_content(self) -> Flags:
        """Events that can be paired by what they produced."""
        return (self.telling_outputs > 0) & self.window.comparable


def _summed(words: Words, keep: Flags, event: NDArray[np.int32], count: int) -> Words:
    total = np.zeros(count, np.uint64)
    np.add.at(total, event[keep], words[keep])
    return total
