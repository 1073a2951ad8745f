"""Memory that is written without any operator, or may be from now on: given away, resized, shared, written by a replayed graph."""

from __future__ import annotations

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

    def enter_resize(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``UntypedStorage.resize_``: by which sharded training frees parameters, and makes room for them again."""
        return args[0] if args else None

    def leave_resize(self, storage: Any, returned: bool) -> None:
        """Its bytes are others now, or nobody's."""
        context = self._context
        if storage is None or context.dead:
            return
        try:
            context.storages.resized(storage)
        except Exception as error:  # noqa: BLE001  the step guard
            context.guard.caught("resized storage", error)

    def enter_share_memory(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``UntypedStorage._share_fd_cpu_`` and its like: they copy the bytes to where another process can write, with operators."""
        return args[0] if args else None

    def leave_share_memory(self, storage: Any, returned: bool) -> None:
        """Another process may write from now on."""
        context = self._context
        if storage is None or context.dead:
            return
        try:
            context.storages.shared(storage)
        except Exception as error:  # noqa: BLE001  the step guard
            context.guard.caught("shared memory", error)

    def enter_replay(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``CUDAGraph.replay``: its kernels write what they wrote when they were captured, and no operator says so."""
        context = self._context
        if context.dead:
            return
        try:
            context.storages.forget_written()
        except Exception as error:  # noqa: BLE001  the step guard
            context.guard.caught("replay", error)
