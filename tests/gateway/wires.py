"""Connections of ours, and who is at their other end: over sockets, or piece by piece without any.

async with served(app) as url, connected(url) as (reader, writer):
    writer.write(asking("/", b"hello"))
    head, body = await answer_in(reader)

line = Line(app)
await line.say(asking("/", b"hello"))
assert line.written.endswith(b"hello")
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from counterseal.web.connection import Connection
from tests.gateway.served import PATIENCE, until


def asking(path: str = "/", body: bytes = b"", *more: str) -> bytes:
    """A whole request."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *more, "", ""]
    return "\r\n".join(lines).encode() + body


async def received(receive: Any) -> bytes:
    """A body, by its messages."""
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


async def sent(send: Any, body: bytes, status: int = 200, *more: tuple[bytes, bytes]) -> None:
    """Answer in the usual way."""
    headers = [(b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


MARK = "tests.seen"
"""What a scope bears that was somebody's before."""


class Keeper:
    """An application that answers with what it was sent, and keeps the scope.

    A body may ask for something else: to `wait` for the door, to `send` the answer, or to `fail`.
    """

    def __init__(self) -> None:
        self.came: list[str] = []
        """Which requests came again, and which are new."""
        self.refused: list[bytes] = []
        """The bodies that could not be answered at once."""
        self.begun = asyncio.Event()
        self.door = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        connection = Connection.of(scope)
        self.came.append("again" if MARK in scope else "new")
        scope[MARK] = True
        body = connection.body_of(scope)
        if body is None:
            body = await received(receive)
        if body.startswith(b"fail"):
            raise RuntimeError("as it was told")
        if body.startswith(b"wait"):
            self.begun.set()
            await self.door.wait()
        told = dict(scope["headers"])[b"content-length"] + b" " + body
        if body.startswith(b"send"):
            await sent(send, told)
            return
        if connection.answer(scope, b"", told):
            connection.keep(scope)
            return
        self.refused.append(body)
        await sent(send, told)


# --- over sockets ---------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def running(app: Any, **settings: Any) -> Any:
    """A server, and its URL."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_config=None, lifespan="off", http=Connection, **settings)
        server = uvicorn.Server(config)
        task = asyncio.ensure_future(server.serve(sockets=[bound]))
        await until(lambda: server.started)
        try:
            yield server, f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


@contextlib.asynccontextmanager
async def served(app: Any, **settings: Any) -> Any:
    async with running(app, **settings) as (_, url):
        yield url


@contextlib.asynccontextmanager
async def connected(url: str) -> Any:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


async def answer_in(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The head of an answer, and its body."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head, await asyncio.wait_for(reader.readexactly(length), PATIENCE)


async def told(reader: asyncio.StreamReader) -> bytes:
    return (await answer_in(reader))[1]


async def known(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Have a `Keeper` know the head of `asking`: whatever has it next comes again."""
    writer.write(asking("/", b"first"))
    assert await told(reader) == b"5 first"


async def rest_in(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the server hangs up."""
    return await asyncio.wait_for(reader.read(), PATIENCE)


# --- without sockets ------------------------------------------------------------------------------


class Sink(asyncio.Transport):
    """Takes what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.ended = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.ended

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Line:
    """A connection whose pieces come exactly as they are said."""

    def __init__(self, app: Any, **settings: Any) -> None:
        config = uvicorn.Config(
            app, log_config=None, lifespan="off", ws="none", http=Connection, **settings
        )
        config.load()
        self.state = ServerState()
        self.sink = Sink()
        self.connection = Connection(config=config, server_state=self.state, app_state={})
        self.connection.connection_made(self.sink)

    @property
    def written(self) -> bytes:
        return self.sink.written

    async def say(self, piece: bytes, turns: int = 20) -> None:
        """One piece, and then so many turns of the event loop. Who has hung up reads nothing."""
        if not self.sink.ended:
            self.connection.data_received(piece)
        await self.turn(turns)

    async def turn(self, turns: int = 20) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    async def hang_up(self) -> None:
        """Once all that was begun is answered."""
        async with asyncio.timeout(PATIENCE):
            while self.state.tasks:  # noqa: ASYNC110 - turn by turn, with no clock in it
                await asyncio.sleep(0)
        self.connection.connection_lost(None)
        await asyncio.sleep(0)
