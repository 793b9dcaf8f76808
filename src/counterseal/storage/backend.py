"""The protocol of a database behind the store.

A back-end does not know what an admission is. It loads and locks the rows that transactions name,
lets each transaction decide on them, writes what they changed in one commit, chains the audit
events at that commit, and wakes waiting callers after it. It gathers what waits together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from counterseal.audit.chain import Checkpoint
from counterseal.ledger.records import Due
from counterseal.ledger.requests import Claim, ExpiryRequest, StoredEntry
from counterseal.ledger.rows import RowKeys, Rows, TenantKey
from counterseal.storage.queries import Queries

T = TypeVar("T")


class Transaction(Generic[T]):
    """One rule with its request: which rows it needs, and what it decides on them."""

    __slots__ = ("abandonable", "decide", "durable", "need")

    def __init__(
        self,
        need: Callable[[RowKeys], object],
        decide: Callable[[Rows], T],
        *,
        durable: bool = True,
        abandonable: bool = False,
    ) -> None:
        self.need = need
        """Adds the keys of its rows. It is called again when the transaction is run again."""
        self.decide = decide
        """Reads rows, changes them, and returns the result. It can be run again on fresh rows."""
        self.durable = durable
        """True when the result must survive a power loss from the moment that it is returned."""
        self.abandonable = abandonable
        """True when it need not be run once its caller was cancelled."""


class Backend(Protocol):
    """A database of the store. Every method raises StoreError when it cannot be used."""

    @property
    def queries(self) -> Queries:
        """Reads: lists, searches, tallies."""

    async def open(self) -> None:
        """Connect, and bring the schema up to date. Otherwise the first use does that."""

    async def close(self) -> None:
        """Write what is left, and refuse further use. StoreError when something was not written."""

    async def transact(self, transaction: Transaction[T]) -> T:
        """Run a transaction, together with others that wait, and commit. Returns its result."""

    def enqueue(self, transaction: Transaction[Any]) -> None:
        """Run a transaction with the next commit; no caller waits for it."""

    async def flush(self) -> None:
        """Commit everything that was enqueued. StoreError when some of it cannot be written."""

    async def wait(
        self, where: TenantKey, watch: Transaction[float | None], seconds: float
    ) -> bool:
        """Wait until a row is released or decided. Returns False on timeout.

        `watch` returns the seconds after which that happens by itself, or None when it has
        happened. It is run first, and again after every change that may be the one.
        """

    # --- what scans or deletes in bulk ------------------------------------------------------------

    async def claim_orphans(self, claim: Claim) -> Sequence[StoredEntry]: ...

    async def claim_due(self, claim: Claim) -> Sequence[Due]: ...

    async def end_sessions(self, user: str) -> int: ...

    async def seal(self, checkpoint: Checkpoint) -> bool: ...

    async def expire(self, request: ExpiryRequest) -> Mapping[str, int]: ...
