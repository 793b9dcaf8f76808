"""Waits for entries that others hold and requests that others decide; the server wakes it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from counterseal.errors import StoreError
from counterseal.storage.postgres.address import Address
from counterseal.storage.postgres.session import connect, trying
from counterseal.storage.postgres.writing import signal_of
from counterseal.storage.waiting import Waiting

__all__ = ["Listener"]

_CHANNEL = "counterseal"


class Listener:
    """A connection of its own, made when somebody first waits, and anew after a loss.

    When it is lost, all who wait look for themselves: what was sent meanwhile is not sent again.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Any = None
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._waiting = Waiting()
        self._connecting: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        """Hear of everything from now on. StoreError when the server can't be reached."""
        if self._closed:
            raise StoreError(f"{self._address.where} was closed; open it again")
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._drop()
            self._begin_anew()
            self._loop = loop
        if self._connection is None or self._connection.is_closed():
            if self._connecting is None:
                self._connecting = loop.create_task(self._connect())
                self._connecting.add_done_callback(_hush)
            # Who gives up meanwhile leaves it to the others.
            await asyncio.shield(self._connecting)

    async def _connect(self) -> None:
        try:
            connection = await connect(self._address)
            async with trying(connection, self._address):
                await connection.add_listener(_CHANNEL, self._heard)
            connection.add_termination_listener(self._lost)
            self._connection = connection
        finally:
            self._connecting = None

    def _heard(self, _connection: Any, _process: int, _channel: str, signal: str) -> None:
        self._waiting.wake("", signal)

    def heard(self, tenant: str, key: str) -> None:
        """That was in this process: no need to wait for the server's word."""
        if self._waiting:
            self._waiting.wake("", signal_of(tenant, key))

    def _lost(self, connection: Any) -> None:
        if connection is self._connection:
            self._connection = None
        self._waiting.wake_all()

    async def change(self, tenant: str, key: str, seconds: float) -> None:
        """Return when there is word of it, or when the time is over."""
        await self._waiting.change("", signal_of(tenant, key), seconds)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # it may belong to an event loop that is gone
                connection.terminate()

    async def close(self) -> None:
        self._closed = True
        if self._connecting is not None and self._loop is asyncio.get_running_loop():
            await asyncio.wait([self._connecting])
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.remove_termination_listener(self._lost)
            with suppress(Exception):
                await connection.close(timeout=5)
        self._waiting.wake_all()


def _hush(connecting: asyncio.Task[None]) -> None:
    """Whoever waits for it is told; where nobody does any more, nobody needs to be."""
    if not connecting.cancelled():
        connecting.exception()
