"""The store: everything that the runtime remembers, in the words of the domain.

A store remembers runs, ledger entries, requests for approval, counters, due work, sessions and
events. The decisions of a transaction are rules of `ledger`; a `Backend` loads, locks and writes
the rows. Every method that changes something is one transaction: all of it happens, or nothing. A
method raises StoreError when the database cannot be used; then nothing was
done, or it is not known whether it was.

Leases are measured by the store's own clock, which all its workers share. Every other time comes
in with the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from counterseal.audit import Event, Head, columns_of
from counterseal.audit.chain import Checkpoint
from counterseal.errors import StoreError
from counterseal.ledger import admission, changes, due_work, holds
from counterseal.ledger.entry import Entry
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
    Admission,
    AdmissionRequest,
    Ballot,
    CallFilter,
    Claim,
    EventFilter,
    ExpiryRequest,
    FinishRequest,
    LogRow,
    Memory,
    SettlementRequest,
    StoredEntry,
    TallyCount,
)
from counterseal.ledger.rows import RowKeys, Rows, VaultRow, event_columns
from counterseal.storage.backend import Addition, Backend, Transaction, appending, no_rows

T = TypeVar("T")
_MAX_SAME_ID: Final = 20
_USED_SECONDS: Final = 1.0
"""That an implicit run is in use is written at most once in so many seconds."""


class Store:
    """Speaks domain; written once, over any back-end."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._queries = backend.queries

    async def ready(self) -> None:
        """Connect, and bring the schema up to date. Otherwise the first use does that."""
        await self._backend.open()

    async def close(self) -> None:
        """Write what is left, and refuse further use. StoreError when something was not written."""
        await self._backend.close()

    def _transact(
        self,
        need: Callable[[RowKeys], object],
        decide: Callable[[Rows], T],
        *,
        durable: bool = True,
        abandonable: bool = False,
    ) -> asyncio.Future[T]:
        transaction = Transaction(need, decide, durable=durable, abandonable=abandonable)
        return self._backend.transact(transaction)

    # --- runs -------------------------------------------------------------------------------------

    async def open_run(self, run: RunRecord) -> RunRecord:
        """Return the stored run of this id; the given one where there was none."""
        where = (run.tenant, run.run_id)
        known = await self._queries.find_run(*where)
        if known is not None:
            return known
        is_new = await self._transact(
            lambda keys: keys.runs.add(where),
            lambda rows: changes.open_run(rows, run),
            durable=False,
        )
        if is_new:
            return run
        return await self._queries.find_run(*where) or run

    async def find_run(self, tenant: str, run_id: str) -> RunRecord | None:
        """Return the run, if it was opened."""
        return await self._queries.find_run(tenant, run_id)

    async def find_implicit_run(
        self, tenant: str, agent: str, user: str | None, now: float
    ) -> RunRecord | None:
        """Return the run of a caller that names none, if it has one that is not over."""
        found = await self._queries.find_implicit_run(tenant, agent, user, now)
        return None if found is None else found[0]

    async def implicit_run(
        self, tenant: str, agent: str, user: str | None, now: float
    ) -> RunRecord:
        """Return the run of a caller that names none, and note its use; open one if needed.

        It is over when it was not used for `IDLE_SECONDS`.
        """
        found = await self._queries.find_implicit_run(tenant, agent, user, now)
        if found is not None and 0 <= now - found[1] < _USED_SECONDS:
            return found[0]
        caller = (tenant, *holds.caller_key(agent, user))
        new = changes.implicit_run(tenant, agent, user, now)

        def need(keys: RowKeys) -> None:
            keys.implicit_runs.add(caller)
            keys.runs.add((tenant, new.run_id))

        run_id = await self._transact(
            need, lambda rows: changes.use_implicit_run(rows, caller, new), durable=False
        )
        if found is not None and found[0].run_id == run_id:
            return found[0]
        return await self._queries.find_run(tenant, run_id) or new

    async def new_turn(self, tenant: str, run_id: str, keep: Collection[str]) -> RunRecord | None:
        """Begin another turn: the state under all keys but `keep` is forgotten. None: no run."""
        where = (tenant, run_id)
        await self._transact(
            lambda keys: changes.need_new_turn(keys, where),
            lambda rows: changes.new_turn(rows, where, keep),
            durable=False,
        )
        return await self._queries.find_run(tenant, run_id)

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
        """Return everything stored that bears on a call, in one read.

        `held` is the last request for approval under the key: of the caller `who`, or of any
        caller for None. Counters are read only where `spent` says so.
        """
        return await self._queries.recall(tenant, run_id, key, who, spent=spent)

    def admit(self, request: AdmissionRequest) -> asyncio.Future[Admission]:
        """Check limits, spend, reserve and record: everything, or nothing.

        A caller that cancels the future may leave nothing behind; `asyncio.shield` prevents that.
        """
        events = event_columns(request.events)
        return self._transact(
            lambda keys: admission.need_admission(keys, request),
            lambda rows: admission.admit(rows, request, events),
            durable=admission.is_durable(request),
            abandonable=True,
        )

    def note(self, event: Event) -> None:
        """Record an event with the next commit; no caller waits for it."""
        added = ((columns_of(event),), ())
        self._backend.enqueue(lambda: added)

    def note_later(self, make: Callable[[], tuple[Event, VaultRow | None]]) -> None:
        """Record an event with the next commit, and a value of the vault; made only then.

        So the answer does not wait for it, and many are made together.
        """

        def addition() -> Addition:
            event, kept = make()
            return (columns_of(event),), () if kept is None else (kept,)

        self._backend.enqueue(addition)

    async def count(self, tenant: str, run_id: str, counts: Mapping[str, int]) -> dict[str, int]:
        """Add to counters of a run, whatever their limits. Returns the new totals."""
        return await self._transact(
            lambda keys: keys.counters.update((tenant, run_id, name) for name in counts),
            lambda rows: admission.count(rows, tenant, run_id, counts),
            durable=False,
        )

    def settle(self, request: SettlementRequest) -> asyncio.Future[bool]:
        """Write an outcome. False when another worker holds the entry by now, or has settled it.

        It is written even if its caller is cancelled meanwhile.
        """
        events = event_columns(request.events)
        return self._transact(
            lambda keys: admission.need_settlement(keys, request),
            lambda rows: admission.settle(rows, request, events),
        )

    async def renew(self, entries: Sequence[Entry], lease: float) -> Sequence[bool]:
        """Extend leases to so many seconds from now. False for each entry of another worker."""
        return await self._transact(
            lambda keys: admission.need_entries(keys, entries),
            lambda rows: admission.renew(rows, entries, lease),
            durable=False,
        )

    async def wait(self, tenant: str, key: str, seconds: float) -> bool:
        """Wait until no worker holds the entry under a key. Returns False on timeout.

        No worker holds an entry that is settled, unknown or escalated, or whose lease is over.
        """
        where = (tenant, key)
        watch = Transaction(
            lambda keys: keys.entries.add(where),
            lambda rows: admission.watch_entry(rows, where),
            durable=False,
            abandonable=True,
        )
        return await self._backend.wait(where, watch, seconds)

    # --- requests for approval --------------------------------------------------------------------

    async def hold(
        self, held: Held, events: Sequence[Event], due: Sequence[tuple[float, Due]] = ()
    ) -> Held:
        """Store a request for approval, its events, and the work that follows from it.

        Where the caller's last request under the key asks the same and still stands
        (`holds.stands`), that one is returned instead, and nothing else happens.
        """
        columns = event_columns(events)
        return await self._transact(
            lambda keys: holds.need_hold(keys, held, due),
            lambda rows: holds.hold(rows, held, due, columns),
        )

    async def find_held(self, tenant: str, approval_id: str) -> Held | None:
        """Return a request for approval, whatever its status."""
        return await self._queries.find_held(tenant, approval_id)

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
        """Return requests of a status, ordered by the time when they end, then by id.

        A tenant of None stands for all tenants. `after` leaves out requests that end by then.
        `beyond` is the end and the id of a request to go on behind, in the order of the list.
        """
        between = holds.held_between(after, beyond, newest_first=newest_first)
        return await self._queries.list_held(
            tenant, status, limit, between, newest_first=newest_first
        )

    async def vote(self, ballot: Ballot) -> Held | None:
        """Store a vote with its result, token, due work and events: everything, or nothing.

        Returns None when the request was decided, or others have voted since.
        """
        events = event_columns(ballot.events)
        return await self._transact(
            lambda keys: holds.need_vote(keys, ballot),
            lambda rows: holds.vote(rows, ballot, events),
        )

    async def wait_held(self, tenant: str, approval_id: str, seconds: float) -> bool:
        """Wait until a request is decided. Returns False on timeout."""
        where = (tenant, approval_id)
        watch = Transaction(
            lambda keys: keys.held.add(where),
            lambda rows: holds.watch_held(rows, where),
            durable=False,
            abandonable=True,
        )
        return await self._backend.wait(where, watch, seconds)

    async def decide(
        self, tenant: str, approval_id: str, status: HeldStatus, events: Sequence[Event]
    ) -> Held | None:
        """Decide a request without a vote. Returns None when it was decided before, or is unknown.

        A waiting request can take any decision; an approved one can only become void, and loses
        its token.
        """
        where, columns = (tenant, approval_id), event_columns(events)
        return await self._transact(
            lambda keys: keys.held.add(where),
            lambda rows: holds.decide_held(rows, where, status, columns),
        )

    # --- refusals ---------------------------------------------------------------------------------

    async def record_and_count(
        self,
        tenant: str,
        run_id: str,
        tool: str,
        fingerprints: Sequence[str],
        events: Sequence[Event],
    ) -> Sequence[int]:
        """Record events, and count a refusal under each fingerprint. Returns the counts.

        Counts are deleted when the tool succeeds in this run (`SettlementRequest.mended`), except
        those that begin with `run/`: these belong to the run. A fingerprint given twice counts
        twice.
        """
        where, columns = (tenant, run_id), event_columns(events)
        counted = changes.counted_refusals(tool, fingerprints)
        return await self._transact(
            lambda keys: changes.need_refusal(keys, where, counted),
            lambda rows: changes.refuse(rows, where, tool, counted, columns),
        )

    # --- due work ---------------------------------------------------------------------------------

    async def claim_orphans(self, claim: Claim) -> Sequence[StoredEntry]:
        """Take over PENDING entries that are not escalated and that no worker holds, oldest first.

        No two workers get the same entry: each comes with a new fence number, phase UNKNOWN and
        the claim's lease, and `looks` counts how often that happened.
        """
        return await self._backend.claim_orphans(claim)

    async def claim_due(self, claim: Claim) -> Sequence[Due]:
        """Take work that is due and that no other worker has taken."""
        return await self._backend.claim_due(claim)

    async def schedule(self, after: float, work: Due, events: Sequence[Event]) -> bool:
        """Add work that is due in so many seconds. False, and nothing changes, if it is there."""
        later, columns = [(after, work)], event_columns(events)
        return await self._transact(
            lambda keys: due_work.need_due(keys, later),
            lambda rows: due_work.schedule(rows, later, columns),
        )

    async def finish(self, request: FinishRequest) -> bool:
        """Write the outcome of due work. Returns False when another worker has taken it by now."""
        events = event_columns(request.events)
        return await self._transact(
            lambda keys: due_work.need_finish(keys, request),
            lambda rows: due_work.finish(rows, request, events),
        )

    async def look_up(self, tenant: str, key: str) -> StoredEntry | None:
        """Return an entry with what is needed to go on from it."""
        return await self._queries.look_up(tenant, key)

    async def look_up_call(self, tenant: str, call_id: str) -> Sequence[StoredEntry]:
        """Return the entry of a call with what is needed to go on from it, or nothing.

        Earlier versions took over the caller's id, so that several calls may have the same.
        """
        return await self._queries.look_up_call(tenant, call_id, _MAX_SAME_ID)

    async def concerns(self, tenant: str | None = None, limit: int = 100) -> Sequence[Concern]:
        """Return what needs attention, oldest first: escalated entries, and failed due work."""
        return await self._queries.concerns(tenant, limit)

    async def find_due(self, tenant: str, kind: DueKind, key: str) -> Due | None:
        """Return a piece of due work, also one that failed."""
        return await self._queries.find_due(tenant, kind, key)

    # --- stored changes to the registry -----------------------------------------------------------

    async def changes(self, after: int) -> Sequence[tuple[int, Mapping[str, Any]]]:
        """Return the changes after a number, oldest first. They are numbered from 1 on, no gaps."""
        return await self._queries.changes(after)

    async def change(self, number: int, what: Mapping[str, Any], events: Sequence[Event]) -> bool:
        """Store a change as the next one. Returns False when its number is not the next."""
        columns = event_columns(events)
        return await self._transact(
            changes.need_registry_change,
            lambda rows: changes.change_registry(rows, number, what, columns),
        )

    async def contracts(self, tools: Collection[str]) -> Sequence[RegisteredContract]:
        """Return the contracts that were registered under these names, oldest first."""
        return await self._queries.contracts(tools)

    async def register_contracts(
        self, new: Sequence[tuple[RegisteredContract, Sequence[Event]]]
    ) -> None:
        """Store contracts with their events, except those that are stored already."""
        rows = [(row, event_columns(events)) for row, events in new]
        await self._transact(
            lambda keys: keys.contracts.update(row[:3] for row, _ in rows),
            lambda loaded: changes.register_contracts(loaded, rows),
        )

    # --- sessions ---------------------------------------------------------------------------------

    async def save_session(self, row: SessionRow) -> bool:
        """Store a new session, or refresh a stored one. Returns False for a session that has ended.

        A row with `seen_at` after `created_at` only refreshes: a session that was ended in the
        meantime, by any worker, is not brought back.
        """
        return await self._transact(
            lambda keys: keys.sessions.add(row.session),
            lambda rows: changes.save_session(rows, row),
            durable=False,
        )

    async def find_session(self, session: str) -> SessionRow | None:
        """Return a stored session. The caller compares `expires_at` with its clock."""
        return await self._queries.find_session(session)

    async def end_session(self, session: str) -> bool:
        """Delete a session. Returns False when there was none."""
        return await self._transact(
            lambda keys: keys.sessions.add(session),
            lambda rows: changes.end_session(rows, session),
        )

    async def end_sessions(self, user: str) -> int:
        """Delete all sessions of a user. Returns their number."""
        return await self._backend.end_sessions(user)

    # --- the record -------------------------------------------------------------------------------

    def keep(self, row: VaultRow) -> None:
        """Put a value of a call into the vault with the next commit.

        No caller can follow its pointer before the event that holds it is committed, and the value
        with it.
        """
        added = ((), (row,))
        self._backend.enqueue(lambda: added)

    async def forget(self, tenant: str, pointers: Sequence[str], events: Sequence[Event]) -> None:
        """Delete values from the vault, and record that."""
        columns, places = event_columns(events), [(tenant, pointer) for pointer in pointers]

        def work(rows: Rows) -> None:
            rows.forgotten.extend(places)
            rows.events.extend(columns)

        await self._backend.transact(Transaction(no_rows, work))

    async def write(self, events: Sequence[Event]) -> None:
        """Record events, and return when they are durable."""
        columns = event_columns(events)
        await self._backend.transact(appending(lambda: (columns, ())))

    async def fetch(self, tenant: str, pointer: str) -> bytes | None:
        """Return what a pointer leads to; None when it is no longer kept, or never was."""
        await self._flush()
        return await self._queries.fetch(tenant, pointer)

    async def fetch_all(self, tenant: str, pointers: Sequence[str]) -> Mapping[str, bytes]:
        """Return what pointers lead to; those that lead nowhere are left out."""
        await self._flush()
        return await self._queries.fetch_all(tenant, pointers)

    async def events(
        self, tenant: str, *, call_id: str | None = None, run_id: str | None = None
    ) -> Sequence[tuple[str, Event]]:
        """Return events of a tenant with their ids, oldest first; erased ones are left out."""
        return await self.search(tenant, EventFilter(call_id=call_id, run_id=run_id))

    async def search(self, tenant: str, search: EventFilter) -> Sequence[tuple[str, Event]]:
        """Return events of a tenant that match, with their ids."""
        await self._flush()
        return await self._queries.search(tenant, search)

    async def calls(self, tenant: str, search: CallFilter) -> Sequence[tuple[str, Event]]:
        """Return calls, newest first: of each, the last event that ended it."""
        await self._flush()
        return await self._queries.calls(tenant, search)

    async def tallies(
        self, tenant: str, since: float, until: float, parts: int = 1
    ) -> Sequence[TallyCount]:
        """Count the events from one time until another, in so many equal parts."""
        await self._flush()
        return await self._queries.tallies(tenant, since, until, parts)

    async def tenants(self) -> Sequence[str]:
        """Return the names of all tenants with events or checkpoints, sorted."""
        await self._flush()
        return await self._queries.tenants()

    async def recorded(self, tenant: str, after: tuple[int, str], limit: int) -> Sequence[LogRow]:
        """Return a page of the log with its links, ordered by (number, segment), behind a place."""
        await self._flush()
        return await self._queries.recorded(tenant, after, limit)

    async def heads(self, tenant: str, since: int) -> Mapping[str, Head]:
        """Return the segments with links from a number on, and where each ends."""
        await self._flush()
        return await self._queries.heads(tenant, since)

    async def checkpoints(self, tenant: str) -> Sequence[Checkpoint]:
        """Return the checkpoints of a tenant, oldest first."""
        return await self._queries.checkpoints(tenant)

    async def seal(self, checkpoint: Checkpoint) -> bool:
        """Store a checkpoint. Returns False when its number is taken."""
        return await self._backend.seal(checkpoint)

    # --- expiry -----------------------------------------------------------------------------------

    async def expire(self, request: ExpiryRequest) -> Mapping[str, int]:
        """Forget one batch of what is over. Returns how much, by kind.

        The kinds are `keys`, `vault`, `requests`, `events`, `counters` and `sessions`; less than
        the limit of each means that all is done. A decided request stays without its call and its
        token, once it ended as long ago as the vault keeps things. A key whose answer expires
        stays, with its hash, as EXPIRED (one that is free stays free); PENDING never expires.
        Erased events leave their links, and an `audit.erased` event says how many and until when.
        """
        await self._flush()
        return await self._backend.expire(request)

    async def _flush(self) -> None:
        """Write what was enqueued, so that the record is read with it."""
        with suppress(StoreError):  # what could not be written is not on record
            await self._backend.flush()
