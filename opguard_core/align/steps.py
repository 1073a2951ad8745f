"""The step a reader would say an event belongs to, from stacks and markers, after the fact.

A window ends with the optimizer's update; what still belongs to that iteration (an average of weights, logging, a
scheduler) comes after it. The loop rule finds where the next iteration begins: at the first event that went back in the
code around the update, or left the loop around it; or at a marker that only a new iteration has.

Cannot see: loops whose body is a single C call, and code whose bytecode order is not its execution order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opguard_core.ids import Kind, Marker, Phase
from opguard_core.trace.reader import RankTrace
from opguard_core.trace.window import WindowTable

MAIN = "main"
_BEGINS = (str(Marker.TRAIN_FORWARD), str(Marker.LOAD_STATE), str(Marker.OPTIMIZER_INIT))

Frame = tuple[Any, int]
Chain = tuple[Frame, ...]


def departure(chain: Chain, other: Chain) -> tuple[int, int]:
    """Where a chain of calls leaves another: depth, and -1 (went back), 1 (went on) or 0 (still inside the same call).

    A chain is [(code, position in it)], outermost first.
    """
    for depth, ((code, at), (other_code, other_at)) in enumerate(zip(chain, other, strict=False)):
        if code != other_code:
            return depth, 0
        if at != other_at:
            return depth, -1 if other_at < at else 1
    return min(len(chain), len(other)), 0


def loop_depth(update: Chain, moves: Iterable[tuple[Chain, Chain]]) -> int:
    """Depth of the outermost frame that is known to loop around the update.

    Args:
        update: Chain of the update's call.
        moves: Chains of consecutive events.

    Returns:
        Smallest depth of a move back from behind the update to before it; the depth of the call itself when none was seen.
    """
    depth = max(0, len(update) - 1)
    for before, after in moves:
        at, direction = departure(before, after)
        if direction != -1 or at >= depth or before[:at] != update[:at] or before[at][0] != update[at][0]:
            continue
        if after[at][1] <= update[at][1] <= before[at][1]:
            depth = at
    return depth


@dataclass
class _Window:
    """What the rule needs of one window."""

    number: int
    seqs: np.ndarray[Any, np.dtype[np.int64]]
    stacks: np.ndarray[Any, np.dtype[np.int64]]
    marker_seq: int | None
    update_stack: int


@dataclass
class Steps:
    """Reported steps of the events of one rank.

    Attributes:
        trace: The rank's trace.
    """

    trace: RankTrace
    _chains: dict[int, Chain] = field(default_factory=dict)

    def of(self, wanted: Iterable[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """Steps of events given as (window, seq).

        Cost: reads the trace up to the last wanted window once; the rule itself looks at distinct stacks only.
        """
        asked = sorted(set(wanted))
        windows = {window for window, _ in asked}
        moves: set[tuple[int, int]] = set()
        previous: _Window | None = None
        starts: dict[int, tuple[_Window, _Window]] = {}
        for table in self.trace.iter_windows() if asked else ():
            here = self._digest(table, moves)
            if here.number in windows and previous is not None:
                starts[here.number] = (previous, here)
            previous = here
            if here.number > max(windows):
                break
        boundary = {number: self._begin(before, here, moves) for number, (before, here) in starts.items()}
        return {(window, seq): window - 1 if seq < boundary.get(window, 0) else window for window, seq in asked}

    def _digest(self, table: WindowTable, moves: set[tuple[int, int]]) -> _Window:
        events = table.events
        strings = table.strings
        main = events["thread"] == strings["thread"].code(MAIN)
        main &= (events["stack"] >= 0) & (events["kind"] != strings["kind"].code(Kind.SEMANTIC))  # as if nobody had looked
        stacks = events["stack"][main].astype(np.int64)
        pairs = np.unique(np.stack([stacks[:-1], stacks[1:]]), axis=1) if len(stacks) > 1 else np.zeros((2, 0), np.int64)
        moves.update((int(a), int(b)) for a, b in pairs.T if a != b)
        update = np.flatnonzero(events["operator"] == strings["operator"].code(Marker.OPTIMIZER_END))
        if not len(update):
            update = np.flatnonzero(events["phase"] == strings["phase"].code(Phase.OPTIMIZER))
        update = update[events["stack"][update] >= 0]
        return _Window(
            table.window,
            events["seq"][main].astype(np.int64),
            stacks,
            self._marker(table),
            int(events["stack"][update[-1]]) if len(update) else -1,
        )

    def _marker(self, table: WindowTable) -> int | None:
        """First event that only a new iteration has: a training forward, loaded state, a new optimizer, or a fetch for one."""
        events, strings = table.events, table.strings
        codes = [strings["operator"].code(word) for word in _BEGINS]
        begins = np.flatnonzero(np.isin(events["operator"], codes) & (events["kind"] == strings["kind"].code(Kind.MARKER)))
        fetches = np.flatnonzero(events["operator"] == strings["operator"].code(Marker.DATA_FETCH))
        evaluated = np.flatnonzero(events["phase"] == strings["phase"].code(Phase.EVAL))
        first = begins[0] if len(begins) else None
        if len(fetches) and first is not None:
            training = [at for at in fetches.tolist() if at < first and not ((evaluated > at) & (evaluated < first)).any()]
            first = min([first, *training])
        return int(events["seq"][first]) if first is not None else None

    def _begin(self, before: _Window, here: _Window, moves: set[tuple[int, int]]) -> int:
        """First event number of the iteration that begins in a window; past its end when it never does."""
        end = int(here.seqs[-1]) + 1 if len(here.seqs) else 0
        found = [] if here.marker_seq is None else [here.marker_seq]
        if before.update_stack >= 0:
            update = self._chain(before.update_stack)
            depth = loop_depth(update, ((self._chain(a), self._chain(b)) for a, b in moves))
            distinct = {stack: departure(update, self._chain(stack)) for stack in np.unique(here.stacks).tolist()}
            new = [stack for stack, (at, direction) in distinct.items() if direction == -1 or (direction == 1 and at < depth)]
            at = np.flatnonzero(np.isin(here.stacks, new))
            if len(at):
                found.append(int(here.seqs[at[0]]))
        elif not found:
            found.append(0)
        return min(found, default=end)

    def _chain(self, stack: int) -> Chain:
        known = self._chains.get(stack)
        if known is None:
            columns = self.trace.frames.columns
            known = self._chains[stack] = tuple(
                ((columns["file"][frame], columns["function"][frame]), int(columns["lasti"][frame]))
                for frame in self.trace.stacks[stack].tolist()
            )
        return known
