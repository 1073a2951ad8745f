"""A proxy on loopback that adds the bearer token: for clients that have no option for one, so that the server is tested as it ships.

Requests whose Host or Origin is the proxy's own get the server's instead, as a browser that talks to the server directly
would send. Any other Host or Origin goes through as it came, for the server to refuse.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

_OF_ONE_HOP = ("connection", "content-length", "keep-alive", "transfer-encoding")


def _application(url: str, token: str, own: str) -> Starlette:
    server = httpx2.URL(url)
    theirs = f"{server.host}:{server.port}"

    async def forward(request: Request) -> StreamingResponse:
        headers = [(name, value) for name, value in request.headers.items() if name not in _OF_ONE_HOP]
        headers = [(name, value.replace(own, theirs) if name in ("host", "origin") else value) for name, value in headers]
        asked = carrier.build_request(
            request.method,
            server.copy_with(path=request.url.path),
            headers=[*headers, ("authorization", f"Bearer {token}")],
            content=await request.body(),
        )
        answer = await carrier.send(asked, stream=True)
        kept = {name: value for name, value in answer.headers.items() if name not in (*_OF_ONE_HOP, "content-encoding")}

        async def body():
            try:
                async for piece in answer.aiter_bytes():
                    yield piece
            finally:
                await answer.aclose()

        return StreamingResponse(body(), answer.status_code, kept)

    @contextlib.asynccontextmanager
    async def lifespan(app):
        async with carrier:
            yield

    carrier = httpx2.AsyncClient(timeout=60, trust_env=False)
    return Starlette(routes=[Route("/{path:path}", forward, methods=["GET", "POST", "DELETE", "OPTIONS"])], lifespan=lifespan)


@contextlib.contextmanager
def proxy(url: str, token: str) -> Iterator[str]:
    """The address under which the server at ``url`` can be had without a token."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        own = f"127.0.0.1:{listening.getsockname()[1]}"
        carrier = uvicorn.Server(uvicorn.Config(_application(url, token, own), log_config=None, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=carrier.run, kwargs={"sockets": [listening]}, name="token proxy")
        thread.start()
        try:
            yield f"http://{own}/mcp"
        finally:
            carrier.should_exit = True
            thread.join()
