"""HTTP/1.1 to one URL, over connections that are kept: for requests that are answered at once.

It speaks to nobody else, through no proxy, and follows nothing. Whoever sends a request waits for
its whole answer, if that is a short one; any other can be read on as it comes. Its errors are those
of the library's own client, so that both ways to an upstream are judged by the same rules.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import AsyncIterator
from functools import cached_property, partial
from typing import Any, Final

import httptools
import httpx2

__all__ = ["EVENTS", "JSON", "Rest", "Wire", "Wires"]

JSON, EVENTS = b"application/json", b"text/event-stream"
_MOST: Final = 256
_IDLE: Final = 4.0
"""Seconds after which an idle connection is not trusted any more: many servers hang up after 5."""
_END: Final = 1.0
"""Seconds that a server has to end an answer of which all that matters is there."""
_LONGEST_HEAD: Final = 64 * 1024
_MUCH: Final = 256 * 1024
"""Bytes of an answer that may wait to be read, before no more of it are taken in."""


class Wire(asyncio.Protocol):
    """One connection, and the answer that is read from it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._parser: Any = None
        self._transport: Any = None
        self._waiting: asyncio.Future[None] | None = None
        self._size = self._head = 0
        self._whole = self._paused = False
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.parts: list[bytes] = []
        self.kind = b""
        """The media type of the answer."""
        self.complete = False
        self.error: httpx2.TransportError | None = None
        self.kept_since = 0.0
        self._again = False

    async def ask(self, request: bytes) -> None:
        """Send a request. Returns with its whole answer, or as much as tells what it will be."""
        self._parser = httptools.HttpResponseParser(self)
        self.status, self.headers, self.parts, self.kind = 0, [], [], b""
        self._size = self._head = 0
        self.complete = self._again = False
        self._whole = True
        self._transport.write(request)
        await self.wait()

    async def wait(self) -> None:
        """Until there is more of the answer, or no more to come."""
        if not self.complete and self.error is None:
            self._waiting = self._loop.create_future()
            await self._waiting

    def taken(self) -> bytes:
        """What has come and was not taken yet."""
        found = b"".join(self.parts)
        self.parts, self._whole = [], False
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return found

    def usable(self) -> bool:
        """Whether another request can follow: the server has neither hung up nor said anything."""
        idle = self._loop.time() - self.kept_since
        if idle > _IDLE or self.error is not None or self._transport.is_closing():
            return False
        if not hasattr(select, "poll"):
            return True
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)

    @property
    def again(self) -> bool:
        """Whether it can be used again after this answer."""
        return self.complete and self._again and self.error is None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def fail(self, error: httpx2.TransportError) -> None:
        self.error = self.error or error
        self._wake()

    # --- told by the event loop -------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        held = transport.get_extra_info("socket")
        if held is not None:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self.complete:
            self.fail(httpx2.RemoteProtocolError("it says what was not asked for"))
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.fail(httpx2.RemoteProtocolError(str(error)))
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self.status and not self.complete and error is None and self._ends_with_the_connection():
            self.complete = True
            self._wake()
            return
        if error is not None:
            self.fail(httpx2.ReadError(str(error)))
        else:
            self.fail(httpx2.RemoteProtocolError("it hung up"))

    def _ends_with_the_connection(self) -> bool:
        told = {name.lower() for name, _ in self.headers}
        return not told & {b"content-length", b"transfer-encoding"}

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    # --- told by the parser -----------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head += len(name) + len(value)
        if self._head > _LONGEST_HEAD:
            raise ValueError("the head of the answer is too long")
        if not self.status:  # what comes after the content says nothing that we would want to know
            self.headers.append((name, value))
            if name.lower() == b"content-type":
                self.kind = value.partition(b";")[0].strip().lower()

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self.headers, self.kind = [], b""
            return
        self.status = status
        if status != 200 or self.kind not in (JSON, EVENTS):
            self._whole = False
            self._wake()

    def on_body(self, data: bytes) -> None:
        self.parts.append(data)
        self._size += len(data)
        if not self._whole:
            if not self._paused and sum(map(len, self.parts)) > _MUCH:
                self._paused = True
                self._transport.pause_reading()
            self._wake()
        elif self._size > self._most or (self.kind == EVENTS and data.endswith(b"\n")):
            self._whole = False  # too long to wait for, or perhaps an event
            self._wake()

    def on_message_complete(self) -> None:
        if self.status:
            self.complete = True
            self._again = self._parser.should_keep_alive()
            self._wake()


