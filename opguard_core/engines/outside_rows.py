"""Slots of a call outside the dispatcher: what it read, and what of its results and writes no operator inside accounts for.

Nobody says what such a call writes, or which operators of torch it runs. So its arguments are compared with what they were, and what
an operator inside was seen to write is the call's own only where the bytes are others by now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from opguard_core.engines.deferred import words_of
from opguard_core.engines.kinds import is_plain, pieces
from opguard_core.fingerprint.digest import Digests
from opguard_core.ids import Direction, Status
from opguard_core.probe.promise import Difference, Known, Promise
from opguard_core.probe.tensor import fingerprint
from opguard_core.trace.schema import SlotRow

if TYPE_CHECKING:
    from opguard_core.engines.rank import RankContext

Tensors = Iterable[tuple[str, torch.Tensor]]
"""Slot path and tensor: "in.0", "in.2.1" (of a list), "kw.mask" for reads, "out.0" for results, "mut.0" and "mut.mask" for writes."""

_KNOWN = (Status.PROBED.value, Status.CARRIED.value)
_IN, _UNREADABLE = Direction.IN.value, Status.UNREADABLE.value
_WORDS = ("mix64", "value64", "bag64", "xor32", "trivial")
MOST_VIEWS = 8  # of one storage that are looked at again to see whether anybody wrote after the operators inside


class Open:
    """One outside call in flight, as `OutsideCalls.before` saw it; holds its arguments until it ends. Opaque to who called it.

    Attributes:
        made: Tensors that get a slot for what the call returned or wrote.
        rows: Slots so far; their ``seq`` is not the event's.
        seq: Number of its event; the token until it has one.
        closeup: Place and occurrence, if this run looks at it more closely.
        tells: It returned numbers to Python.
        stated: What it makes and changes is all told, see `OutsideCalls.before`.
        token: What the launch shim has in flight.
        outer: What it had before.
        tick: Moment of the call, see `Storages.tick`.
        num_events: Events that its thread had begun.
        node: Number of the autograd node that this call may be the forward of.
    """

    __slots__ = (
        "args_text",
        "closeup",
        "failed",
        "generator",
        "header",
        "lane",
        "made",
        "node",
        "num_events",
        "operator",
        "outer",
        "recorded",
        "rng_before",
        "rng_stream",
        "rows",
        "seq",
        "stated",
        "tells",
        "tensors",
        "tick",
        "token",
        "touches_gradient",
    )

    def __init__(self, operator: str, lane: Any, args_text: str, tensors: list[tuple[str, torch.Tensor]]) -> None:
        self.operator, self.lane, self.args_text, self.tensors = operator, lane, args_text, tensors
        self.rows: list[SlotRow] = []
        self.made: list[torch.Tensor] = []
        self.header: tuple[Any, ...] = ()
        self.failed = self.rng_stream = ""
        self.rng_before: int | None = None
        self.generator: Any = None
        self.closeup: Any = None
        self.seq = 0
        self.outer: int | None = None
        self.node: int | None = None
        self.token = self.tick = self.num_events = 0
        self.recorded = self.stated = self.touches_gradient = self.tells = False

    # As `closeup` and `keeper` know a call of the dispatch engine.

    @property
    def plan(self) -> Open:
        """What says which operator it is."""
        return self

    @property
    def entry(self) -> Open:
        """What says which event it is: by its token until that has a number."""
        return self

    @property
    def slots(self) -> list[SlotRow]:
        """Slots so far."""
        return self.rows

    def left(self, results: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
        """Slot path and tensor of each result, and of each argument as the call has left it."""
        yield from results
        for path, tensor in self.tensors:
            yield f"mut.{path.partition('.')[2]}", tensor

    def is_nested(self) -> bool:
        """Whether other events have begun on its thread since it began."""
        return bool(self.header) and self.lane.num_events != self.num_events


class Habits:
    """Which arguments calls of one operator have been seen to write."""

    def __init__(self) -> None:
        self._often: set[str] = set()
        self._perhaps: dict[str, Promise] = {}

    def has(self, path: str) -> bool:
        """Whether an earlier call has written it, as far as that is known by now."""
        perhaps = self._perhaps.pop(path, None)
        if perhaps is not None and path not in self._often:
            found = perhaps.look()
            if found is None:
                self._perhaps[path] = perhaps
            elif isinstance(found, Digests):
                self._often.add(path)
        return path in self._often

    def learn(self, path: str, row: SlotRow) -> None:
        """A call has written it, or has perhaps."""
        promise: Any = row.mix64
        if isinstance(promise, Difference):
            self._perhaps.setdefault(path, promise)
        else:
            self._often.add(path)


def look(context: RankContext, call: Open, touches: Callable[[torch.Tensor], bool] | None) -> bool:
    """Add the slots of what a call is about to read.

    Args:
        context: The rank.
        call: Its tensors are all that it gets.
        touches: Whether a tensor makes the call a part of the training; None: that is known already.

    Returns:
        Whether one did.
    """
    seq, touched = context.outbox.next_seq, False
    for path, tensor in call.tensors:
        context.probes.input(call.rows, seq, path, tensor)
        touched = touched or (touches is not None and touches(tensor))
    return touched


def left_by(context: RankContext, call: Open, results: Tensors, written: Tensors | None, habits: Habits) -> None:
    """Add the slots of what a call returned and wrote, and that no operator inside has left so.

    Args:
        context: The rank.
        call: From before it ran.
        results: With paths "out.0".
        written: With paths "mut.0"; None: every argument that has changed, or did in an earlier call.
        habits: What calls of this operator have changed so far; added to.
    """
    before = {row.slot: row for row in call.rows}
    arguments = [_Piece(context, path, tensor) for path, tensor in pieces(call.tensors, copied=False)]
    if call.is_nested():
        _read_after_operators(call, arguments)
    done: set[tuple[object, ...]] = set()
    if written is not None:
        for piece in [_Piece(context, path, tensor) for path, tensor in pieces(written, copied=False)]:
            _write(context, call, piece, piece.path, None, done)
    # What it says it leaves alone is looked at again in mode verify only.
    for piece in arguments if written is None or context.verify else []:
        path = f"mut.{piece.path.partition('.')[2]}"
        # Twice the same bytes is a write as well: whoever fills a buffer does so in each of its calls.
        sure = written is None and habits.has(path)
        row = _write(context, call, piece, path, None if sure else before.get(piece.path), done, undeclared=written is not None)
        if row is not None and written is None:
            habits.learn(path, row)
        elif row is not None and not isinstance(row.mix64, Difference):  # one of those is counted when it has come
            context.coverage.count("undeclared_writes")
    for path, tensor in results:
        if is_plain(tensor):
            _result(context, call, _Piece(context, path, tensor), arguments)
        else:
            context.probes.output(call.rows, context.outbox.next_seq, path, tensor)
            call.made.append(tensor)
    call.rows.sort(key=lambda row: row.direction != _IN)  # inputs first


class _Piece:
    """A tensor of plain memory, and what is known of it."""

    __slots__ = ("geometry", "offset", "path", "record", "tensor", "tick")

    def __init__(self, context: RankContext, path: str, tensor: torch.Tensor) -> None:
        self.path, self.tensor = path, tensor
        self.geometry, self.offset, self.record = context.probes.locate(tensor, context.outbox.next_seq)
        self.tick = self.record.tick

    @property
    def end(self) -> int:
        return int(self.offset + self.geometry.span)

    def known(self) -> Known | None:
        """What was last seen written or read through this view, or one with the same bytes."""
        known = self.record.written.get((self.offset, self.geometry.base))
        return None if known is None else known[1]

    def as_left(self) -> bool:
        """Whether what was seen through other views of these bytes stands as it was left.

        Believed where the digests of that are on their way. Nothing stands for writes that the mode did not look into.
        """
        if self.record.pending is not None:
            return True
        seen = False
        for at, view in list(self.record.written.keys())[:MOST_VIEWS]:
            known = self.record.written.get((at, view)) if at < self.end and self.offset < at + view.span else None
            if known is None:
                continue
            seen = True
            if isinstance(known[1], Digests):
                again = torch.empty(0, dtype=view.kind, device=self.tensor.device)
                again.set_(self.tensor.untyped_storage(), at // view.itemsize, view.sizes, view.steps)
                found = fingerprint(again)
                if isinstance(found, Digests) and found.mix64 != known[1].mix64:
                    return False
        return seen


def _read_after_operators(call: Open, arguments: list[_Piece]) -> None:
    """What operators inside wrote is read as they left it, if that is known, and else not said to be read: the call stands behind them."""
    changed = {piece.path: piece for piece in arguments if piece.tick > call.tick}
    rows = []
    for row in call.rows:
        piece = changed.get(row.slot)
        if piece is None:
            rows.append(row)
        elif (known := piece.known()) is not None:
            rows.append(_carried(row, known))
    call.rows = rows


def _write(
    context: RankContext,
    call: Open,
    piece: _Piece,
    path: str,
    was: SlotRow | None,
    done: set[tuple[object, ...]],
    *,
    undeclared: bool = False,
) -> SlotRow | None:
    """Add, and return, the slot of an argument; ``was`` None: it is known to be written, else it is if it has changed."""
    geometry = piece.geometry
    view = (piece.record.serial, piece.offset, geometry.dtype, geometry.shape, geometry.strides)
    if view in done or (was is not None and was.status == _UNREADABLE):
        return None
    inside = piece.known() if piece.tick > call.tick else None
    if inside is None and piece.tick > call.tick and piece.as_left():
        return None
    if geometry.span < piece.record.nbytes and not call.is_nested():
        piece.record.written.clear()  # it may have written beside the view that it was given: carry nothing there
    made = _made(context.probes.mutated, context, piece, path, declared=False)
    row: SlotRow | None = made
    if inside is not None:
        row = _unless(inside, made, undeclared=undeclared)
    elif was is not None and was.status in _KNOWN:
        row = _unless(was.mix64, made, undeclared=undeclared)
    if row is not None:
        done.add(view)
        call.rows.append(row)
        call.made.append(piece.tensor)
    return row


def _result(context: RankContext, call: Open, piece: _Piece, arguments: list[_Piece]) -> None:
    """The slot of a returned tensor, unless it is an argument, or as an operator inside or an earlier call has left it."""
    if any(one.record.serial == piece.record.serial and one.offset <= piece.offset and piece.end <= one.end for one in arguments):
        return
    inside, known = piece.tick > call.tick, piece.known()
    if known is None and inside and piece.as_left():
        return
    row = _made(context.probes.output, context, piece, piece.path)
    kept = row if known is None else _unless(known, row)
    if kept is None:
        return
    if inside and known is not None:
        read = _carried(row, known)
        call.rows.append(read._replace(slot=f"in.{piece.path}", direction=_IN))
    call.rows.append(kept)
    call.made.append(piece.tensor)


def _made(probe: Callable[..., None], context: RankContext, piece: _Piece, path: str, **how: bool) -> SlotRow:
    rows: list[SlotRow] = []
    probe(rows, context.outbox.next_seq, path, piece.tensor, **how)
    return rows[0]


def _carried(row: SlotRow, known: Known) -> SlotRow:
    """A row of bytes that are known from who wrote them."""
    words = dict(zip(_WORDS, words_of(known), strict=True))
    return row._replace(status=Status.CARRIED.value, **words)


def _unless(before: Known | int, row: SlotRow, *, undeclared: bool = False) -> SlotRow | None:
    """A row if its content is not what it was; one that disappears if that turns out later; None if it is."""
    if row.status != Status.PROBED.value:
        return row
    was: int | Promise = before.mix64 if isinstance(before, Digests) else before
    now: Any = row.mix64
    if not isinstance(was, Promise) and not isinstance(now, Promise):
        return None if was == now else row
    after = now if isinstance(now, Promise) else Digests(now, row.value64, row.bag64, row.xor32, row.trivial, row.nbytes)
    return row._replace(**dict(zip(_WORDS, words_of(Difference(was, after, undeclared=undeclared)), strict=True)))
