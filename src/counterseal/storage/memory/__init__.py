"""A store in this process's memory: for tests, and for trying things out. Forgets at the end.

`ledger` keeps entries with their leases, `holds` requests for approval, `work` what is due, `log`
the events and their chain, and `store` is the whole of it. Nothing here awaits but those who wait,
so on one event loop every method is a transaction by itself.
"""

from __future__ import annotations

from counterseal.storage.memory.store import MemoryStore

__all__ = ["MemoryStore"]
