"""A store in one SQLite file, for one machine and any number of its processes.

What another process can change is kept in memory only for as long as SQLite says that nobody has
changed the file since: see `known`. Every other answer is read from the file.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import getrandbits, uniform
from types import MappingProxyType
from typing import Any, Final, TypeVar

from counterseal.audit import Event, Head
from counterseal.audit.checkpoint import Checkpoint
from counterseal.errors import StoreError
from counterseal.ledger.entry import Entry
from counterseal.ledger.rules import held_between
from counterseal.storage.base import (
    IDLE_SECONDS,
    Admission,
    Admit,
    Asker,
    Ballot,
    Calls,
    Claim,
    Concern,
    Due,
    DueKind,
    Erasure,
    Finish,
    Held,
    HeldStatus,
    Kept,
    Memory,
    Recorded,
    RunRecord,
    Search,
    SessionRow,
    Settle,
    Tallied,
)
from counterseal.storage.sqlite import (
    admission,
    counting,
    holds,
    leases,
    record,
    runs,
    sessions,
    work,
)
from counterseal.storage.sqlite.database import Database
from counterseal.storage.sqlite.faults import LockedError
from counterseal.storage.sqlite.queries import queries
from counterseal.storage.sqlite.transaction import Transaction
from counterseal.storage.sqlite.watch import Watch
from counterseal.storage.sqlite.writer import Writer

__all__ = ["SqliteStore"]

_T = TypeVar("_T")
_KEEP: Final = queries()["keep"]
_KNOWN_KEY: Final = queries()["known_key"]
_NOTHING: Final = Memory(None, None, *(MappingProxyType[str, float]({}) for _ in range(3)))
_PATIENCE: Final = 5.0
"""How many seconds to wait for somebody else who writes."""
_JUST_NOW: Final = 1.0
"""That a run is in use is written down once in so many seconds, not with every call."""


class SqliteStore:
    """Speaks the `Store` protocol. The file is opened, and migrated, when this is made."""

    inline = True
    """Whether who is alone is served at once, without a trip through the event loop."""

    def __init__(
        self,
        path: Path,
        *,
        patience: float = _PATIENCE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._patience = patience
        self._clock = clock
        self._database = Database(path, patience=patience, clock=clock)
        self._known = self._database.known
        self._writer = Writer(self._database, patience=patience)
        self._watch = Watch(self._database)

    async def ready(self) -> None:
        """It is: see above."""

    # --- runs -------------------------------------------------------------------------------------

    async def open_run(self, run: RunRecord) -> RunRecord:
        return await self._writer.write(lambda db: runs.open_run(db, run), durable=False)

    async def find_run(self, tenant: str, run_id: str) -> RunRecord | None:
        known = self._known.runs.get((tenant, run_id))
        if known is not None and self._is_current():
            return known
        return await self._read(lambda db: runs.find_run(db, tenant, run_id))

    async def find_implicit_run(
        self, tenant: str, agent: str, user: str | None, now: float
    ) -> RunRecord | None:
        found = await self._implicit(tenant, agent, user, now)
        return None if found is None else found[0]

    async def implicit_run(
        self, tenant: str, agent: str, user: str | None, now: float
    ) -> RunRecord:
        found = await self._implicit(tenant, agent, user, now)
        if found is not None and 0 <= now - found[1] < _JUST_NOW:
            return found[0]
        return await self._writer.write(
            lambda db: runs.use_implicit(db, tenant, agent, user, now), durable=False
        )

    async def _implicit(
        self, tenant: str, agent: str, user: str | None, now: float
    ) -> tuple[RunRecord, float] | None:
        """The run that somebody is in who names none, and when they used it."""
        in_use = self._known.implicit.get((tenant, agent, user or ""))
        if in_use is not None and now - in_use[1] <= IDLE_SECONDS:
            known = self._known.runs.get((tenant, in_use[0]))
            if known is not None and self._is_current():
                return known, in_use[1]
        return await self._read(lambda db: runs.find_implicit(db, tenant, agent, user, now))

    def _is_current(self) -> bool:
        """Whether what is known is what the file says."""
        try:
            looked = self._writer.looked()
            return self._known.is_current() if looked is None else looked
        except sqlite3.Error:  # whoever reads the file is told what is wrong with it
            return False

    async def new_turn(self, tenant: str, run_id: str, keep: Collection[str]) -> RunRecord | None:
        return await self._writer.write(
            lambda db: runs.new_turn(db, tenant, run_id, keep), durable=False
        )

    # --- the way of a call ------------------------------------------------------------------------

    async def recall(
        self,
        tenant: str,
        run_id: str,
        key: str | None,
        who: Asker | None = None,
        *,
        spent: bool = True,
    ) -> Memory:
        if key is not None and not spent and self._is_new(tenant, key):
            return _NOTHING
        return await self._read(
            lambda db: admission.recall(db, tenant, run_id, key, who, spent=spent)
        )

    def _is_new(self, tenant: str, key: str) -> bool:
        """Whether nothing was ever done or asked under a key, as is so for nearly every one."""
        try:
            self._writer.looked()
            (known,) = self._database.ask(_KNOWN_KEY, (tenant, key, tenant, key))
        except (LockedError, sqlite3.Error):  # who reads it all waits for its turn, or is told
            return False
        return not known

    async def admit(self, request: Admit) -> Admission:
        # What only spends, and leaves nothing that anybody could miss, does not wait for the disk.
        durable = bool(request.entry or request.approval_id or request.events)
        return await self._writer.write(
            lambda db: admission.admit(db, request), durable=durable, vain=True
        )

    def note(self, event: Event) -> None:
        self._writer.ride(lambda db: db.record((event,)))

    async def settle(self, request: Settle) -> bool:
        settled = await self._writer.write(lambda db: admission.settle(db, request))
        if request.entry is not None:
            self._watch.wake(request.tenant, request.entry.key)
        return settled

    async def renew(self, entries: Sequence[Entry], lease: float) -> Sequence[bool]:
        return await self._writer.write(lambda db: leases.renew(db, entries, lease), durable=False)

    async def wait(self, tenant: str, key: str, seconds: float) -> bool:
        def leased_for() -> Awaitable[float]:
            return self._read(lambda db: leases.leased_for(db, tenant, key))

        return await self._watch.until_over(tenant, key, seconds, leased_for)

    # --- requests for approval --------------------------------------------------------------------

    async def hold(
        self, held: Held, events: Sequence[Event], due: Sequence[tuple[float, Due]] = ()
    ) -> Held:
        return await self._writer.write(lambda db: holds.hold(db, held, events, due))

    async def find_held(self, tenant: str, approval_id: str) -> Held | None:
        return await self._read(lambda db: holds.find_held(db, tenant, approval_id))

    async def list_held(
        self,
        tenant: str | None,
        status: HeldStatus,
        limit: int,
        *,
        after: float | None = None,
        newest_first: bool = False,
        beyond: tuple[float, str] | None = None,
    ) -> Sequence[Held]:
        between = held_between(after, beyond, newest_first=newest_first)
        return await self._read(
            lambda db: holds.list_held(
                db, tenant, status, limit, between, newest_first=newest_first
            )
        )

    async def vote(self, ballot: Ballot) -> Held | None:
        changed = await self._writer.write(lambda db: holds.vote(db, ballot))
        self._watch.wake(ballot.tenant, ballot.approval_id)
        return changed

    async def wait_held(self, tenant: str, approval_id: str, seconds: float) -> bool:
        def waits_for() -> Awaitable[float]:
            return self._read(lambda db: holds.waits_for(db, tenant, approval_id))

        return await self._watch.until_over(tenant, approval_id, seconds, waits_for)

    async def decide(
        self, tenant: str, approval_id: str, status: HeldStatus, events: Sequence[Event]
    ) -> Held | None:
        decided = await self._writer.write(
            lambda db: holds.decide(db, tenant, approval_id, status, events)
        )
        self._watch.wake(tenant, approval_id)
        return decided

    # --- refusals ---------------------------------------------------------------------------------

    async def refuse(
        self,
        tenant: str,
        run_id: str,
        tool: str,
        fingerprints: Sequence[str],
        events: Sequence[Event],
    ) -> Sequence[int]:
        return await self._writer.write(
            partial(
                runs.refuse,
                tenant=tenant,
                run_id=run_id,
                tool=tool,
                fingerprints=fingerprints,
                events=events,
            )
        )

    # --- what is to be done later -----------------------------------------------------------------

    async def claim_orphans(self, claim: Claim) -> Sequence[Kept]:
        if not await self._read(lambda db: leases.any_orphans(db, claim)):
            return []
        claimed = await self._writer.write(lambda db: leases.claim_orphans(db, claim))
        for entry, _ in claimed:
            self._watch.wake(entry.tenant, entry.key)
        return claimed

    async def claim_due(self, claim: Claim) -> Sequence[Due]:
        if not await self._read(lambda db: work.something_due(db, claim)):
            return []
        return await self._writer.write(lambda db: work.claim_due(db, claim))

    async def schedule(self, after: float, due: Due, events: Sequence[Event]) -> bool:
        return await self._writer.write(lambda db: work.schedule(db, after, due, events))

    async def finish(self, request: Finish) -> bool:
        return await self._writer.write(lambda db: work.finish(db, request))

    async def look_up(self, tenant: str, key: str) -> Kept | None:
        return await self._read(lambda db: leases.look_up(db, tenant, key))

    async def look_up_call(self, tenant: str, call_id: str) -> Kept | None:
        return await self._read(lambda db: leases.look_up_call(db, tenant, call_id))

    async def concerns(self, tenant: str | None = None, limit: int = 100) -> Sequence[Concern]:
        return await self._read(lambda db: leases.concerns(db, tenant, limit))

    async def find_due(self, tenant: str, kind: DueKind, key: str) -> Due | None:
        return await self._read(lambda db: work.find_due(db, tenant, kind, key))

    # --- the registry's stored changes ------------------------------------------------------------

    async def changes(self, after: int) -> Sequence[tuple[int, Mapping[str, Any]]]:
        return await self._read(lambda db: record.changes(db, after))

    async def change(self, number: int, what: Mapping[str, Any], events: Sequence[Event]) -> bool:
        return await self._writer.write(lambda db: record.change(db, number, what, events))

    # --- sessions ---------------------------------------------------------------------------------

    async def save_session(self, row: SessionRow) -> bool:
        return await self._writer.write(lambda db: sessions.save(db, row), durable=False)

    async def find_session(self, session: str) -> SessionRow | None:
        return await self._read(lambda db: sessions.find(db, session))

    async def end_session(self, session: str) -> bool:
        return await self._writer.write(lambda db: sessions.end(db, session))

    async def end_sessions(self, user: str) -> int:
        return await self._writer.write(lambda db: sessions.end_all(db, user))

    # --- the record -------------------------------------------------------------------------------

    async def keep(self, tenant: str, call_id: str, raw: bytes) -> str:
        # Nobody can follow the pointer before what it stands in is committed, and this with it.
        now = self._clock()
        pointer = f"vault:{call_id}/{int(now * 1000):011x}{getrandbits(52):013x}"
        self._writer.ride(lambda db: db.apart(_KEEP, (tenant, pointer, raw, now)))
        return pointer

    async def fetch(self, tenant: str, pointer: str) -> bytes | None:
        return await self._read_all(lambda db: record.fetch(db, tenant, pointer))

    async def events(
        self, tenant: str, *, call_id: str | None = None, run_id: str | None = None
    ) -> Sequence[tuple[str, Event]]:
        return await self.search(tenant, Search(call_id, run_id))

    async def search(self, tenant: str, search: Search) -> Sequence[tuple[str, Event]]:
        by_index = search.call_id is not None or search.run_id is not None
        narrow = search.tool is not None or search.types is not None
        # What is rare is looked for among all others.
        look = self._read_aside if narrow and not by_index else self._read_all
        return await look(lambda db: record.search(db, tenant, search))

    async def calls(self, tenant: str, search: Calls) -> Sequence[tuple[str, Event]]:
        return await self._read_aside(lambda db: counting.calls(db, tenant, search))

    async def tallies(
        self, tenant: str, since: float, until: float, parts: int = 1
    ) -> Sequence[Tallied]:
        return await self._read_aside(lambda db: counting.tallies(db, tenant, since, until, parts))

    async def tenants(self) -> Sequence[str]:
        return await self._read_all(record.tenants)

    async def recorded(self, tenant: str, after: tuple[int, str], limit: int) -> Sequence[Recorded]:
        return await self._read_all(lambda db: record.recorded(db, tenant, after, limit))

    async def heads(self, tenant: str, since: int) -> Mapping[str, Head]:
        return await self._read_all(lambda db: record.heads(db, tenant, since))

    async def checkpoints(self, tenant: str) -> Sequence[Checkpoint]:
        return await self._read(lambda db: record.checkpoints(db, tenant))

    async def seal(self, checkpoint: Checkpoint) -> bool:
        return await self._writer.write(lambda db: record.seal(db, checkpoint))

    async def expire(self, request: Erasure) -> Mapping[str, int]:
        with suppress(StoreError):  # as below
            await self._writer.flush()
        return await self._writer.write(lambda db: record.expire(db, request))

    async def close(self) -> None:
        try:
            await self._writer.close()
        finally:
            self._watch.wake_all()

    async def _read_all(self, look: Callable[[Transaction], _T]) -> _T:
        """One read of what was recorded, with all that still waits to be written."""
        with suppress(StoreError):  # what could not be written is not on record
            await self._writer.flush()
        return await self._read(look)

    async def _read_aside(self, look: Callable[[Transaction], _T]) -> _T:
        """The same for what may take long: on a thread, where no call has to wait for it."""
        with suppress(StoreError):
            await self._writer.flush()
        return await asyncio.to_thread(self._database.read_aside, look)

    async def _read(self, look: Callable[[Transaction], _T]) -> _T:
        """One read. It waits only while somebody opens the file, or repairs it after a crash."""
        until = None
        while True:
            try:
                return self._database.read(look)
            except LockedError:
                now = time.monotonic()
                until = now + self._patience if until is None else until
                if now > until:
                    raise
            await asyncio.sleep(uniform(0.001, 0.01))  # noqa: S311 - so that they spread out
