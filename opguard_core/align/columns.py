"""One window of one rank on one side, as numpy columns in numbers that mean the same on both sides.

Rows of events are in order of `seq`; the slots of one event stand together, inputs first. Everything that alignment and
certification ask of a window is a column here or is derived from columns once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opguard_core.align.vocabulary import OUTSIDE, Vocabulary, bare_operator
from opguard_core.ids import Direction, Kind, Phase, Status

Ints = NDArray[np.int64]
Small = NDArray[np.int8]
Words = NDArray[np.uint64]
Flags = NDArray[np.bool_]

KINDS = tuple(str(kind) for kind in Kind)
PHASES = ("data", "forward", "eval", "recompute", "backward", "collective", "optimizer", "state")
"""Phases in the order in which a training iteration meets them; ties inside a class of equal content go by it."""
DIRECTIONS = tuple(str(direction) for direction in Direction)
STATUSES = tuple(str(status) for status in Status)

assert sorted(PHASES) == sorted(str(phase) for phase in Phase)

OPERATOR = KINDS.index(Kind.OPERATOR)
READ = KINDS.index(Kind.READ)
COLLECTIVE = KINDS.index(Kind.COLLECTIVE)
STATE = KINDS.index(Kind.STATE)
MARKER = KINDS.index(Kind.MARKER)
OPTIMIZER_PHASE = PHASES.index(Phase.OPTIMIZER)
BACKWARD_PHASE = PHASES.index(Phase.BACKWARD)
DATA_PHASE = PHASES.index(Phase.DATA)
IN = DIRECTIONS.index(Direction.IN)
MUT = DIRECTIONS.index(Direction.MUT)
PROBED = STATUSES.index(Status.PROBED)
CARRIED = STATUSES.index(Status.CARRIED)
UNINITIALISED = STATUSES.index(Status.UNINITIALISED)
METADATA = STATUSES.index(Status.METADATA)
UNREADABLE = STATUSES.index(Status.UNREADABLE)

COMPARED_KINDS = np.array([kind in (Kind.OPERATOR, Kind.COLLECTIVE, Kind.READ) for kind in KINDS])

INPUTS_SCORED = 4
"""Inputs of one event that take part in evidence scores; a list argument of hundreds of tensors is told apart by its first ones."""

_OVERWRITES = frozenset(
    "copy_ fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ log_normal_ geometric_ cauchy_ eye_ set_ "
    "_foreach_zero_ _foreach_copy_ broadcast_ _broadcast_oop_ recv_".split()
)
"""Operators whose written argument is not read first: what stood there before cannot matter to them."""

_FROM_ROOT = frozenset({"broadcast_", "_broadcast_oop_"})
"""Those of them that read it on one rank, whose it is that all get."""


def mixed(words: Words) -> Words:
    """A bijective mixer of 64-bit words (SplitMix64's finaliser).

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    words = words ^ (words >> np.uint64(30))
    words = words * np.uint64(0xBF58476D1CE4E5B9)
    words = words ^ (words >> np.uint64(27))
    words = words * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def combined(*parts: NDArray[Any]) -> Words:
    """One 64-bit key out of several columns of equal length; equal keys stand for equal rows."""
    total = np.zeros(len(parts[0]), np.uint64)
    for part in parts:
        total = mixed(total * np.uint64(0x9E3779B97F4A7C15) + part.astype(np.uint64) + np.uint64(0x632BE59BD9B4E019))
    return total


@dataclass(eq=False)
class Window:
    """Columns of one window.

    Attributes:
        number: Window number (optimizer steps completed, plus offset).
        seq: int64[n], rising.
        kind: int8[n], index into `KINDS`.
        operator: int32[n], operator text.
        op: int32[n], folded operator text.
        phase: int8[n], index into `PHASES`.
        lane: int32[n], thread role text.
        clock: int64[n], collectives begun.
        microbatch: int64[n].
        module, node, args, rng: int32[n], texts.
        rng_before: uint64[n], 0 where `rng` is empty or the state is unknown.
        forward: int64[n], row of the forward event in this window, -1 when none.
        forward_seq: int64[n], -1 when none.
        stack, user_frame, library_frame: int64[n], rows of the rank's tables, -1 when none.
        site, library_site, path: int32[n], texts' numbers of the place, the library place and the whole call path.
        first: int64[n + 1], slot rows of event i are first[i]:first[i + 1].
        event: int32[m], event row of each slot row.
        slot, dtype, shape, tensor: int32[m], texts (`tensor` is the parameter's, buffer's or state's name).
        direction, status: int8[m], indices into `DIRECTIONS` and `STATUSES`.
        storage: int64[m], -1 when none.
        lo, hi, version, nbytes: int64[m]; version -1 when not tracked.
        mix, value, bag: uint64[m].
        trivial: bool[m].
        vocabulary: Where the numbers come from.
        trusts: The trace's mode did not look into some operators.
        rank: Of the trace; -1 where nobody says.
    """

    number: int
    seq: Ints
    kind: NDArray[np.int8]
    operator: NDArray[np.int32]
    op: NDArray[np.int32]
    phase: NDArray[np.int8]
    lane: NDArray[np.int32]
    clock: Ints
    microbatch: Ints
    module: NDArray[np.int32]
    node: NDArray[np.int32]
    args: NDArray[np.int32]
    rng: NDArray[np.int32]
    rng_before: Words
    forward: Ints
    forward_seq: Ints
    stack: Ints
    user_frame: Ints
    library_frame: Ints
    site: NDArray[np.int32]
    library_site: NDArray[np.int32]
    path: NDArray[np.int32]
    first: Ints
    event: NDArray[np.int32]
    slot: NDArray[np.int32]
    dtype: NDArray[np.int32]
    shape: NDArray[np.int32]
    tensor: NDArray[np.int32]
    direction: NDArray[np.int8]
    status: NDArray[np.int8]
    storage: Ints
    lo: Ints
    hi: Ints
    version: Ints
    nbytes: Ints
    mix: Words
    value: Words
    bag: Words
    trivial: Flags
    vocabulary: Vocabulary
    trusts: bool = False
    rank: int = -1

    def __len__(self) -> int:
        """Number of events."""
        return len(self.seq)

    @cached_property
    def comparable(self) -> Flags:
        """bool[n]: operators, collectives and reads; markers, gaps and the state boundary are not aligned."""
        flags: Flags = COMPARED_KINDS[self.kind]
        return flags

    @cached_property
    def known(self) -> Flags:
        """bool[m]: the slot's digests say what its bytes were."""
        flags: Flags = (self.status == PROBED) | (self.status == CARRIED)
        return flags

    @cached_property
    def telling(self) -> Flags:
        """bool[m]: known and not trivial, so equal digests mean the same data."""
        return self.known & ~self.trivial

    @cached_property
    def written(self) -> Flags:
        """bool[m]: returned or changed in place."""
        flags: Flags = self.direction != IN
        return flags

    @cached_property
    def blind(self) -> Flags:
        """bool[n]: the mode trusts this operator: it reads and returns tensors, and none of what it returned was looked at."""
        flags: Flags = np.zeros(len(self), bool)
        if self.trusts:
            rows = np.flatnonzero(self.written)
            unseen = self.status[rows] == METADATA
            flags = np.bincount(self.event[rows[unseen]], minlength=len(self)) > 0
            flags &= np.bincount(self.event[rows[~unseen]], minlength=len(self)) == 0
            flags &= self.kind == OPERATOR
        return flags

    @cached_property
    def overwrites(self) -> Flags:
        """bool[n]: the operator does not read what its written arguments held."""
        distinct, inverse = np.unique(self.operator, return_inverse=True)
        texts = [self.vocabulary.texts[number] for number in distinct]
        flags = np.array([bare_operator(text) in _OVERWRITES or _has_out(text) for text in texts], bool)
        found = flags[inverse.reshape(-1)] if len(texts) else np.zeros(0, bool)
        from_root = [number for number, text in zip(distinct, texts, strict=True) if bare_operator(text) in _FROM_ROOT]
        for event in np.flatnonzero(np.isin(self.operator, from_root)).tolist() if from_root else ():
            found[event] = not self._sends(event)
        return found

    def _sends(self, event: int) -> bool:
        """Whether a broadcast hands out what this rank holds: it is the root, and the bytes are what they were.

        The root is told as its place in the group, which is another number than the rank's where the group is a part of all.
        """
        rows = np.arange(self.first[event], self.first[event + 1])
        before, after = (self.value[rows[self.direction[rows] == direction]].tolist() for direction in (IN, MUT))
        return f"root_rank={self.rank};" in f"{self.text(int(self.args[event]))};" and bool(after) and set(after) <= set(before)

    @cached_property
    def outside(self) -> Flags:
        """bool[n]: torch's dispatcher does not see the call, so nobody says of its arguments which it only fills."""
        distinct, inverse = np.unique(self.operator, return_inverse=True)
        flags = np.array([self.vocabulary.texts[number].partition(".")[0] in OUTSIDE for number in distinct], bool)
        return flags[inverse.reshape(-1)] if len(distinct) else np.zeros(0, bool)

    @cached_property
    def output(self) -> Flags:
        """bool[m]: written, and not the same bytes as a slot written before it in the same event."""
        flags = self.written.copy()
        rows = np.flatnonzero(flags & (self.storage >= 0))
        if len(rows) > 1:
            keys = combined(self.event[rows], self.storage[rows], self.lo[rows], self.hi[rows])
            order = np.argsort(keys, kind="stable")
            again = np.zeros(len(rows), bool)
            again[order[1:]] = keys[order[1:]] == keys[order[:-1]]
            flags[rows[again]] = False
        return flags

    @cached_property
    def read(self) -> Flags:
        """bool[m]: an input whose bytes the operator uses (not the old content of what it merely overwrites)."""
        flags = self.direction == IN
        fills = self.outside[self.event] & ((self.status == UNINITIALISED) | self.written)
        loose = np.flatnonzero((self.overwrites[self.event] | fills) & (self.storage >= 0)) if len(self.event) else np.zeros(0, np.int64)
        if len(loose):
            keys = combined(self.event[loose], self.storage[loose], self.lo[loose], self.hi[loose])
            gone = np.isin(keys, keys[self.written[loose]])
            flags[loose[gone & ~self.written[loose]]] = False
        used = self.status != METADATA
        if self.trusts:
            used |= self.blind[self.event]
        read: Flags = flags & used
        return read

    @cached_property
    def output_rows(self) -> Ints:
        """Slot rows that are outputs, in order."""
        return np.flatnonzero(self.output)

    @cached_property
    def output_first(self) -> Ints:
        """int64[n + 1]: outputs of event i are output_rows[output_first[i]:output_first[i + 1]]."""
        return np.searchsorted(self.event[self.output_rows], np.arange(len(self) + 1))

    @cached_property
    def read_rows(self) -> Ints:
        """Slot rows that are read, in order."""
        return np.flatnonzero(self.read)

    @cached_property
    def read_first(self) -> Ints:
        """int64[n + 1]: reads of event i are read_rows[read_first[i]:read_first[i + 1]]."""
        return np.searchsorted(self.event[self.read_rows], np.arange(len(self) + 1))

    def outputs(self, event: int) -> Ints:
        """Slot rows of one event's outputs."""
        return self.output_rows[self.output_first[event] : self.output_first[event + 1]]

    def reads(self, event: int) -> Ints:
        """Slot rows of one event's reads."""
        return self.read_rows[self.read_first[event] : self.read_first[event + 1]]

    def text(self, number: int) -> str:
        """Text of a number in any of the text columns."""
        return self.vocabulary.texts[number]

    def operator_text(self, event: int) -> str:
        """Full operator name of an event."""
        return self.vocabulary.texts[int(self.operator[event])]


def _has_out(operator: str) -> bool:
    overload = operator.rsplit(".", 1)[-1]
    return (overload == "out" or overload.endswith("_out")) and operator.partition(".")[0] not in OUTSIDE
