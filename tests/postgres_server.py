"""A real Postgres for tests and benchmarks: started here, and never left behind.

    base_url = shared()                  # one for all test processes of a run
    url = fresh_database(base_url)       # a new database with today's schema
    with borrowed_database() as url:     # an empty one, which is used again afterwards
    with private_server() as server:     # one to be stopped, killed and started: server.kill()

A small process of its own (`postgres_holder`) starts the server and holds it. A user keeps a
connection to that process; when the last one is closed, on purpose or because its owner was killed,
the server and its folder go. `COUNTERSEAL_TEST_POSTGRES`, the URL of a role that may make
databases, is used instead where it is set.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests import postgres_holder
from tests.postgres_holder import PATIENCE, locked
from tests.waiting import until, until_now

# --- for tests ------------------------------------------------------------------------------------


@cache
def shared() -> str:
    """The URL of the server that all processes of this test run use; held until this one ends."""
    given = os.environ.get("COUNTERSEAL_TEST_POSTGRES")
    if given:
        return given
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
    sign = Path(tempfile.gettempdir()) / f"counterseal-postgres-{os.getuid()}-{run[:12]}.sign"
    _HELD.append(_join(sign))
    return _HELD[-1].url


_HELD: list[Server] = []


@contextmanager
def server() -> Iterator[str]:
    """The URL of the shared server, as a context."""
    yield shared()


@contextmanager
def private_server(**settings: str) -> Iterator[Server]:
    """A private server with settings of its own."""
    folder = Path(tempfile.mkdtemp(prefix="counterseal-postgres-"))
    mine = _started(folder, settings)
    try:
        yield mine
    finally:
        mine.close()


class Server:
    """A connection to the process that holds a server."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._lines = link.makefile("rw", encoding="utf-8")
        self.url = self._told()

    def stop(self) -> None:
        """Shut it down: clients are told, and what they did not commit is undone."""
        self._ask("stop")

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._ask("kill")

    def start(self) -> None:
        """Start it again, at the same address."""
        self._ask("start")

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Leave; the server ends with its last user, and this waits for that."""
        self._link.shutdown(socket.SHUT_WR)
        self._link.settimeout(PATIENCE)
        with suppress(OSError):
            self._link.recv(1)
        self._lines.close()
        self._link.close()

    def _ask(self, what: str) -> None:
        self._lines.write(f"{what}\n")
        self._lines.flush()
        self._told()

    def _told(self) -> str:
        answer = self._lines.readline().strip()
        if not answer or answer.startswith("failed"):
            raise RuntimeError(f"Postgres could not be started: {answer or 'its holder is gone'}")
        return answer


def fresh_database(base_url: str | None = None) -> str:
    """A new, empty database with today's schema, on this server."""
    base_url = base_url or shared()
    name = f"counterseal_{secrets.token_hex(8)}"
    template = _template(base_url)
    execute(base_url, f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    return _named(base_url, name)


def bare_database(base_url: str | None = None) -> str:
    """A new database with nothing in it at all."""
    base_url = base_url or shared()
    name = f"counterseal_{secrets.token_hex(8)}"
    execute(base_url, f'CREATE DATABASE "{name}" TEMPLATE template0')
    return _named(base_url, name)


def drop_database(url: str, base_url: str | None = None) -> None:
    """Remove it, also while clients are connected."""
    name = urlsplit(url).path.strip("/")
    execute(base_url or shared(), f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@contextmanager
def borrowed_database() -> Iterator[str]:
    """An empty database of the shared server. It is emptied, and used again, when it is given back.

    Much cheaper than a new one, for tests that need hundreds.
    """
    url = _FREE.pop() if _FREE else fresh_database()
    try:
        yield url
    finally:
        execute(url, _emptying())
        _FREE.append(url)


_FREE: list[str] = []


def execute(url: str, statements: str) -> list[Any]:
    """Run statements on a connection of their own; works inside an event loop too."""

    async def run() -> list[Any]:
        import asyncpg

        connection = await asyncpg.connect(url, timeout=PATIENCE)
        try:
            if statements.lstrip().upper().startswith(("SELECT", "UPDATE", "INSERT", "DELETE")):
                return [tuple(row) for row in await connection.fetch(statements)]
            await connection.execute(statements)
        finally:
            await connection.close()
        return []

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, run()).result()


async def seen(url: str, query: str) -> list[Any]:
    """What a query finds, as soon as it finds something."""
    rows: list[Any] = await until(lambda: execute(url, query), query)
    return rows


def settable_clock(url: str) -> None:
    """Let `set_clock` set the clock of a database, as its sessions see it from now on."""
    name = urlsplit(url).path.strip("/")
    clocks = "".join(
        f"CREATE FUNCTION public.{clock}() RETURNS timestamptz STABLE LANGUAGE sql AS"
        f" 'SELECT pg_catalog.{clock}() + (SELECT ahead FROM public.set_clock)';"
        for clock in ("clock_timestamp", "statement_timestamp")
    )
    execute(
        url,
        f"""CREATE TABLE public.set_clock AS SELECT interval '0' AS ahead; {clocks}
        ALTER DATABASE "{name}" SET search_path = public, pg_catalog""",
    )


def set_clock(url: str, ahead: float) -> None:
    """Let the clock of a database be so many seconds ahead of the real time."""
    execute(url, f"UPDATE public.set_clock SET ahead = interval '{ahead} seconds'")


STUCK = (
    "SELECT pid FROM pg_stat_activity"
    " WHERE wait_event_type = 'Lock' AND datname = current_database()"
)
"""Finds sessions that wait for a lock in a database."""
AWAITED = "SELECT key FROM ledger WHERE awaited"
"""Finds entries that have a waiter."""


@cache
def _emptying() -> str:
    tables = execute(
        _named(shared(), _template(shared())),
        "SELECT relname FROM pg_class WHERE relkind = 'r'"
        " AND relnamespace = 'public'::regnamespace AND relname <> 'migrations'",
    )
    deletes = "".join(f'DELETE FROM "{table}";' for (table,) in tables)
    return f"BEGIN; SET LOCAL synchronous_commit = off; {deletes} COMMIT"


@cache
def _template(base_url: str) -> str:
    """The database that new ones are copied from. Of several processes, one makes it."""
    from counterseal.storage.postgres import open_postgres
    from counterseal.storage.postgres.connections import known_migrations

    name = f"counterseal_schema_{known_migrations()[-1].checksum[:12]}"

    async def make() -> None:
        import asyncpg

        connection = await asyncpg.connect(base_url, timeout=PATIENCE)
        try:
            await connection.execute("SELECT pg_advisory_lock(20261116)")
            there = "SELECT 1 FROM pg_database WHERE datname = $1"
            if await connection.fetchval(there, name):
                return
            await connection.execute(f'DROP DATABASE IF EXISTS "{name}_new" WITH (FORCE)')
            await connection.execute(f'CREATE DATABASE "{name}_new" TEMPLATE template0')
            store = open_postgres(_named(base_url, f"{name}_new"))
            await store.ready()
            await store.close()
            await connection.execute(f'ALTER DATABASE "{name}_new" RENAME TO "{name}"')
        finally:
            await connection.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, make()).result()
    return name


