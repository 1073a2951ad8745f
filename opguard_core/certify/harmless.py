"""Differences that reached nothing that counts: isolated when they are gone at the end, unresolved when they are not.

Also what no difference of a pair can show: state that one side wrote last of all and the other side does not have.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from opguard_core.align import slots
from opguard_core.align.columns import STATE, Ints, Window
from opguard_core.align.dataflow import covers
from opguard_core.align.timeline import REFERENCE, SUSPECT, Row, Timeline
from opguard_core.certify.accounted import Accounted
from opguard_core.certify.ambiguity import BY_POSITION
from opguard_core.certify.findings import Harmless, RankFindings
from opguard_core.certify.index import SURE, WindowIndex
from opguard_core.certify.matters import Matters
from opguard_core.certify.roots import Node, Root
from opguard_core.certify.standing import Rows
from opguard_core.certify.statecompare import COUNTED, kind_of

MAX_LISTED = 256
"""Isolated differences kept for the report; further ones are counted."""

MAX_EXPLAINED = 64
"""Isolated differences whose origin is looked up."""

MAX_PER_STORAGE = 8
"""Differing writes remembered per storage that is alive at the end, the latest ones."""

CERTAIN = 3
"""Confidence of a pair tied by its data path, as the answer names isolated differences."""

MAX_UPDATES = 16
"""Operators in a row, of one window, that update the same storage."""

_NEVER = np.iinfo(np.int64).max


class HarmlessDifferences:
    """Collects harmless differences of one rank pair and settles them at the end.

    Args:
        timeline: Its windows.
        rows: Look-ups over them.
        findings: Where the outcome goes.
        accounted: What the other side made although only one keeps it.
    """

    def __init__(self, timeline: Timeline, rows: Rows, findings: RankFindings, accounted: Accounted) -> None:
        self.timeline = timeline
        self.rows = rows
        self.findings = findings
        self._accounted = accounted
        self._lefts: dict[int, set[int]] = {}
        self._lasting: dict[tuple[int, int], list[tuple[int, int, Harmless]]] = {}

    def add(
        self, index: WindowIndex, matters: Matters, node: Node, slot: str, differing: list[int], roots: Callable[[Node], list[Root]]
    ) -> None:
        """Take a pair that differs and of which nothing that counts was reached.

        Args:
            index: Its window.
            matters: Dataflow questions about that window.
            node: The pair.
            slot: Name of its first differing output, empty when it has none.
            differing: Indices of its differing outputs.
            roots: Finds where a pair's difference comes from; asked for the ones a report names.
        """
        left, _ = node.both
        if self._unrelated(index, matters, left, differing):
            return
        first = not any(self._from_harmless(index, at) for at in index.inputs_of(int(index.pair_of[left])))
        self._lefts.setdefault(node.window, set()).add(left)
        origin = ""
        if first and len(self.findings.harmless) < MAX_EXPLAINED:
            origin = next((root.origin for root in roots(node) if root.node == node), "")
        harmless = Harmless(node, slot, first, int(index.aligned.confidence[left]), origin)
        outputs = index.aligned.outputs
        for side, rows in ((REFERENCE, outputs.left), (SUSPECT, outputs.right)):
            self._remember(side, index, rows[differing], harmless)
        self._list(harmless)

    def name(self, node: Node, slot: str, origin: str) -> None:
        """Have a difference named that leaves nothing behind, and whose origin is known."""
        self._list(Harmless(node, slot, True, CERTAIN, origin))

    def _list(self, harmless: Harmless) -> None:
        if len(self.findings.harmless) >= MAX_LISTED:
            self.findings.harmless_more += 1
        else:
            self.findings.harmless.append(harmless)

    def lefts(self, window: int) -> set[int]:
        """Reference events of the harmless pairs of a window."""
        return self._lefts.get(window, set())

    def forget(self, nodes: set[Node]) -> None:
        """These turned out to matter."""
        self.findings.harmless = [harmless for harmless in self.findings.harmless if harmless.node not in nodes]

    def _remember(self, side: int, index: WindowIndex, rows: Ints, harmless: Harmless) -> None:
        """Keep what is not freed before the end; only that can be unresolved."""
        storages = index.window(side).storage[rows]
        lasting = (storages >= 0) & (self.timeline.ledgers[side].lifetimes.dead(storages) == _NEVER)
        for row, storage in zip(rows[lasting].tolist(), storages[lasting].tolist(), strict=True):
            writes = self._lasting.setdefault((side, storage), [])
            writes.append((harmless.node.window, row, harmless))
            del writes[:-MAX_PER_STORAGE]

    def _unrelated(self, index: WindowIndex, matters: Matters, left: int, differing: list[int]) -> bool:
        """Two events paired by their place alone that do not work on the same quantity: no difference at all.

        Each of their results exists on the other side as well, or what they read differently has no common origin.
        """
        outputs, pair = index.aligned.outputs, int(index.pair_of[left])
        if index.aligned.how[left] not in BY_POSITION:
            return False
        known = [index.is_known(REFERENCE, int(outputs.left[at])) and index.is_known(SUSPECT, int(outputs.right[at])) for at in differing]
        return all(known) or bool(index.aligned.reads_differ[pair] and not matters.same_quantity(pair))

    def _from_harmless(self, index: WindowIndex, at: int) -> bool:
        """A read that differs because of another harmless difference."""
        inputs = index.aligned.inputs
        if inputs.code[at] <= slots.LAST_SAME:
            return False
        read = Row(REFERENCE, index.window(REFERENCE).number, int(inputs.left[at]))
        return any(self.rows.event(row) in self._lefts.get(row.window, ()) for row in self.timeline.producers(read)[0])

    def settle(self) -> None:
        """At the end, all windows closed: tell isolated from unresolved."""
        unresolved = [
            harmless
            for (side, storage), writes in self._lasting.items()
            for window, row, harmless in writes
            if harmless.confidence >= SURE and self.timeline.ledgers[side].shows(storage, window, row)
        ]
        self.findings.unresolved += dict.fromkeys(unresolved)
        gone = set(unresolved)
        self.findings.harmless = [harmless for harmless in self.findings.harmless if harmless not in gone]
        windows, later = self.findings.windows, [max(side, default=-1) for side in self.findings.one_sided]
        if windows and max(later) < windows[-1] and windows[-1] not in self.findings.completed:
            self._unread_updates(windows[-1])

    def _is_named(self, window: Window, at: int) -> bool:
        return kind_of(window.text(int(window.tensor[at]))) in COUNTED

    def _goes_on(self, row: Row, storage: int) -> bool:
        """The write updates, from its own content, a storage alive at the end whose earlier content both sides have: an average, say.

        A storage that only one side ever had (a meter, a log) is that side's own affair. One that is found freed only after the
        program's last operator went with the program: what a function held is freed when it returns, and was its result until then.
        """
        window = self.timeline.flow(row.side, row.window).window
        if (
            window.tensor[row.row]
            or self.rows.pair_node(row) is not None
            or self.timeline.ledgers[row.side].lifetimes.dead(window.storage[row.row : row.row + 1])[0] <= _last_work(window)
        ):
            return False
        for _ in range(MAX_UPDATES):
            own = [read for read in window.reads(int(window.event[row.row])).tolist() if window.storage[read] == storage]
            before = [writer for read in own for writer in self.timeline.producers(Row(row.side, row.window, read))[0]]
            if any(writer.window < row.window and not self.rows.is_missing(writer) for writer in before):
                return True
            earlier = [writer for writer in before if writer.window == row.window]
            if not earlier:
                return False
            row = earlier[0]  # an update in several operators: scaled, then added to
        return False

    def _is_its_own(self, row: Row) -> bool:
        """The write only copies what both sides have, into something by a name that the other side's state never had."""
        own = self.timeline.flow(row.side, row.window).window
        name = own.text(int(own.tensor[row.row]))
        others = self.findings.completed[-1:] if name else []
        windows = [self.rows.index(number).window(1 - row.side) for number in others]
        named = any(name == window.text(slot) for window in windows for slot in np.unique(_state_slots(window)).tolist())
        return bool(windows) and not named and self._accounted.made(row)

    def _unread_updates(self, number: int) -> None:
        """State written in the last window, after its last state boundary, that the other side does not have at all.

        Named state, and unnamed storages that both sides kept up to date until then.
        """
        index = self.rows.index(number)
        for side in (REFERENCE, SUSPECT):
            flow = index.flow(side)
            window = flow.window
            written = np.flatnonzero(window.output & (window.storage >= 0))
            for storage in np.unique(window.storage[written]).tolist():
                for at in flow.last_writes(storage):
                    row = Row(side, number, at)
                    if not window.known[at] or not self.rows.is_missing(row) or _read_alike(index, row) or self._is_its_own(row):
                        continue
                    if self._is_named(window, at) or self._goes_on(row, storage):
                        node = self.rows.pair_node(row) or self.rows.lone_node(row)
                        self.findings.unresolved.append(Harmless(node, window.text(int(window.slot[at])), True, SURE))
                        return


def _read_alike(index: WindowIndex, row: Row) -> bool:
    """Something read all that was written, and its partner read the same: the other side has it, however little it tells."""
    codes, flow = index.read_codes[row.side], index.flow(row.side)
    extent = int(flow.window.lo[row.row]), int(flow.window.hi[row.row])
    return any(codes[read] < slots.UNKNOWN and covers(flow.window, read, *extent) for read in flow.consumers(row.row))


def _state_slots(window: Window) -> Ints:
    """Names of the slots of a window's state boundaries, as numbers."""
    numbers: Ints = window.slot[window.kind[window.event] == STATE].astype(np.int64)
    return numbers


def _last_work(window: Window) -> int:
    """Number of a window's last operator."""
    return int(window.seq[np.flatnonzero(window.comparable)[-1]])
