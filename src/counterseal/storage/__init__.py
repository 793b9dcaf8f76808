"""The store: runs, ledger entries, requests for approval, counters, events; found by URL."""

from __future__ import annotations

from counterseal.errors import CountersealError
from counterseal.storage.memory import MemoryStore
from counterseal.storage.store import Store

__all__ = ["Store", "open_store"]


def open_store(url: str) -> Store:
    """Return the store that a URL names."""
    scheme = url.partition(":")[0]
    if scheme == "memory":
        return MemoryStore()
    if scheme == "sqlite":
        from counterseal.storage.sqlite import open_sqlite  # noqa: PLC0415 - only when it is used

        return open_sqlite(url)
    if scheme in ("postgresql", "postgres"):
        from counterseal.storage.postgres import open_postgres  # noqa: PLC0415 - only when it is used

        return open_postgres(url)
    raise CountersealError(
        f"unknown store {scheme!r}; use a URL that begins with memory:, sqlite: or postgresql:"
    )
