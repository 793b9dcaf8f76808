"""One connection to the server: made when it is needed, and made anew after a loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import asyncpg

from counterseal.storage.postgres.address import Address
from counterseal.storage.postgres.faults import explained
from counterseal.storage.postgres.migrations import migrate
from counterseal.storage.postgres.segment import Segment

__all__ = ["FAULTS", "Schema", "Session", "connect", "trying"]

_PATIENCE: Final = 10.0
"""How many seconds a connection may take to be made."""
_SLOWEST: Final = 60.0
"""How many seconds a statement may take, with all that it waits for."""
# asyncpg asks the server about types that it meets: about all at once, before planning is bound.
_TYPES: Final = "SELECT $1::bigint[], $2::bytea[], $3::float8[], $4::boolean[], ARRAY[ROW(1)]"
# Everything is looked up by an index, a few rows at a time, with the same statements all the time.
# Who stops in the middle of a transaction must not keep others from going on.
_SETTINGS: Final = """
SET plan_cache_mode = force_generic_plan; SET jit = off;
SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
SET lock_timeout = '30s'; SET idle_in_transaction_session_timeout = '30s';
SET default_transaction_isolation = 'read committed'; SET client_min_messages = error
"""


FAULTS: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
"""What a server that is not as it should be makes asyncpg raise."""


async def connect(address: Address) -> Any:
    """A connection. StoreError, without the password, when there is none to be had."""
    try:
        connection = await asyncpg.connect(
            address.url,
            timeout=_PATIENCE,
            command_timeout=_SLOWEST,
            statement_cache_size=256,
            max_cached_statement_lifetime=0,
            server_settings={"application_name": "counterseal"},
        )
        async with trying(connection, address):
            await connection.prepare(_TYPES)
            await connection.execute(_SETTINGS)
    except (*FAULTS, ValueError) as error:
        raise explained(error, address.where) from None  # the cause could tell the URL
    return connection


@asynccontextmanager
async def trying(connection: Any, address: Address) -> AsyncIterator[None]:
    """A connection is of no use when what is done here fails, or nobody waits for it any more."""
    try:
        yield
    except BaseException as error:
        connection.terminate()
        if isinstance(error, FAULTS):
            raise explained(error, address.where) from error
        raise


class Schema:
    """Brings the database up to date once, whoever connects first."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._lock = asyncio.Lock()
        self._done = False

    async def ensure(self, connection: Any) -> None:
        if self._done:
            return
        async with self._lock:
            if not self._done:
                await migrate(connection, self._where)
                self._done = True


class Session:
    """A connection and its part of the audit log. Used by one at a time."""

    def __init__(self, address: Address, schema: Schema, heard: Callable[[str, str], None]) -> None:
        self.where = address.where
        self.heard = heard
        """Told of entries that were let go, and of requests that were decided."""
        self.segment = Segment()
        self._address = address
        self._schema = schema
        self._connection: Any = None

    async def connection(self) -> Any:
        """The connection, made anew if it was lost."""
        if self._connection is None or self._connection.is_closed():
            self.lose()
            connection = await connect(self._address)
            async with trying(connection, self._address):
                await self._schema.ensure(connection)
            self._connection = connection
        return self._connection

    def lose(self) -> None:
        """The connection is of no use any more, and with it its part of the log ends."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self.segment.abandon()
            with suppress(Exception):  # it may belong to an event loop that is gone
                connection.terminate()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close(timeout=_PATIENCE)
            except FAULTS:
                connection.terminate()
