"""The store of many workers: one Postgres database, for any number of machines.

`world` is what a transaction sees and changes; `admission`, `runs`, `holds`, `work`, `record` and
`forgetting` are the store's transactions; `batch` carries many of them out as one, `lanes` gathers
what waits, and `store` is the whole of it.
"""

from __future__ import annotations

from counterseal.errors import CountersealError
from counterseal.storage.postgres.address import Address

try:
    from counterseal.storage.postgres.store import PostgresStore
except ModuleNotFoundError as error:
    if error.name != "asyncpg":
        raise
    raise CountersealError(
        "a Postgres store needs asyncpg; run `pip install 'counterseal[postgres]'`"
    ) from None

__all__ = ["PostgresStore", "open_postgres"]


def open_postgres(url: str) -> PostgresStore:
    """The store in the database that a URL names. It connects when it is first used."""
    return PostgresStore(Address.of(url))
