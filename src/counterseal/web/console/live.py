"""What pages are told while they are open: that something has changed, and they look again.

One `Broker` for a process. Once a second it asks the store, for each tenant of whom a page is open,
for marks: texts that are others when something is. So other workers' changes show, too, and a
hundred pages cost no more than one. What has changed is in the page, not in the stream.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from counterseal.errors import CountersealError
from counterseal.ledger.requests import EventFilter

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["Broker", "EventStream", "FullError", "Listener", "Marks", "marks_of", "stream"]

Marks = Mapping[str, str]
"""Of each topic (`approvals`, `kills`, `record`) a text that is another one when something changed.
"""
_WATCHED: Final = 200
"""How many requests are looked at, those that end first."""
_PATIENCE: Final = 10.0
"""Seconds that a client is given to take what it is sent."""
_log = logging.getLogger("counterseal.web.console")


def marks_of(runtime: Runtime) -> Callable[[str], Awaitable[Marks]]:
    """How a runtime's store is asked."""

    async def marks(tenant: str) -> Marks:
        await runtime.catch_up()
        told = hashlib.sha256()
        for held in await runtime.approvals.list(tenant, limit=_WATCHED):
            told.update(f"{held.approval_id} {len(held.votes)}\n".encode())
        last = await runtime.store.search(tenant, EventFilter(limit=1, newest_first=True))
        return {
            "approvals": told.hexdigest()[:16],
            "kills": str(runtime.registry.stored),
            "record": last[0][0] if last else "",
        }

    return marks


class FullError(Exception):
    """There are as many open pages as there may be."""


class Listener:
    """One open page."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks
        self.over = False
        self._news = asyncio.Event()
        if marks:
            self._news.set()

    async def changed(self, seconds: float) -> bool:
        """Whether there are other marks within so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        changed = self._news.is_set()
        self._news.clear()
        return changed

    def tell(self, marks: Marks) -> None:
        self.marks = marks
        self._news.set()

    def end(self) -> None:
        self.over = True
        self._news.set()


class Broker:
    """`most` pages may be open in all, `most_each` of one person."""

    def __init__(
        self,
        marks: Callable[[str], Awaitable[Marks]],
        *,
        every: float = 1.0,
        most: int = 1000,
        most_each: int = 20,
    ) -> None:
        self._marks = marks
        self._every = every
        self._most = most
        self._most_each = most_each
        self._listeners: dict[str, set[Listener]] = {}
        self._latest: dict[str, Marks] = {}
        self._open: Counter[str] = Counter()
        self._polling: asyncio.Task[None] | None = None
        self._closed = False

    def latest(self, tenant: str) -> Marks:
        """What is known of a tenant; nothing while nobody listens."""
        return self._latest.get(tenant, {})

    @contextmanager
    def listening(self, tenant: str, name: str) -> Iterator[Listener]:
        """For as long as the page is open. FullError."""
        full = self._open.total() >= self._most or self._open[name] >= self._most_each
        if self._closed or full:
            raise FullError
        listener = Listener(self.latest(tenant))
        self._listeners.setdefault(tenant, set()).add(listener)
        self._open[name] += 1
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll())
        try:
            yield listener
        finally:
            self._leave(tenant, name, listener)

    def close(self) -> None:
        """End all streams, and let nobody begin another."""
        self._closed = True
        for listener in [one for some in self._listeners.values() for one in some]:
            listener.end()

    def _leave(self, tenant: str, name: str, listener: Listener) -> None:
        self._listeners[tenant].discard(listener)
        if not self._listeners[tenant]:
            del self._listeners[tenant]
            self._latest.pop(tenant, None)
        self._open[name] -= 1
        self._open += Counter()  # forgets those with none
        if not self._listeners and self._polling is not None:
            self._polling.cancel()
            self._polling = None

    async def _poll(self) -> None:
        while True:
            for tenant in list(self._listeners):
                await self._look(tenant)
            await asyncio.sleep(self._every)

    async def _look(self, tenant: str) -> None:
        try:
            marks = await self._marks(tenant)
        except CountersealError as error:
            _log.warning("what is new can't be told just now: %s", error)
            return
        if tenant in self._listeners and marks != self._latest.get(tenant):
            self._latest[tenant] = marks
            for listener in self._listeners[tenant]:
                listener.tell(marks)


# --- the stream -----------------------------------------------------------------------------------


async def stream(
    listener: Listener, still: Callable[[], Awaitable[bool]], *, beat: float = 5.0
) -> AsyncGenerator[bytes]:
    """Marks as server-sent events, until the session or the process ends.

    Every `beat` seconds, and before anything is told, the session is looked at.
    """
    yield b"retry: 3000\n\n"
    while True:
        changed = await listener.changed(beat)
        if listener.over:
            return
        if not await still():
            yield b"event: over\ndata: signed out\n\n"
            return
        told = json.dumps(listener.marks, separators=(",", ":"))
        yield f"event: marks\ndata: {told}\n\n".encode() if changed else b": still here\n\n"


class EventStream(Response):
    """Sends pieces as they come, and ends when the client has gone or takes nothing.

    `done` is called at the end, whatever ends it.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        pieces: AsyncGenerator[bytes],
        *,
        headers: Mapping[str, str],
        done: Callable[[], None],
        patience: float = _PATIENCE,
    ) -> None:
        self._pieces = pieces
        self._done = done
        self._patience = patience
        super().__init__(headers={**headers, "X-Accel-Buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, gone):
                task.cancel()
            self._done()
            ended = await asyncio.gather(sending, gone, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception) and not isinstance(error, TimeoutError | OSError):
                raise error

    async def _send(self, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        await self._in_time(send, {"type": "http.response.start", **start})
        async with aclosing(self._pieces) as pieces:
            async for piece in pieces:
                body = {"body": piece, "more_body": True}
                await self._in_time(send, {"type": "http.response.body", **body})
        await self._in_time(send, {"type": "http.response.body", "body": b""})

    async def _in_time(self, send: Send, message: Message) -> None:
        async with asyncio.timeout(self._patience):
            await send(message)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
