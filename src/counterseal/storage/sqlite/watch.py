"""Notices that something is no longer waited for, whoever saw to it: this process, or another one.

SQLite tells nobody of a change. While somebody waits here, and only then, it is asked every few
milliseconds whether there was one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from counterseal.errors import StoreError
from counterseal.storage.sqlite.database import Database
from counterseal.storage.waiting import Waiting

__all__ = ["Watch"]

_EVERY: Final = 0.02
"""How many seconds pass between two looks."""


class Watch:
    """For one event loop at a time: those who waited in another one are gone with it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._waiting = Waiting()
        self._many = 0
        self._timer: asyncio.TimerHandle | None = None
        self._seen: tuple[int, int] | None = None

    def wake(self, tenant: str, key: str) -> None:
        """An entry, or a request, was changed by this process."""
        if self._many:
            self._waiting.wake(tenant, key)

    def wake_all(self) -> None:
        self._waiting.wake_all()

    async def until_over(
        self, tenant: str, key: str, seconds: float, lasts_for: Callable[[], Awaitable[float]]
    ) -> bool:
        """False when the time is over before what is waited for.

        `lasts_for` says in how many seconds that ends by itself; none or less: it is over.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        self._come(loop)  # before the first look: what changes afterwards is noticed
        try:
            while True:
                lasts = await lasts_for()
                if lasts <= 0:
                    return True
                left = end - loop.time()
                if left <= 0:
                    return False
                await self._waiting.change(tenant, key, min(left, lasts))
        finally:
            self._go(loop)

    def _come(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self._loop:
            self._loop = loop
            self._begin_anew()
        self._many += 1
        if self._many == 1:
            self._look()

    def _go(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self._loop:
            return
        self._many -= 1
        if self._timer is not None and not self._many:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        with suppress(StoreError):  # while the file can't be read there is nothing to be seen
            seen = self._database.version()
            if seen != self._seen:
                self._seen = seen
                self._waiting.wake_all()
        if self._loop is not None:
            self._timer = self._loop.call_later(_EVERY, self._look)