class Rest(httpx2.AsyncByteStream):
    """An answer as the library reads it, from its beginning."""

    def __init__(self, wires: Wires, wire: Wire) -> None:
        self._wires = wires
        self._wire = wire
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        wire = self._wire
        while True:
            if wire.parts:
                yield wire.taken()
            elif wire.error is not None and not wire.complete:
                raise wire.error
            elif wire.complete:
                return
            else:
                await wire.wait()

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._wires.give_back(self._wire)


class Wires:
    """The connections to one URL; the one that was used last is used first."""

    def __init__(self, url: httpx2.URL, most: int, connect: float) -> None:
        self._url = url
        self._most = most
        self._connect = connect
        self._idle: list[Wire] = []
        self._open: set[Wire] = set()
        self._finishing: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def full(self) -> bool:
        """Whether one more would be too many."""
        return self._closed or (not self._idle and len(self._open) >= _MOST)

    async def get(self) -> Wire:
        """One that can be written to. Errors of the library's say that nothing was sent."""
        while self._idle:
            wire = self._idle.pop()
            if wire.usable():
                return wire
            self._discard(wire)
        url = self._url
        port = url.port or (443 if url.scheme == "https" else 80)
        making = partial(Wire, self._most)
        loop = asyncio.get_running_loop()
        tls = self._tls if url.scheme == "https" else None
        try:
            async with asyncio.timeout(self._connect):
                _, wire = await loop.create_connection(making, url.host, port, ssl=tls)
        except TimeoutError:
            raise httpx2.ConnectTimeout("no connection in time") from None
        except (OSError, ValueError) as error:
            raise httpx2.ConnectError(str(error)) from error
        if self._closed:
            wire.abort()
            raise httpx2.ConnectError("it was closed")
        self._open.add(wire)
        return wire

    def give_back(self, wire: Wire, *, ending: bool = False) -> None:
        """It is not needed for now. `ending`: what has still to come is the end of an answer."""
        if wire.again and not self._closed:
            wire.kept_since = asyncio.get_running_loop().time()
            self._idle.append(wire)
            if wire.kept_since - self._idle[0].kept_since > _IDLE:
                self._discard(self._idle.pop(0))
        elif ending and wire.error is None and not self._closed:
            finishing = asyncio.get_running_loop().create_task(self._finish(wire))
            self._finishing.add(finishing)
            finishing.add_done_callback(self._finishing.discard)
        else:
            self._discard(wire)

    async def _finish(self, wire: Wire) -> None:
        try:
            async with asyncio.timeout(_END):
                while not wire.complete and wire.error is None:
                    wire.taken()
                    await wire.wait()
        except TimeoutError:
            self._discard(wire)
        else:
            self.give_back(wire)

    def close(self) -> None:
        """End all of them. Who waits for an answer is told that it is lost."""
        self._closed = True
        for wire in self._open:
            wire.fail(httpx2.ReadError("the connection was closed"))
            wire.abort()
        self._open.clear()
        self._idle.clear()

    def _discard(self, wire: Wire) -> None:
        self._open.discard(wire)
        wire.abort()

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        made: ssl.SSLContext = httpx2.create_ssl_context(trust_env=False)
        made.set_alpn_protocols(["http/1.1"])
        return made
