"""Connections to the server: the address, the schema, one connection for a batch, the listener."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import asyncpg

from counterseal.errors import CountersealError, StoreError
from counterseal.ledger.rows import TenantKey
from counterseal.storage.postgres.faults import explained
from counterseal.storage.scripts import Migration, migrations_in, missing_migrations, sql_folder
from counterseal.storage.segments import SegmentWriter
from counterseal.storage.waiting import Waiters

_FORM: Final = "write postgresql://user:password@host:5432/database"
_CONNECT_SECONDS: Final = 10.0
"""Seconds that it may take to connect."""
_STATEMENT_SECONDS: Final = 60.0
"""Seconds that a statement may take, with all that it waits for."""
# asyncpg asks the server about types that it meets: ask about all at once, before plans are bound.
_TYPES: Final = "SELECT $1::bigint[], $2::bytea[], $3::float8[], $4::boolean[], ARRAY[ROW(1)]"
# Everything is found by an index, a few rows at a time, with the same statements all the time.
# A client that stops in the middle of a transaction must not block the others.
_SETTINGS: Final = """
SET plan_cache_mode = force_generic_plan; SET jit = off;
SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
SET lock_timeout = '30s'; SET idle_in_transaction_session_timeout = '30s';
SET default_transaction_isolation = 'read committed'; SET client_min_messages = error
"""
LOCKS: Final = 0x43_53_45_41
"""The first half of every advisory lock of this program: `CSEA`. The second halves follow."""
_MIGRATION_LOCK: Final = 1
REGISTRY_LOCK: Final = 2
"""Shared by transactions that rest on the registry, exclusive for one that changes it."""
EXPIRY_LOCK: Final = 3
_CHANNEL: Final = "counterseal"
_FAULTS: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
"""Exceptions of asyncpg when the server cannot be used."""


class DatabaseAddress(NamedTuple):
    """Which database a URL names."""

    url: str
    where: str
    """The URL without user, password and options, for messages."""

    @classmethod
    def of(cls, url: str) -> DatabaseAddress:
        """Return the address in a URL. The URL holds a password and is in no message."""
        try:
            parts = urlsplit(url)
        except ValueError:
            raise CountersealError(f"the store's URL can't be read; {_FORM}") from None
        if parts.scheme not in ("postgresql", "postgres") or not url.startswith(
            f"{parts.scheme}://"
        ):
            raise CountersealError(f"the store's URL names no database; {_FORM}")
        host = parts.netloc.rpartition("@")[2]
        return cls(url, f"postgresql://{host}{parts.path}")

    def __repr__(self) -> str:
        return f"Address({self.where!r})"


async def connect(address: DatabaseAddress) -> Any:
    """Return a new connection. StoreError, without the password, when the server refuses."""
    try:
        connection = await asyncpg.connect(
            address.url,
            timeout=_CONNECT_SECONDS,
            command_timeout=_STATEMENT_SECONDS,
            statement_cache_size=256,
            max_cached_statement_lifetime=0,
            server_settings={"application_name": "counterseal"},
        )
        async with _preparing(connection, address):
            await connection.prepare(_TYPES)
            await connection.execute(_SETTINGS)
    except (*_FAULTS, ValueError) as error:
        raise explained(error, address.where) from None  # the cause could hold the URL
    return connection


@asynccontextmanager
async def _preparing(connection: Any, address: DatabaseAddress) -> AsyncIterator[None]:
    """Terminate the connection when its preparation fails or is cancelled."""
    try:
        yield
    except BaseException as error:
        connection.terminate()
        if isinstance(error, _FAULTS):
            raise explained(error, address.where) from error
        raise


# --- the schema -----------------------------------------------------------------------------------


def known_migrations() -> tuple[Migration, ...]:
    """Return the migrations of this program, in their order."""
    return migrations_in(sql_folder("postgres"))


async def migrate(connection: Any, where: str, known: Sequence[Migration] | None = None) -> None:
    """Apply what is missing, under a lock: of many workers that start at once, one does it."""
    known = known_migrations() if known is None else known
    try:
        if missing_migrations(await _applied(connection), known, where, "database"):
            await _apply(connection, where, known)
    except (asyncpg.DuplicateTableError, asyncpg.UndefinedColumnError) as error:
        raise StoreError(
            f"{where} holds tables of another program; give Counterseal a database of its own"
        ) from error


async def _apply(connection: Any, where: str, known: Sequence[Migration]) -> None:
    # Locked before the transaction begins: a running transaction may not see new tables.
    await connection.execute("SELECT pg_advisory_lock($1, $2)", LOCKS, _MIGRATION_LOCK)
    try:
        async with connection.transaction():
            missing = missing_migrations(await _applied(connection), known, where, "database")
            for migration in missing:
                await connection.execute(migration.text)
                await connection.execute(
                    "INSERT INTO migrations (number, name, checksum) VALUES ($1, $2, $3)",
                    migration.number,
                    migration.name,
                    migration.checksum,
                )
    finally:
        if not connection.is_closed():
            await connection.execute("SELECT pg_advisory_unlock($1, $2)", LOCKS, _MIGRATION_LOCK)


async def _applied(connection: Any) -> dict[int, str]:
    """Return the checksums of the applied migrations by number."""
    if await connection.fetchval("SELECT to_regclass('migrations')") is None:
        return {}
    return dict(await connection.fetch("SELECT number, checksum FROM migrations"))


class Schema:
    """Brings the database up to date once, with the first connection."""

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


# --- one connection -------------------------------------------------------------------------------


class Connection:
    """A connection that is made when it is needed, and anew after a loss, with its log segment.

    One batch uses it at a time.
    """

    def __init__(
        self, address: DatabaseAddress, schema: Schema, released: Callable[[TenantKey], None]
    ) -> None:
        self.where = address.where
        self.released = released
        """Called after a commit for every released entry and decided request."""
        self.segment = SegmentWriter()
        self._address = address
        self._schema = schema
        self._connection: Any = None

    async def get(self) -> Any:
        """Return the asyncpg connection, made anew if it was lost."""
        if self._connection is None or self._connection.is_closed():
            self.lose()
            connection = await connect(self._address)
            async with _preparing(connection, self._address):
                await self._schema.ensure(connection)
            self._connection = connection
        return self._connection

    def lose(self) -> None:
        """Drop the connection. Its segment ends: the fate of its last commit may be unknown."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self.segment.begin()
            with suppress(Exception):  # it may belong to an event loop that is gone
                connection.terminate()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close(timeout=_CONNECT_SECONDS)
            except _FAULTS:
                connection.terminate()