def _named(base_url: str, name: str) -> str:
    return urlsplit(base_url)._replace(path=f"/{name}").geturl()


# --- joining --------------------------------------------------------------------------------------


def _join(sign: Path) -> Server:
    """The server whose folder a file names; the first one that comes has it started."""
    with locked(sign) as file:
        folder = Path(file.read().strip() or os.devnull)
        with suppress(OSError, RuntimeError):
            return Server(_connected(folder))
        folder = Path(tempfile.mkdtemp(prefix="counterseal-postgres-"))
        file.seek(0)
        file.truncate()
        file.write(str(folder))
        file.flush()
        return _started(folder, {}, sign)


def _connected(folder: Path) -> socket.socket:
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(str(folder / "users"))
    except BaseException:
        link.close()
        raise
    return link


def _started(folder: Path, settings: dict[str, str], sign: Path | None = None) -> Server:
    """A new server in an empty folder."""
    folder.chmod(0o711)  # the server's user must get through
    words = [f"{name}={value}" for name, value in settings.items()]
    # A session of its own: Ctrl-C ends the tests first, and the server when they are gone.
    with (folder / "log").open("wb") as log:
        holder = subprocess.Popen(
            [sys.executable, postgres_holder.__file__, str(folder), str(sign or ""), *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    _HOLDERS.append(holder)

    def server() -> Server | None:
        with suppress(OSError):
            return Server(_connected(folder))
        if holder.poll() is None:
            return None
        log = (folder / "log").read_text(errors="replace")
        shutil.rmtree(folder, ignore_errors=True)
        raise RuntimeError(f"Postgres could not be started:\n{log}")

    started: Server = until_now(server, "Postgres is started")
    return started


_HOLDERS: list[subprocess.Popen[bytes]] = []
"""Kept, so that Python does not warn of a process that is still running."""
