"""The ASGI servers that the tests run an application on, and raw connections to them.

    async with running(app) as port, connected(port) as (reader, writer):
        writer.write(request("/", b"hello"))
        head, body = await response_from(reader)

`uvicorn` is the server class of `counterseal serve` with its settings. `hypercorn` shows that the
application is plain ASGI.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import Any

import hypercorn.asyncio
from hypercorn.config import Config

from counterseal.web.server import GatewayServer

UVICORN, HYPERCORN = "uvicorn", "hypercorn"
TIMEOUT = 30.0
"""Seconds after which a test that waits has failed."""


@contextlib.asynccontextmanager
async def running(app: Any, server: str = UVICORN, **settings: Any) -> Any:
    """Serve the application on a free port of 127.0.0.1, and yield the port."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        async with serving_on(bound, app, server, **settings):
            yield bound.getsockname()[1]


@contextlib.asynccontextmanager
async def serving_on(bound: socket.socket, app: Any, server: str, **settings: Any) -> Any:
    """Serve the application on a socket that is bound already."""
    bound.listen()  # who connects before the server runs waits for it
    serving = _hypercorn if server == HYPERCORN else _uvicorn
    async with serving(app, bound, **settings) as running_server:
        yield running_server


@contextlib.asynccontextmanager
async def _uvicorn(app: Any, bound: socket.socket, **settings: Any) -> Any:
    server = GatewayServer(app, **settings)
    task = asyncio.ensure_future(server.serve(sockets=[bound]))
    up = asyncio.ensure_future(server.up.wait())
    await asyncio.wait({task, up}, return_when=asyncio.FIRST_COMPLETED)
    try:
        yield server
    finally:
        up.cancel()
        server.should_exit = True
        await task


@contextlib.asynccontextmanager
async def _hypercorn(app: Any, bound: socket.socket) -> Any:
    config = Config()
    config.bind = [f"fd://{os.dup(bound.fileno())}"]
    config.shutdown_timeout = config.graceful_timeout = 1.0
    config.errorlog = None
    ending = asyncio.Event()
    serving = hypercorn.asyncio.serve(app, config, shutdown_trigger=ending.wait)
    task = asyncio.ensure_future(serving)
    try:
        yield
    finally:
        ending.set()
        await task


# --- raw connections ------------------------------------------------------------------------------


def request(path: str = "/", body: bytes = b"", *more: str) -> bytes:
    """A whole POST request."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *more, "", ""]
    return "\r\n".join(lines).encode() + body


@contextlib.asynccontextmanager
async def connected(port: int) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def response_from(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The head of a response, and its body."""
    async with asyncio.timeout(TIMEOUT):
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return head, await reader.readexactly(int(length or 0))


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """All that arrives until the server closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(TIMEOUT):
            while piece := await reader.read(65_536):
                received += piece
    return received
