"""The connections to one upstream, for one tenant or for all: which one a request takes.

One connection is always kept up, and opened again when it is lost. It serves all requests, as long
as questions of the upstream need not be told apart. Where the upstream may ask questions, and its
revision does not say to which call a question belongs, each call gets a connection to itself, and
more are opened, up to a limit.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from typing import Final

from counterseal.contract.tool_context import AgentClient
from counterseal.errors import NotSentError
from counterseal.upstream.connection import UpstreamConnection
from counterseal.upstream.settings import UpstreamSettings

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_STEADY: Final = 5.0
"""Seconds after which a connection counts as good. After a shorter one there is a pause."""
_CLOSE: Final = 6.0
"""Seconds that closing a connection may take, SIGKILL included."""


class PersistentConnection:
    """One connection that is opened again whenever it is lost, from `open` to `close`."""

    def __init__(
        self,
        name: str,
        make: Callable[[], UpstreamConnection],
        up: Callable[[UpstreamConnection], None],
    ) -> None:
        self._name = name
        self._make = make
        self._on_up = up
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._changed = asyncio.Event()
        self.connection: UpstreamConnection | None = None
        self.trouble = "it is starting"
        self.down = False
        """True if it is known that nothing can be sent now."""

    @property
    def up(self) -> bool:
        return self.connection is not None and self.connection.up

    def open(self) -> None:
        """Start connecting, in an empty context: nothing of the present call belongs to it."""
        self._task = asyncio.get_running_loop().create_task(self._keep_up(), context=Context())

    async def close(self) -> None:
        """End the connection, within a bounded time."""
        self._closing.set()
        self.down, self.trouble = True, "it was closed"
        if self.connection is not None:
            self.connection.end("closed")
        self._wake()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_CLOSE)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def get(self, seconds: float) -> UpstreamConnection:
        """Return the connection; wait for one that is being opened.

        Raises NotSentError if it has failed, or is not open after so many seconds.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while True:
            connection = self.connection
            if connection is not None and connection.up:
                return connection
            if self.down:
                raise NotSentError(f"upstream {self._name} is down: {self.trouble}")
            changed = self._changed
            try:
                async with asyncio.timeout_at(until):
                    await changed.wait()
            except TimeoutError:
                raise NotSentError(f"upstream {self._name} is still starting") from None

    async def settle(self) -> None:
        """Wait until it is up, or has failed."""
        while not self.up and not self.down:
            await self._changed.wait()

    async def _keep_up(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while not self._closing.is_set():
            connection = self.connection = self._make()
            await connection.run(self._came_up)
            self.trouble = connection.trouble
            if connection.up_since is None:
                failures = max(failures, 1)
            elif loop.time() - connection.up_since >= _STEADY:
                failures = 0
            pause = _pause(failures)
            failures += 1
            if not self._closing.is_set():
                self.down = pause > 0
            self._wake()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._closing.wait()

    def _came_up(self, connection: UpstreamConnection) -> None:
        self.down, self.trouble = False, ""
        self._wake()
        self._on_up(connection)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _pause(failures: int) -> float:
    """Return the seconds before the next try: none after the first loss, then growing, random."""
    if failures == 0:
        return 0.0
    longest: float = min(_FIRST_PAUSE * 2 ** (failures - 1), _LONGEST_PAUSE)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing


class ConnectionPool:
    """A persistent connection, and extra connections for calls that need one to themselves."""

    def __init__(
        self,
        settings: UpstreamSettings,
        make: Callable[[], UpstreamConnection],
        up: Callable[[UpstreamConnection], None],
    ) -> None:
        self._settings = settings
        self._make = make
        self._extra: dict[UpstreamConnection, asyncio.Task[None]] = {}
        self._freed = asyncio.Event()
        self.main = PersistentConnection(settings.name, make, up)
        self.in_use = 0
        self.used_at = 0.0

    @asynccontextmanager
    async def lease(self, client: AgentClient, seconds: float) -> AsyncIterator[UpstreamConnection]:
        """Return a connection for one request, whose questions go to this client.

        Raises NotSentError if none is free within so many seconds.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        self.in_use += 1
        try:
            connection = await self.main.get(seconds)
            if connection.modern or not self._settings.relay:
                yield connection
                return
            connection = await self._exclusive(until)
            connection.questions.begin(client)
            try:
                yield connection
            finally:
                connection.questions.end()
                connection.busy = False
                self._wake()
        finally:
            self.in_use -= 1
            self.used_at = loop.time()

    async def _exclusive(self, until: float) -> UpstreamConnection:
        while True:
            every = [self.main.connection, *self._extra]
            free = next((each for each in every if each and each.up and not each.busy), None)
            if free is not None:
                free.busy = True
                return free
            if len(self._extra) + 1 < self._settings.connections:
                self._open_extra()
            freed = self._freed
            try:
                async with asyncio.timeout_at(until):
                    await freed.wait()
            except TimeoutError:
                raise NotSentError(
                    f"upstream {self._settings.name} is busy: each of its "
                    f"{self._settings.connections} connections has a call"
                ) from None

    def _open_extra(self) -> None:
        connection = self._make()
        running = connection.run(lambda _: self._wake())
        task = asyncio.get_running_loop().create_task(running, context=Context())
        self._extra[connection] = task
        task.add_done_callback(lambda _: self._extra_ended(connection))

    def _extra_ended(self, connection: UpstreamConnection) -> None:
        self._extra.pop(connection, None)
        if connection.up_since is not None:
            self._wake()

    def _wake(self) -> None:
        freed, self._freed = self._freed, asyncio.Event()
        freed.set()

    async def close(self) -> None:
        """End all connections, within a bounded time."""
        extra = dict(self._extra)
        for connection in extra:
            connection.end("closed")
        await self.main.close()
        if extra:
            await asyncio.wait(extra.values(), timeout=_CLOSE)
            for task in extra.values():
                task.cancel()
            await asyncio.gather(*extra.values(), return_exceptions=True)
