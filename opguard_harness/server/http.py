"""Serve over HTTP on a port of this machine: loopback only, one token, and no request that a web page could have sent."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import sys
from collections.abc import Iterator
from typing import Any

import anyio
import uvicorn
from mcp.server.lowlevel.server import Server
from mcp.server.transport_security import TransportSecuritySettings

from opguard_harness.errors import ListenRefused
from opguard_harness.server.token import BearerGuard, stored_token

PATH = "/mcp"


def listen(place: str) -> socket.socket:
    """A socket that listens on ``HOST:PORT``.

    Raises:
        ListenRefused: The place is no address of this machine alone, or it is taken.
    """
    host, colon, port = place.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
        number = int(port)
    except ValueError as error:
        raise ListenRefused(f"{place!r} is no address and port.") from error
    if not colon or not address.is_loopback or not 0 <= number < 1 << 16:
        raise ListenRefused(f"{place!r} is not a port of this machine alone: what is served starts programs as you.")
    listening = socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((str(address), number))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise ListenRefused(f"{place} cannot be listened on: {error.strerror}.") from error
    return listening


async def serve_http(server: Server[Any], listening: socket.socket) -> None:
    """Serve until cancelled.

    Args:
        server: What answers.
        listening: A socket of ``listen``.
    """
    host, port = listening.getsockname()[:2]
    names = [f"{name}:{port}" for name in (f"[{host}]" if ":" in host else host, "localhost")]
    security = TransportSecuritySettings(allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names])
    app = server.streamable_http_app(streamable_http_path=PATH, transport_security=security)
    with stored_token(port) as (token, path):
        config = uvicorn.Config(BearerGuard(app, token), log_config=None, server_header=False, timeout_graceful_shutdown=1, ws="none")
        for line in (f"http://{names[0]}{PATH}", f"Authorization: Bearer {token}", f"The token is in {path} while this server runs."):
            print(f"opguard-harness: {line}", file=sys.stderr, flush=True)  # noqa: T201 - standard error of a server
        await _carry(_Carrier(config), listening)


async def _carry(carrier: uvicorn.Server, listening: socket.socket) -> None:
    """Serve; cancelling lets answers that are on their way out."""

    async def stop() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            carrier.should_exit = True

    async with anyio.create_task_group() as group:
        group.start_soon(stop)
        with anyio.CancelScope(shield=True):
            await carrier.serve(sockets=[listening])
        group.cancel_scope.cancel()


class _Carrier(uvicorn.Server):
    """Leaves signals to the command, which ends either kind of server in one way."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none."""
        yield
