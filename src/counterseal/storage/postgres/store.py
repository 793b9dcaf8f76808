"""A store in one Postgres database, for any number of workers on any number of machines.

Nothing that another worker can change is kept in memory: every answer is read from the database.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from random import getrandbits
from typing import Any, Final, TypeVar

from counterseal.audit import Event, Head, columns_of
from counterseal.audit.checkpoint import Checkpoint
from counterseal.errors import StoreError
from counterseal.ledger.entry import Entry
from counterseal.ledger.rules import held_between, implicit
from counterseal.storage.base import (
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
from counterseal.storage.postgres import counting, reading, record
from counterseal.storage.postgres.address import Address
from counterseal.storage.postgres.admission import Admitting, Renewing, Settling, Watching
from counterseal.storage.postgres.batch import carry_out
from counterseal.storage.postgres.finding import Finding, FindingImplicit
from counterseal.storage.postgres.forgetting import Expiring
from counterseal.storage.postgres.holds import Deciding, Holding, Voting, WatchingHeld
from counterseal.storage.postgres.job import Keep, Note
from counterseal.storage.postgres.lanes import Lanes
from counterseal.storage.postgres.listener import Listener
from counterseal.storage.postgres.queries import queries
from counterseal.storage.postgres.runs import Opening, Refusing, Turning, UsingImplicit
from counterseal.storage.postgres.session import Schema, Session
from counterseal.storage.postgres.signing import EndingSessions, SavingSession, find_session
from counterseal.storage.postgres.waiter import Watch, wait_for
from counterseal.storage.postgres.work import (
    ClaimingDue,
    ClaimingOrphans,
    Finishing,
    Scheduling,
)

__all__ = ["PostgresStore"]

_T = TypeVar("_T")
_FETCH: Final = queries()["fetch"]
_JUST_NOW: Final = 1.0
"""That a run is in use is written down once in so many seconds, not with every call."""


class PostgresStore:
    """Speaks the `Store` protocol. Connects when it is first used."""

    def __init__(self, address: Address, *, writers: int = 3, readers: int = 2) -> None:
        self._where = address.where
        schema = Schema(address.where)
        self._listener = Listener(address)
        heard = self._listener.heard
        sessions = [Session(address, schema, heard) for _ in range(writers + readers)]
        self._writing = Lanes(sessions[:writers], carry_out, address.where)
        self._reading = Lanes(sessions[writers:], reading.answer, address.where)

    async def ready(self) -> None:
        await self._read(_nothing)

    async def _read(self, ask: Callable[[Any], Awaitable[_T]]) -> _T:
        answer: _T = await self._reading.do(reading.Reading(ask))
        return answer

    # --- runs -------------------------------------------------------------------------------------

    async def open_run(self, run: RunRecord) -> RunRecord:
        known = await self.find_run(run.tenant, run.run_id)
        if known is not None:
            return known
        if await self._writing.do(Opening(run)):
            return run
        return await self.find_run(run.tenant, run.run_id) or run

    async def find_run(self, tenant: str, run_id: str) -> RunRecord | None:
        found: RunRecord | None = await self._reading.do(Finding(tenant, run_id))
        return found

    async def find_implicit_run(
        self, tenant: str, agent: str, user: str | None, now: float
    ) -> RunRecord | None:
        found = await self._find_implicit(tenant, agent, user, now)
        return None if found is None else found[0]

    async def _find_implicit(
        self, tenant: str, agent: str, user: str | None, now: float
    ) -> tuple[RunRecord, float] | None:
        found: tuple[RunRecord, float] | None = await self._reading.do(
            FindingImplicit(tenant, agent, user, now)
        )
        return found

    async def implicit_run(
        self, tenant: str, agent: str, user: str | None, now: float
    ) -> RunRecord:
        found = await self._find_implicit(tenant, agent, user, now)
        if found is not None and 0 <= now - found[1] < _JUST_NOW:
            return found[0]
        run = implicit(tenant, agent, user, now)
        run_id = await self._writing.do(UsingImplicit(run, agent, user))
        if found is not None and found[0].run_id == run_id:
            return found[0]
        return await self.find_run(tenant, run_id) or run

    async def new_turn(self, tenant: str, run_id: str, keep: Collection[str]) -> RunRecord | None:
        if not await self._writing.do(Turning(tenant, run_id, keep)):
            return None
        return await self.find_run(tenant, run_id)

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
        asked = reading.Recalling(tenant, run_id, key, who, spent=spent)
        memory: Memory = await self._reading.do(asked)
        return memory

    async def admit(self, request: Admit) -> Admission:
        admission: Admission = await self._writing.do(Admitting(request))
        return admission

    def note(self, event: Event) -> None:
        self._writing.ride(Note(columns_of(event)))

    async def settle(self, request: Settle) -> bool:
        settled: bool = await self._writing.do(Settling(request))
        return settled

    async def renew(self, entries: Sequence[Entry], lease: float) -> Sequence[bool]:
        renewed: Sequence[bool] = await self._writing.do(Renewing(entries, lease))
        return renewed

    async def wait(self, tenant: str, key: str, seconds: float) -> bool:
        kept = await self.look_up(tenant, key)
        if kept is None or not kept.entry.held:
            return True
        return await self._wait(Watching, tenant, key, seconds)

    async def _wait(self, watch: Watch, tenant: str, key: str, seconds: float) -> bool:
        return await wait_for(self._listener, self._writing, watch, (tenant, key), seconds)

    # --- requests for approval --------------------------------------------------------------------

    async def hold(
        self, held: Held, events: Sequence[Event], due: Sequence[tuple[float, Due]] = ()
    ) -> Held:
        kept: Held = await self._writing.do(Holding(held, events, due))
        return kept

    async def find_held(self, tenant: str, approval_id: str) -> Held | None:
        return await self._read(lambda db: reading.find_held(db, tenant, approval_id))

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
            lambda db: reading.list_held(
                db, tenant, status, limit, between, newest_first=newest_first
            )
        )

    async def vote(self, ballot: Ballot) -> Held | None:
        changed: Held | None = await self._writing.do(Voting(ballot))
        return changed

    async def wait_held(self, tenant: str, approval_id: str, seconds: float) -> bool:
        if not await self._read(lambda db: reading.held_waits(db, tenant, approval_id)):
            return True
        return await self._wait(WatchingHeld, tenant, approval_id, seconds)

    async def decide(
        self, tenant: str, approval_id: str, status: HeldStatus, events: Sequence[Event]
    ) -> Held | None:
        decided: Held | None = await self._writing.do(Deciding(tenant, approval_id, status, events))
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
        counts: Sequence[int] = await self._writing.do(
            Refusing(tenant, run_id, tool, fingerprints, events)
        )
        return counts

    # --- what is to be done later -----------------------------------------------------------------

    async def claim_orphans(self, claim: Claim) -> Sequence[Kept]:
        claimed: Sequence[Kept] = await self._writing.do(ClaimingOrphans(claim))
        return claimed

    async def claim_due(self, claim: Claim) -> Sequence[Due]:
        claimed: Sequence[Due] = await self._writing.do(ClaimingDue(claim))
        return claimed

    async def schedule(self, after: float, work: Due, events: Sequence[Event]) -> bool:
        new: bool = await self._writing.do(Scheduling(after, work, events))
        return new

    async def finish(self, request: Finish) -> bool:
        finished: bool = await self._writing.do(Finishing(request))
        return finished

    async def look_up(self, tenant: str, key: str) -> Kept | None:
        return await self._read(lambda db: reading.look_up(db, tenant, key))

    async def look_up_call(self, tenant: str, call_id: str) -> Kept | None:
        return await self._read(lambda db: reading.look_up_call(db, tenant, call_id))

    async def concerns(self, tenant: str | None = None, limit: int = 100) -> Sequence[Concern]:
        return await self._read(lambda db: reading.concerns(db, tenant, limit))

    async def find_due(self, tenant: str, kind: DueKind, key: str) -> Due | None:
        return await self._read(lambda db: reading.find_due(db, tenant, kind, key))

    # --- the registry's stored changes ------------------------------------------------------------

    async def changes(self, after: int) -> Sequence[tuple[int, Mapping[str, Any]]]:
        return await self._read(lambda db: record.changes(db, after))

    async def change(self, number: int, what: Mapping[str, Any], events: Sequence[Event]) -> bool:
        changed: bool = await self._writing.do(record.Changing(number, what, events))
        return changed

    # --- sessions ---------------------------------------------------------------------------------

    async def save_session(self, row: SessionRow) -> bool:
        saved: bool = await self._writing.do(SavingSession(row))
        return saved

    async def find_session(self, session: str) -> SessionRow | None:
        return await self._read(lambda db: find_session(db, session))

    async def end_session(self, session: str) -> bool:
        ended: int = await self._writing.do(EndingSessions(session=session))
        return ended > 0

    async def end_sessions(self, user: str) -> int:
        ended: int = await self._writing.do(EndingSessions(user=user))
        return ended

    # --- the record -------------------------------------------------------------------------------

    async def keep(self, tenant: str, call_id: str, raw: bytes) -> str:
        # Nobody can follow the pointer before what it stands in is committed, and this with it.
        moment = f"{int(time.time() * 1000):011x}{getrandbits(52):013x}"
        pointer = f"vault:{call_id}/{moment}"
        self._writing.ride(Keep(tenant, pointer, raw))
        return pointer

    async def fetch(self, tenant: str, pointer: str) -> bytes | None:
        return await self._read_record(lambda db: db.fetchval(_FETCH, tenant, pointer))

    async def _read_record(self, ask: Callable[[Any], Awaitable[_T]]) -> _T:
        """A read of what is on record, with all that nobody has waited for."""
        with suppress(StoreError):  # what could not be written is not on record
            await self._writing.flush()
        return await self._read(ask)

    async def events(
        self, tenant: str, *, call_id: str | None = None, run_id: str | None = None
    ) -> Sequence[tuple[str, Event]]:
        return await self.search(tenant, Search(call_id, run_id))

    async def search(self, tenant: str, search: Search) -> Sequence[tuple[str, Event]]:
        return await self._read_record(lambda db: record.search(db, tenant, search))

    async def calls(self, tenant: str, search: Calls) -> Sequence[tuple[str, Event]]:
        return await self._read_record(lambda db: counting.calls(db, tenant, search))

    async def tallies(
        self, tenant: str, since: float, until: float, parts: int = 1
    ) -> Sequence[Tallied]:
        return await self._read_record(lambda db: counting.tallies(db, tenant, since, until, parts))

    async def tenants(self) -> Sequence[str]:
        return await self._read_record(record.tenants)

    async def recorded(self, tenant: str, after: tuple[int, str], limit: int) -> Sequence[Recorded]:
        return await self._read_record(lambda db: record.recorded(db, tenant, after, limit))

    async def heads(self, tenant: str, since: int) -> Mapping[str, Head]:
        return await self._read_record(lambda db: record.heads(db, tenant, since))

    async def checkpoints(self, tenant: str) -> Sequence[Checkpoint]:
        return await self._read(lambda db: record.checkpoints(db, tenant))

    async def seal(self, checkpoint: Checkpoint) -> bool:
        sealed: bool = await self._writing.do(record.Sealing(checkpoint))
        return sealed

    # --- forgetting -------------------------------------------------------------------------------

    async def expire(self, request: Erasure) -> Mapping[str, int]:
        with suppress(StoreError):
            await self._writing.flush()
        forgotten: Mapping[str, int] = await self._writing.do(Expiring(request))
        return forgotten

    async def close(self) -> None:
        await self._listener.close()
        try:
            await self._writing.close()
        finally:
            await self._reading.close()


async def _nothing(_connection: Any) -> None:
    """To be connected is enough."""
