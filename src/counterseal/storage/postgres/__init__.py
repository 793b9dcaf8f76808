"""The store of many workers: one Postgres database, for any number of machines.

`backend` answers the store; `batches` gathers what waits and runs it in one transaction; `rows`
loads, locks and writes rows; `queries` reads; `connections` keeps connections and the listener.
"""

from __future__ import annotations

from counterseal.errors import CountersealError
from counterseal.storage.store import Store

try:
    from counterseal.storage.postgres.backend import PostgresBackend
    from counterseal.storage.postgres.connections import DatabaseAddress
except ModuleNotFoundError as error:
    if error.name != "asyncpg":
        raise
    raise CountersealError(
        "a Postgres store needs asyncpg; run `pip install 'counterseal[postgres]'`"
    ) from None

__all__ = ["PostgresStore", "open_postgres"]


class PostgresStore(Store):
    """A store in one database. It connects when it is first used."""

    def __init__(self, address: DatabaseAddress, *, writers: int = 3, readers: int = 2) -> None:
        super().__init__(PostgresBackend(address, writers=writers, readers=readers))


def open_postgres(url: str) -> PostgresStore:
    """Return the store in the database that a URL names."""
    return PostgresStore(DatabaseAddress.of(url))
