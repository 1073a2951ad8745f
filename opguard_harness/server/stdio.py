"""Serve over standard input and output."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import anyio
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server

from opguard_harness.server.lines import LineReader, LineWriter
from opguard_harness.server.refusals import refusals


async def serve_stdio(server: Server[Any], wire: tuple[int, int]) -> None:
    """Serve one client until it closes its end, or the one that it reads from.

    Args:
        server: What answers.
        wire: Descriptors where messages come in and where they go out.
    """
    writer = LineWriter(wire[1])

    async def end_with_the_reader() -> None:
        await writer.gone.wait()
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(end_with_the_reader)
        # The SDK takes the two files of anyio; of them it iterates over one, and writes to and flushes the other.
        async with stdio_server(cast("Any", _readable(wire[0], writer)), cast("Any", writer)) as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
        group.cancel_scope.cancel()


async def _readable(descriptor: int, writer: LineWriter) -> AsyncIterator[str]:
    """Lines that the SDK can read; what asks and cannot be read is answered here."""
    async for line in LineReader(descriptor, writer):
        answers = refusals(line)
        if answers is None:
            yield line
        for answer in answers or ():
            await writer.write(answer)
