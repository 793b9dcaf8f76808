"""Live pages: a stream tells an open page that something has changed, and the page fetches itself.

A process has one `Broker`. Once a second it reads the marks of each tenant with an open page from
the store: texts that differ whenever something has changed. That way changes of other workers are
noticed too, and a hundred pages cost no more than one. The stream does not say what has changed.
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

from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from counterseal.errors import CountersealError
from counterseal.ledger.requests import EventFilter

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

Marks = Mapping[str, str]
"""For each topic (`approvals`, `kills`, `record`) a text that differs after every change."""
_MAX_WATCHED: Final = 200
"""Requests that are read, in the order in which they expire."""
_SEND_TIMEOUT: Final = 10.0
"""Seconds that a client has to accept a message."""
_log = logging.getLogger("counterseal.web.console")


def marks_of(runtime: Runtime) -> Callable[[str], Awaitable[Marks]]:
    """Return a function that reads a tenant's marks from the runtime's store."""

    async def marks(tenant: str) -> Marks:
        await runtime.catch_up()
        digest = hashlib.sha256()
        for held in await runtime.approvals.list(tenant, limit=_MAX_WATCHED):
            digest.update(f"{held.approval_id} {len(held.votes)}\n".encode())
        last = await runtime.store.search(tenant, EventFilter(limit=1, newest_first=True))
        return {
            "approvals": digest.hexdigest()[:16],
            "kills": str(runtime.registry.stored),
            "record": last[0][0] if last else "",
        }

    return marks


class FullError(Exception):
    """The maximum number of open pages is reached."""


class PageListener:
    """One open page."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks
        self.closed = False
        self._changed = asyncio.Event()
        if marks:
            self._changed.set()

    async def changed(self, seconds: float) -> bool:
        """Wait for other marks; return False on timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        changed = self._changed.is_set()
        self._changed.clear()
        return changed

    def update(self, marks: Marks) -> None:
        self.marks = marks
        self._changed.set()

    def close(self) -> None:
        self.closed = True
        self._changed.set()


class Broker:
    """Reads marks while pages are open: at most `limit`, and `limit_each` of one person."""

    def __init__(
        self,
        marks: Callable[[str], Awaitable[Marks]],
        *,
        interval: float = 1.0,
        limit: int = 1000,
        limit_each: int = 20,
    ) -> None:
        self._marks = marks
        self._interval = interval
        self._limit = limit
        self._limit_each = limit_each
        self._listeners: dict[str, set[PageListener]] = {}
        self._latest: dict[str, Marks] = {}
        self._open: Counter[str] = Counter()
        self._polling: asyncio.Task[None] | None = None
        self._closed = False

    def latest(self, tenant: str) -> Marks:
        """Return a tenant's marks; none while no page of it is open."""
        return self._latest.get(tenant, {})

    @contextmanager
    def listening(self, tenant: str, name: str) -> Iterator[PageListener]:
        """Listen for as long as the page is open. Raises FullError."""
        full = self._open.total() >= self._limit or self._open[name] >= self._limit_each
        if self._closed or full:
            raise FullError
        listener = PageListener(self.latest(tenant))
        self._listeners.setdefault(tenant, set()).add(listener)
        self._open[name] += 1
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll())
        try:
            yield listener
        finally:
            self._listeners[tenant].discard(listener)
            if not self._listeners[tenant]:
                del self._listeners[tenant]
                self._latest.pop(tenant, None)
            self._open[name] -= 1
            self._open += Counter()  # removes counts of zero
            if not self._listeners and self._polling is not None:
                self._polling.cancel()
                self._polling = None

    def close(self) -> None:
        """End all streams, and refuse new ones."""
        self._closed = True
        for listener in [one for listeners in self._listeners.values() for one in listeners]:
            listener.close()

    async def _poll(self) -> None:
        while True:
            for tenant in list(self._listeners):
                try:
                    marks = await self._marks(tenant)
                except CountersealError as error:
                    _log.warning("changes cannot be read: %s", error)
                    continue
                if tenant in self._listeners and marks != self._latest.get(tenant):
                    self._latest[tenant] = marks
                    for listener in self._listeners[tenant]:
                        listener.update(marks)
            await asyncio.sleep(self._interval)


# --- the stream -----------------------------------------------------------------------------------


async def stream(
    listener: PageListener, is_signed_in: Callable[[], Awaitable[bool]], *, interval: float = 5.0
) -> AsyncGenerator[bytes]:
    """Yield marks as server-sent events, until the session or the process ends.

    The session is checked every `interval` seconds, and before marks are sent.
    """
    yield b"retry: 3000\n\n"
    while True:
        changed = await listener.changed(interval)
        if listener.closed:
            return
        if not await is_signed_in():
            yield b"event: over\ndata: signed out\n\n"
            return
        marks = json.dumps(listener.marks, separators=(",", ":"))
        yield f"event: marks\ndata: {marks}\n\n".encode() if changed else b": still here\n\n"


class EventStream(StreamingResponse):
    """Sends chunks as they come, until the client disconnects or accepts no more.

    `done` is called at the end in any case.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncGenerator[bytes],
        *,
        done: Callable[[], None],
        timeout: float = _SEND_TIMEOUT,
    ) -> None:
        super().__init__(chunks, headers={"X-Accel-Buffering": "no"})
        self._chunks = chunks
        self._done = done
        self._timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self._timeout):
                await send(message)

        try:
            async with aclosing(self._chunks):
                await super().__call__(scope, receive, send_in_time)
        except (OSError, ClientDisconnect):  # TimeoutError is an OSError
            _log.debug("a page's stream ended: its client is gone")
        finally:
            self._done()
