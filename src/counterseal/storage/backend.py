"""The protocols of a database behind the store: transactions and scans, and reads.

A back-end does not know what an admission is. It loads and locks the rows that transactions name,
lets each transaction decide on them, writes what they changed in one commit, chains the audit
events at that commit, and wakes waiting callers after it. It gathers what waits together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from counterseal.audit import Columns, Event, Head
from counterseal.audit.chain import Checkpoint
from counterseal.ledger.records import (
    Asker,
    Concern,
    Due,
    DueKind,
    Held,
    HeldStatus,
    RegisteredContract,
    RunRecord,
    SessionRow,
)
from counterseal.ledger.requests import (
    CallFilter,
    Claim,
    EventFilter,
    ExpiryRequest,
    LogRow,
    Memory,
    StoredEntry,
    TallyCount,
)
from counterseal.ledger.rows import RowKeys, Rows, TenantKey, VaultRow

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


Addition = tuple[Sequence[Columns], Sequence[VaultRow]]
"""Events, and values of the vault, that are added to the record."""


def appending(make: Callable[[], Addition]) -> Transaction[None]:
    """Return the transaction that only adds events and values of the vault."""

    def append(rows: Rows) -> None:
        events, kept = make()
        rows.events.extend(events)
        rows.vault.extend(kept)

    return Transaction(no_rows, append)


def no_rows(keys: RowKeys) -> None:
    """Name no rows: the transaction only appends."""


Place = tuple[float, str]
"""Where a request for approval stands in a list: when it ends, and its id."""


class Queries(Protocol):
    """Reads that change nothing. Each is described at the method of the same name of `Store`."""

    # --- calls and runs ---------------------------------------------------------------------------

    async def recall(
        self, tenant: str, run_id: str, key: str | None, who: Asker | None, *, spent: bool
    ) -> Memory: ...

    async def find_run(self, tenant: str, run_id: str) -> RunRecord | None: ...

    async def find_implicit_run(
        self, tenant: str, agent: str, user: str | None, now: float
    ) -> tuple[RunRecord, float] | None:
        """Return the run of a caller that names none, and when it was last used."""

    async def look_up(self, tenant: str, key: str) -> StoredEntry | None: ...

    async def look_up_call(
        self, tenant: str, call_id: str, limit: int
    ) -> Sequence[StoredEntry]: ...

    # --- people and operators ---------------------------------------------------------------------

    async def find_held(self, tenant: str, approval_id: str) -> Held | None: ...

    async def list_held(
        self,
        tenant: str | None,
        status: HeldStatus,
        limit: int,
        between: tuple[Place, Place],
        *,
        newest_first: bool,
    ) -> Sequence[Held]:
        """Return requests of a status between two places, both excluded."""

    async def find_due(self, tenant: str, kind: DueKind, key: str) -> Due | None: ...

    async def concerns(self, tenant: str | None, limit: int) -> Sequence[Concern]: ...

    async def changes(self, after: int) -> Sequence[tuple[int, Mapping[str, Any]]]: ...

    async def contracts(self, tools: Collection[str]) -> Sequence[RegisteredContract]:
        """Return the contracts of these tools, in the order of their registration."""

    async def find_session(self, session: str) -> SessionRow | None: ...

    # --- the record: read after `Backend.flush` ---------------------------------------------------

    async def fetch(self, tenant: str, pointer: str) -> bytes | None: ...

    async def fetch_all(self, tenant: str, pointers: Sequence[str]) -> Mapping[str, bytes]: ...

    async def search(self, tenant: str, search: EventFilter) -> Sequence[tuple[str, Event]]: ...

    async def calls(self, tenant: str, search: CallFilter) -> Sequence[tuple[str, Event]]: ...

    async def tallies(
        self, tenant: str, since: float, until: float, parts: int
    ) -> Sequence[TallyCount]: ...

    async def tenants(self) -> Sequence[str]: ...

    async def recorded(
        self, tenant: str, after: tuple[int, str], limit: int
    ) -> Sequence[LogRow]: ...

    async def heads(self, tenant: str, since: int) -> Mapping[str, Head]: ...

    async def checkpoints(self, tenant: str) -> Sequence[Checkpoint]: ...


class Backend(Protocol):
    """A database of the store. Every method raises StoreError when it cannot be used."""

    @property
    def queries(self) -> Queries:
        """Reads: lists, searches, tallies."""

    async def open(self) -> None:
        """Connect, and bring the schema up to date. Otherwise the first use does that."""

    async def close(self) -> None:
        """Write what is left, and refuse further use. StoreError when something was not written."""

    def transact(self, transaction: Transaction[T]) -> asyncio.Future[T]:
        """Run a transaction, together with others that wait, and commit. Returns its result."""

    def enqueue(self, make: Callable[[], Addition]) -> None:
        """Make an addition and write it with the next commit; no caller waits for it.

        It may be made again if the commit has to be tried again.
        """

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