# --- announcements --------------------------------------------------------------------------------


def signal_of(where: TenantKey) -> str:
    """Return what is sent to callers that wait for a row: short, whatever its key."""
    tenant, key = where
    return sha256(f"{tenant}\0{key}".encode()).hexdigest()


class ChangeListener:
    """Hears of released entries and decided requests, on a connection of its own.

    It connects when a caller first waits, and anew after a loss. After a loss all waiting callers
    look for themselves: the server does not repeat what it sent meanwhile.
    """

    def __init__(self, address: DatabaseAddress) -> None:
        self._address = address
        self._connection: Any = None
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reset()

    def _reset(self) -> None:
        self._waiters = Waiters()
        self._connecting: asyncio.Task[None] | None = None

    def waiters(self) -> Waiters:
        """Return the waiting callers of the running event loop, by signal."""
        if self._closed:
            raise StoreError(f"{self._address.where} was closed; open it again")
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._drop()
            self._reset()
            self._loop = loop
        return self._waiters

    async def listen(self) -> None:
        """Hear of every change from now on. StoreError when the server can't be reached."""
        self.waiters()
        if self._connection is None or self._connection.is_closed():
            if self._connecting is None:
                self._connecting = asyncio.get_running_loop().create_task(self._connect())
                self._connecting.add_done_callback(_retrieve_error)
            # A caller that is cancelled meanwhile leaves the connection to the others.
            await asyncio.shield(self._connecting)

    async def _connect(self) -> None:
        try:
            connection = await connect(self._address)
            async with _preparing(connection, self._address):
                await connection.add_listener(_CHANNEL, self._heard)
            connection.add_termination_listener(self._lost)
            self._connection = connection
        finally:
            self._connecting = None

    def _heard(self, _connection: Any, _process: int, _channel: str, signal: str) -> None:
        self._waiters.wake(("", signal))

    def released(self, where: TenantKey) -> None:
        """Wake callers of this process, without waiting for the server's announcement."""
        if self._waiters:
            self._waiters.wake(("", signal_of(where)))

    def _lost(self, connection: Any) -> None:
        if connection is self._connection:
            self._connection = None
        self._waiters.wake_all()

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
        self._waiters.wake_all()


def _retrieve_error(connecting: asyncio.Task[None]) -> None:
    """Mark the error as seen: callers that still wait get it, and others need none."""
    if not connecting.cancelled():
        connecting.exception()
