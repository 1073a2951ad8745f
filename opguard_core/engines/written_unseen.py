"""Memory that is written without any operator, or may be from now on: given away, resized, shared, written by a replayed graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opguard_core.engines.kinds import is_plain
from opguard_core.engines.outside import OutsideCalls
from opguard_core.engines.quiet import quiet
from opguard_core.engines.rank import RankContext


class WrittenUnseen:
    """Sees to it that no digest outlives its bytes; its ``enter_…`` and ``leave_…`` methods are callbacks of ``patches``.

    Args:
        context: The rank's shared bookkeeping.
        outside: Who observes calls that work on addresses, and is told which memory has been shown.
    """

    def __init__(self, context: RankContext, outside: OutsideCalls | None = None) -> None:
        self._context, self._outside = context, outside

    def share(self, tensors: tuple[Any, ...]) -> None:
        """Someone else can reach the memory of these from now on: nothing of it is carried any more."""
        context, outside = self._context, self._outside
        if context.dead or (outside is not None and outside.knows_addresses()):
            return
        try:
            for tensor in tensors:
                with quiet():
                    if is_plain(tensor):
                        record = context.storages.of(tensor, context.outbox.next_seq)
                        record.foreign = True
                        if outside is not None:
                            outside.addresses.show(tensor, record)
        except Exception as error:  # noqa: BLE001  the step guard
            context.guard.caught("shared memory", error)

    def enter_share(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``Tensor.__dlpack__``, ``data_ptr``: nothing is read yet, but someone else may write from now on."""
        self.share(args[:1])

    def enter_of_storage(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A method of ``UntypedStorage`` that `leave_resize` or `leave_share_memory` follows."""
        return args[0] if args else None

    def leave_resize(self, storage: Any, returned: bool) -> None:
        """``resize_``, by which sharded training frees parameters, and makes room for them again: its bytes are others now, or nobody's."""
        if storage is not None:
            self._guarded("resized storage", self._context.storages.resized, storage)

    def leave_share_memory(self, storage: Any, returned: bool) -> None:
        """``_share_fd_cpu_`` and its like copied the bytes, with operators, to where another process may write from now on."""
        if storage is not None:
            self._guarded("shared memory", self._context.storages.shared, storage)

    def enter_replay(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``CUDAGraph.replay``: its kernels write what they wrote when they were captured, and no operator says so."""
        self._guarded("replay", self._context.storages.forget_written)

    def _guarded(self, what: str, tell: Callable[..., None], *given: Any) -> None:
        context = self._context
        if context.dead:
            return
        try:
            tell(*given)
        except Exception as error:  # noqa: BLE001  the step guard
            context.guard.caught(what, error)
