"""When a server ends although nobody closed its input: on a signal, and when the process that started it has gone."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskStatus

_LOOK_S = 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def until_ended(serve: Callable[[], Awaitable[None]], parent: int | None) -> None:
    """Serve until that ends by itself or has to.

    Args:
        serve: Cancelled when the server has to end.
        parent: Process that started this one; None if the server may outlive it.
    """
    async with anyio.create_task_group() as group:
        await group.start(_on_signal, group.cancel_scope)
        if parent is not None:
            group.start_soon(_on_orphaned, group.cancel_scope, parent)
        await serve()
        group.cancel_scope.cancel()


async def _on_signal(scope: anyio.CancelScope, *, task_status: TaskStatus[None]) -> None:
    """End on the first signal that asks for it; one that is ignored (nohup) stays ignored."""
    with anyio.open_signal_receiver(*(number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN)) as received:
        task_status.started()
        async for number in received:
            print(f"opguard-harness: {number.name}: the server ends, jobs go on.", file=sys.stderr)  # noqa: T201 - standard error of a server
            scope.cancel()
            return


async def _on_orphaned(scope: anyio.CancelScope, parent: int) -> None:
    """End when another process has become the parent: a client that was killed does not always close the pipe.

    A pipe stays open as long as any process holds its other end, a child of the client for instance.
    """
    while os.getppid() == parent:  # noqa: ASYNC110 - nothing signals it
        await anyio.sleep(_LOOK_S)
    scope.cancel()
