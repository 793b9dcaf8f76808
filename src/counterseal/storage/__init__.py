"""Where runs, entries, held proposals, counters and events are kept, found by URL."""

from __future__ import annotations

from counterseal.errors import CountersealError
from counterseal.storage.base import Store
from counterseal.storage.memory import MemoryStore

__all__ = ["Store", "open_store"]


def open_store(url: str) -> Store:
    """The store that a URL names. Durable ones are opened, and migrated, on first use."""
    scheme = url.partition(":")[0]
    if scheme == "memory":
        return MemoryStore()
    raise CountersealError(f"no store is called {scheme!r}; this version has memory:")
