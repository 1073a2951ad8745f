"""Lines in and out of two descriptors without a thread that blocks on them, so that a server can end whatever its client does.

A reader in a worker thread cannot be cancelled: a server told to stop would wait for one more line from its client.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel

FRAME_LIMIT_BYTES = 16 * 1024 * 1024  # a longer line is dropped unread; an agent's largest call is a few kB
_READ_BYTES = 256 * 1024
_WRITE_BYTES = 4096  # what a pipe that is ready takes without blocking (PIPE_BUF)
_NOT_READ = {
    "jsonrpc": "2.0",
    "id": None,
    "error": {"code": -32600, "message": f"A message of more than {FRAME_LIMIT_BYTES >> 20} MiB was not read. Send less at once."},
}


class LineWriter:
    """The output side, as the SDK's transport uses a file."""

    def __init__(self, descriptor: int) -> None:
        """Write to ``descriptor``, which stays open."""
        self._descriptor = descriptor
        self._waits = _can_wait(descriptor)
        self._one = anyio.Lock()
        self.gone = anyio.Event()
        """Set once nobody reads any more; what is written then is dropped."""

    async def write(self, text: str) -> None:
        """Write all of it, in pieces that do not block."""
        try:
            await self._write(text.encode("utf-8"))
        except (BrokenPipeError, ConnectionResetError):
            self.gone.set()

    async def _write(self, data: bytes) -> None:
        left = memoryview(data)
        async with self._one:  # two texts never mix
            while left and not self.gone.is_set():
                if self._waits:
                    await anyio.wait_writable(self._descriptor)
                else:
                    await anyio.lowlevel.checkpoint()
                left = left[os.write(self._descriptor, left[:_WRITE_BYTES]) :]

    async def flush(self) -> None:
        """Nothing is held back."""


class LineReader:
    """The input side: an asynchronous iterator of lines, as the SDK's transport reads a file."""

    def __init__(self, descriptor: int, answers: LineWriter, limit: int = FRAME_LIMIT_BYTES) -> None:
        """Read from ``descriptor``; a line longer than ``limit`` bytes is refused through ``answers``."""
        self._descriptor = descriptor
        self._answers = answers
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[str]:
        """Whole lines until the end; what follows the last line break is half a message and is dropped."""
        waits = _can_wait(self._descriptor)
        held: list[bytes] = []
        size = 0
        while True:
            if waits:
                await anyio.wait_readable(self._descriptor)
            else:
                await anyio.lowlevel.checkpoint()
            try:
                data = os.read(self._descriptor, _READ_BYTES)
            except ConnectionResetError:
                return
            if not data:
                return
            *ended, rest = data.split(b"\n")
            for piece in ended:
                if size + len(piece) > self._limit:
                    await self._answers.write(json.dumps(_NOT_READ) + "\n")
                else:
                    yield b"".join((*held, piece)).decode("utf-8", errors="replace")
                held, size = [], 0
            size += len(rest)
            held = [*held, rest] if size <= self._limit else []


def _can_wait(descriptor: int) -> bool:
    """Whether an event loop can wait for it; files and the null device are always ready, and no loop takes them."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)
