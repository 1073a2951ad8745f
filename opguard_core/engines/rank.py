"""Everything the engines of one rank share: where events go, what is known of storages, names, threads and progress."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from opguard_core.engines.collectives import Collectives
from opguard_core.engines.coverage import Coverage
from opguard_core.engines.guard import Guard
from opguard_core.engines.kinds import is_plain, pieces
from opguard_core.engines.lanes import Lane, Lanes
from opguard_core.engines.operators import Handling, OperatorPlan
from opguard_core.engines.outbox import Outbox
from opguard_core.engines.places import NoPlaces, Places
from opguard_core.engines.probes import Probes
from opguard_core.engines.progress import Progress
from opguard_core.engines.protocol import EventSink
from opguard_core.engines.randomness import Generators
from opguard_core.engines.shims import around
from opguard_core.engines.storages import Storages
from opguard_core.engines.streams import Streams
from opguard_core.engines.weakly import weakly
from opguard_core.fingerprint.digest import Digests
from opguard_core.ids import SENTINEL, Direction, Status
from opguard_core.probe import backends
from opguard_core.probe.promise import Difference, Promise
from opguard_core.probe.tensor import fingerprint
from opguard_core.trace.schema import SlotRow

_current_node = torch._C._current_autograd_node
MOST_HOOKS = 1 << 14  # that are remembered; older ones stay where they are


class RankContext:
    """Shared bookkeeping of one rank.

    Args:
        sink: Where rows go.
        user_root: Folder that source files are named relative to.
        mode: One of ``ids.MODES``.
        trusted: Schema names the mode does not look into.
        steps: Window to record, or None.
        step_offset: Updates done before this run, or None if unknown.
    """

    def __init__(
        self,
        sink: EventSink,
        user_root: Path,
        *,
        mode: str = "full",
        trusted: frozenset[str] = frozenset(),
        steps: tuple[int, int] | None = None,
        step_offset: int | None = None,
    ) -> None:
        self.sink, self.mode = sink, mode
        self.verify = mode == "verify"
        self.trusted = trusted if mode == "trusted" else frozenset()
        self.outbox = Outbox(sink)
        self.coverage = Coverage(weakly(self._oldest_open, gone=0))
        self.guard = Guard(self.coverage)
        self.storages = Storages(lambda: self.outbox.next_seq)
        self.collectives = Collectives(self.outbox, self.coverage)
        self.probes = Probes(self.storages, self.coverage, carry=not self.verify, consume=self.collectives.consume)
        self.places: Places | NoPlaces = NoPlaces() if mode == SENTINEL else Places(sink, user_root)
        self.progress = Progress(steps, step_offset)
        self.generators = Generators()
        self.streams = Streams() if backends.any_expected() else None  # of devices; None where there can be none
        self.lanes = Lanes()
        self.book: Any = None  # what C++ knows of names in a native session
        # What this run keeps in full or transplants; set by the session before the first event.
        self.closeup: Any = None
        self.launches: Any = None  # what collects device work, if anything does
        # Set in a forked child: the trace is its parent's, so nothing is looked at and no lock is taken.
        self.dead = False
        # Set once a forward made a node whose backward must run without us, see `aside`.
        self.nodes_to_leave_alone = False
        self.gradient_hooks: deque[Any] = deque(maxlen=MOST_HOOKS)  # of ours, on nodes of graphs; the latest, whether they have run or not

    def _oldest_open(self) -> int:
        return self.outbox.oldest_open

    def abandon_in_child(self) -> None:
        """After a fork, in the child: be dead, and own no lock that a vanished thread may hold."""
        self.dead = True
        holders: tuple[Any, ...] = (self.outbox, self.coverage, self.storages, self.places, self.lanes)
        for holder in holders:
            holder._lock = threading.RLock()

    def around_modules(self, original: Callable[..., Any], enter: Callable[..., Any], leave: Callable[..., Any]) -> Any:
        """What stands in the place of ``Module.__call__``, see `shims.around`."""
        return around(original, enter, leave)

    def mark(self, operator: str, args: str, phase: str | None) -> bool:
        """Emit a marker where the calling thread stands, see `markers.event_here`; False if the caller has to."""
        del operator, args, phase
        return False

    def forward_of_current_node(self, lane: Lane) -> tuple[str, int | None]:
        """Name of the autograd node that is running, and the event of the forward operator that made it."""
        node = _current_node()
        if node is None:
            return "", None
        name, number = node.name(), node._sequence_nr()
        known = lane.forward_of.get(number)
        if known is not None:
            return name, known[0]
        # Sequence numbers are counted per thread: a forward on another thread is taken only if the operator fits the node.
        for other in self.lanes.all:
            known = other.forward_of.get(number)
            if known is not None and _fits(known[1], name):
                return name, known[0]
        return name, None

    def touches_training(self, tensor: torch.Tensor, *, grad_enabled: bool) -> bool:
        """Whether an operator on this tensor outside all modules belongs to the forward (graph) or to the update (no graph)."""
        if grad_enabled:
            return tensor.requires_grad
        try:
            record = self.storages.known(tensor)
        except RuntimeError:
            return False  # no storage of its own
        return record is not None and (record.gradient or bool(record.name))

    def mark_gradient(self, tensor: torch.Tensor) -> None:
        """Remember that a tensor was computed from training state outside the graph."""
        try:
            record = self.storages.known(tensor)
        except RuntimeError:
            return
        if record is not None:
            record.gradient = True

    def before_random(self, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device | None) -> None:
        """Note the generator a random operator may consume."""
        generator = self.generators.used_by(args, kwargs, kwargs.get("device") or device)
        if generator is not None:
            call.rng_stream = self.generators.name(generator)
            call.rng_before = self.generators.digest(generator)
            call.generator = generator

    def after_random(self, call: Any) -> None:
        """Take the note back if nothing was drawn (an attention without dropout is marked random, too)."""
        if self.generators.digest(call.generator) == call.rng_before:
            call.rng_stream, call.rng_before = "", None
        call.generator = None

    def keep_book(self, plan: OperatorPlan, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Follow allocation, growth and writes of an operator that gives no event."""
        if plan.resizes:
            tensor = args[0]
            record = self.storages.known(tensor)
            if record is not None:
                record.grew(tensor.untyped_storage().nbytes())
            return
        if plan.uninitialised:
            for _, _, tensor in plan.results(result):
                for geometry_tensor in _strided(tensor):
                    self.storages.of(geometry_tensor, self.outbox.next_seq).never_written()
        self.forget_written(plan, args, kwargs, wrote=True)

    def forget_written(self, plan: OperatorPlan, args: tuple[Any, ...], kwargs: dict[str, Any], *, wrote: bool = False) -> None:
        """Drop digests of what an unrecorded operator wrote."""
        for _, _, tensor in plan.writes(args, kwargs):
            for strided in _strided(tensor):
                record = self.storages.known(strided)
                if record is None:
                    continue
                if wrote:
                    geometry, offset, record = self.probes.locate(strided, self.outbox.next_seq)
                    record.wrote(offset, geometry, None, None)
                else:
                    record.written.clear()

    def forget(self, tensors: Iterable[torch.Tensor]) -> None:
        """The bytes of tensors of any kind may have changed unseen."""
        for _, tensor in pieces((("", tensor) for tensor in tensors), copied=False):
            record = self.storages.known(tensor)
            if record is not None:
                record.written.clear()

    def forget_all(self, lane: Lane) -> None:
        """Operators have run unseen: carry no digest from before, and take no autograd node for the next operator's."""
        self.storages.forget_written()
        lane.last_node = torch.autograd._get_sequence_nr()

    def forget_read(self, plan: OperatorPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Drop digests of what an operator that is not torch's own was given to read: its schema may not say all that it writes."""
        if plan.handling is not Handling.EVENT or plan.qualified.startswith("aten::"):
            return
        for argument in plan.tensors:
            value = None if argument.writes else plan.value(argument, args, kwargs)
            if value is not None:
                self.forget(tensor for _, tensor in argument.each(value))

    def find_undeclared_writes(self, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Look again at inputs that ought to be unchanged: training state always, everything for operators not torch's own."""
        plan: OperatorPlan = call.plan
        foreign = not plan.qualified.startswith("aten::")
        if not foreign and not any(row.name for row in call.slots):
            return
        before = {row.slot: row for row in call.slots if row.direction == Direction.IN.value and row.status == Status.PROBED.value}
        written = {row.storage for row in call.slots if row.direction == Direction.MUT.value}
        for argument in plan.tensors:
            if argument.writes:
                continue
            value = plan.value(argument, args, kwargs)
            if value is None:
                continue
            for path, tensor in argument.each(value):
                row = before.get(path)
                if row is None or row.storage in written or not (foreign or row.name):
                    continue
                self.look_again(call.slots, call.entry.seq, row, path, tensor)

    def look_again(self, slots: list[SlotRow], seq: int, row: SlotRow, path: str, tensor: torch.Tensor) -> bool:
        """Add the slot of an input that ought to be unchanged, if it is not what its row says; whether there is one, or may be."""
        written = "mut." + path.partition(".")[2]
        digests = fingerprint(tensor)
        if isinstance(digests, Promise) and is_plain(tensor):
            # Nobody waits for the device: the slot is there if the two turn out to differ.
            self.probes.perhaps_mutated(slots, seq, written, tensor, Difference(row.mix64, digests, undeclared=True))
            return True
        if not isinstance(digests, Digests) or digests.mix64 == row.mix64:
            return False
        self.coverage.count("undeclared_writes")
        self.probes.mutated(slots, seq, written, tensor, declared=False)
        return True

    def poll(self) -> None:
        """Report storages found freed. Cost: about 0.1 us a living storage."""
        for row in self.storages.poll(self.outbox.next_seq):
            self.sink.lifetime(row)


def _strided(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if is_plain(tensor):
        yield tensor


def _fits(operator: str, node: str) -> bool:
    base = operator.rpartition("::")[2].replace("_", "").lower()
    return bool(base) and base in node.lower()
