"""Bytes that leave for Python or a file without any operator: ``tolist``, ``numpy``, ``torch.save``.

`item` and its like are operators (``aten._local_scalar_dense``) and seen as such.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from opguard_core.engines.markers import event_here, gap
from opguard_core.engines.quiet import quiet
from opguard_core.engines.rank import RankContext
from opguard_core.engines.written_unseen import WrittenUnseen
from opguard_core.ids import Kind
from opguard_core.probe.promise import TOGETHER
from opguard_core.trace.schema import SlotRow

MAX_SAVED_TENSORS = 100_000


class Reads:
    """Emits read events; its ``enter_…`` methods are callbacks of ``patches``.

    Args:
        context: The rank's shared bookkeeping.
        unseen: Is told of memory that is shared from now on.
    """

    def __init__(self, context: RankContext, unseen: WrittenUnseen) -> None:
        self._context, self._unseen = context, unseen

    def enter_tolist(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``Tensor.tolist``."""
        self._emit("python.tolist", [("0", tensor) for tensor in args[:1]])

    def enter_numpy(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``Tensor.numpy``: the array shares memory, so from now on the bytes can change unseen."""
        self._emit("python.numpy", [("0", tensor) for tensor in args[:1]])
        self._unseen.share(args[:1])

    def enter_save(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``torch.save``: every tensor in the saved object, named by the keys that lead to it."""
        saved = args[0] if args else kwargs.get("obj")
        self._emit("python.save", _tensors(saved))

    def _emit(self, operator: str, tensors: Any) -> None:
        context, lane = self._context, self._context.lanes.current()
        if context.dead or lane is None or lane.muted or not context.progress.recording:
            return
        entry = context.outbox.open(operator, lane)
        rows: list[SlotRow] = []
        try:
            with quiet():
                with TOGETHER:
                    for path, tensor in tensors:
                        context.probes.input(rows, entry.seq, f"in.{path}", tensor)
                event = event_here(context, entry.seq, Kind.READ.value, operator, "", None, sys._getframe(1))
            context.outbox.close(entry, event, rows)
        except Exception as error:  # noqa: BLE001  the step guard
            text = context.guard.caught(operator, error, entry.seq)
            if entry.event is None:
                context.outbox.close(entry, gap(context, entry.seq, operator, text, lane), ())


def _tensors(saved: object) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors inside plain containers, in the order of the containers; a user's own containers are not looked into."""
    seen: set[int] = set()
    found = 0
    open_values: list[tuple[str, object]] = [("", saved)]
    while open_values and found < MAX_SAVED_TENSORS:
        path, value = open_values.pop()
        if isinstance(value, torch.Tensor):
            found += 1
            yield path or "0", value
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        inner: list[tuple[str, object]] = []
        if isinstance(value, dict) and type(value).__module__ in ("builtins", "collections"):
            inner = [(str(key), item) for key, item in value.items() if isinstance(key, str | int)]
        elif type(value) in (list, tuple):
            inner = [(str(index), item) for index, item in enumerate(value)]  # type: ignore[arg-type, var-annotated]
        elif isinstance(value, torch.nn.Module):
            tables = (value.__dict__.get(name) or {} for name in ("_parameters", "_buffers", "_modules"))
            inner = [(key, item) for table in tables for key, item in table.items()]
        open_values += [(f"{path}.{key}" if path else key, item) for key, item in reversed(inner)]
