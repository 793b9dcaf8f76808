"""The connections of one upstream for one tenant, or for all: which one a request takes.

One connection serves everybody, as long as nothing that an upstream asks back has to be told apart.
Where it may ask, and speaks a revision that does not say for which call it asks, each call has a
connection for itself, and more are opened, up to a number.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Final

from counterseal.contract.tool_context import Client
from counterseal.errors import NotSentError
from counterseal.upstream.connection import Connection
from counterseal.upstream.line import Line
from counterseal.upstream.settings import Settings

__all__ = ["Pool"]

_CLOSE: Final = 6.0


class Pool:
    """A line that is always kept, and connections beside it for calls that need one each."""

    def __init__(
        self,
        settings: Settings,
        make: Callable[[], Connection],
        up: Callable[[Connection], None],
    ) -> None:
        self._settings = settings
        self._make = make
        self._extra: dict[Connection, asyncio.Task[None]] = {}
        self._freed = asyncio.Event()
        self.line = Line(settings.name, make, up)
        self.in_use = 0
        self.used_at = 0.0

    @asynccontextmanager
    async def lease(self, client: Client, seconds: float) -> AsyncIterator[Connection]:
        """A connection for one request, that may ask things of the client in front of it.

        NotSentError: there is none within so many seconds.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        self.in_use += 1
        try:
            connection = await self.line.get(seconds)
            if connection.modern or not self._settings.relay:
                yield connection
                return
            connection = await self._own(until)
            connection.asked.begin(client)
            try:
                yield connection
            finally:
                connection.asked.end()
                connection.busy = False
                self._free()
        finally:
            self.in_use -= 1
            self.used_at = loop.time()

    async def _own(self, until: float) -> Connection:
        while True:
            held = [self.line.connection, *self._extra]
            found = next((one for one in held if one and one.up and not one.busy), None)
            if found is not None:
                found.busy = True
                return found
            if len(self._extra) + 1 < self._settings.connections:
                self._open()
            freed = self._freed
            try:
                async with asyncio.timeout_at(until):
                    await freed.wait()
            except TimeoutError:
                raise NotSentError(
                    f"upstream {self._settings.name} is busy: each of its "
                    f"{self._settings.connections} connections has a call of its own"
                ) from None

    def _open(self) -> None:
        connection = self._make()
        running = connection.run(lambda _: self._free())
        task = asyncio.get_running_loop().create_task(running, context=Context())
        self._extra[connection] = task
        task.add_done_callback(lambda _: self._gone(connection))

    def _gone(self, connection: Connection) -> None:
        self._extra.pop(connection, None)
        if connection.up_since is not None:
            self._free()

    def _free(self) -> None:
        freed, self._freed = self._freed, asyncio.Event()
        freed.set()

    async def close(self) -> None:
        """End all of them, within a bounded time."""
        extra = dict(self._extra)
        for connection in extra:
            connection.end("closed")
        await self.line.close()
        if extra:
            await asyncio.wait(extra.values(), timeout=_CLOSE)
            for task in extra.values():
                task.cancel()
            await asyncio.gather(*extra.values(), return_exceptions=True)
