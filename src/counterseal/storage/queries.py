"""Reads of a store that change nothing: by key, lists, searches, tallies.

Each back-end answers them with statements of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from counterseal.audit import Event, Head
from counterseal.audit.chain import Checkpoint
from counterseal.ledger.records import (
    Asker,
    Concern,
    Due,
    DueKind,
    Held,
    HeldStatus,
    RunRecord,
    SessionRow,
)
from counterseal.ledger.requests import (
    CallFilter,
    EventFilter,
    LogRow,
    Memory,
    StoredEntry,
    TallyCount,
)

Place = tuple[float, str]
"""Where a request for approval stands in a list: when it ends, and its id."""


class Queries(Protocol):
    """Each method is described at the method of the same name of `Store`."""

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

    async def look_up_call(self, tenant: str, call_id: str) -> StoredEntry | None: ...

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

    async def find_session(self, session: str) -> SessionRow | None: ...

    # --- the record: read after `Backend.flush` ---------------------------------------------------

    async def fetch(self, tenant: str, pointer: str) -> bytes | None: ...

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
