"""A connection that is kept up: opened again, with longer and longer pauses, when it is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Final

from counterseal.errors import NotSentError
from counterseal.upstream.connection import Connection

__all__ = ["Line"]

_FIRST, _LONGEST = 0.5, 30.0
_STEADY: Final = 5.0
"""Seconds after which a connection was a good one; after one that ended sooner there is a pause."""
_CLOSE: Final = 6.0
"""Seconds that an end may take, kill and all."""


class Line:
    """Keeps one connection to an upstream up, from `open` to `close`."""

    def __init__(
        self, name: str, make: Callable[[], Connection], up: Callable[[Connection], None]
    ) -> None:
        self._name = name
        self._make = make
        self._tell_up = up
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._changed = asyncio.Event()
        self.connection: Connection | None = None
        self.trouble = "it is being started"
        self.down = False
        """Whether it is known that nothing can be sent now."""

    @property
    def up(self) -> bool:
        return self.connection is not None and self.connection.up

    def open(self) -> None:
        """Start connecting. Nothing of the call that may have led here goes on in it."""
        self._task = asyncio.get_running_loop().create_task(self._keep(), context=Context())

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

    async def get(self, seconds: float) -> Connection:
        """The connection. Waits for one that is being opened, not for one that has failed.

        NotSentError: there is none.
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
                raise NotSentError(f"upstream {self._name} is not there yet") from None

    async def settle(self) -> None:
        """Until it is up, or has failed."""
        while not self.up and not self.down:
            await self._changed.wait()

    async def _keep(self) -> None:
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

    def _came_up(self, connection: Connection) -> None:
        self.down, self.trouble = False, ""
        self._wake()
        self._tell_up(connection)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _pause(failures: int) -> float:
    """None after the first loss, then ever longer, and never the same for all who wait."""
    if failures == 0:
        return 0.0
    longest: float = min(_FIRST * 2 ** (failures - 1), _LONGEST)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
