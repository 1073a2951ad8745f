"""The bearer token of a server on a port: made anew at each start, kept in a file that only its user can read."""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from opguard_harness.config import private_dir, state_dir

_REFUSED = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"This server wants the bearer token that it was started with."}}'


@contextmanager
def stored_token(port: int) -> Iterator[tuple[str, Path]]:
    """A new token and the file it is in, which is removed when the server ends.

    Raises:
        SystemRefused: The state folder belongs to somebody else.
        OSError: The file cannot be written.
    """
    token = secrets.token_urlsafe(32)
    path = private_dir(state_dir()) / f"http-{port}.token"
    path.unlink(missing_ok=True)  # of a server that was killed; the port is ours now
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as stream:
        stream.write(token + "\n")
    try:
        yield token, path
    finally:
        path.unlink(missing_ok=True)


class BearerGuard:
    """Lets only requests with the token through; looks at nothing else of a request, not even its path or body."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        """Guard ``app`` with ``token``."""
        self._app = app
        self._token = token.encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on or answer 401."""
        if scope["type"] == "lifespan" or self._admits(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": _REFUSED})

    def _admits(self, scope: Scope) -> bool:
        """Whether there is exactly one authorization header and it is the right one, compared in constant time."""
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, token = given[0].partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token, self._token)
