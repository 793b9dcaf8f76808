"""A store in this process's memory: for tests, and for trying things out. Forgets at the end.

Nothing here awaits except callers that wait, so on one event loop every transaction is atomic.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import inf
from secrets import token_hex
from typing import Any, Final, TypeVar

from pydantic_core import from_json

from counterseal.audit import (
    GENESIS,
    Columns,
    Event,
    EventType,
    Head,
    Link,
    columns_of,
    event_of,
    extend,
)
from counterseal.audit.chain import COLUMNS, Checkpoint, micros
from counterseal.audit.events import erasure_event
from counterseal.ledger.changes import ANY_KEY, IDLE_SECONDS
from counterseal.ledger.due_work import (
    claimed_due,
    claimed_entry,
    escalated_concern,
    failed_concern,
    sorted_concerns,
)
from counterseal.ledger.entry import EntryStatus, Phase
from counterseal.ledger.holds import caller_key
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
    searched_columns,
    searched_places,
    stored_entry,
)
from counterseal.ledger.rows import (
    LONGEST_LEASE,
    CallerKey,
    ContractKey,
    DueKey,
    DueRow,
    EntryRow,
    HeldKey,
    HeldRow,
    RowGroups,
    Rows,
    RowTable,
    RunProgress,
    StateValue,
    TenantKey,
    VaultRow,
    current_entry,
    expired_entry,
)
from counterseal.storage.backend import Addition, Place, Transaction
from counterseal.storage.store import Store
from counterseal.storage.waiting import Waiters, wait_until

T = TypeVar("T")
_DAY: Final = 86_400
_OF_A_DAY: Final = re.compile(r"/([0-9]+)$")
"""How the name of a counter ends that counts for a day."""
_TYPE, _CALL, _CODE, _TALLY, _COST = map(
    COLUMNS.index, ("type", "call_id", "code", "tally", "cost")
)
"""Places in the columns of an event."""

_log = logging.getLogger("counterseal")
_TOGETHER: Final = 64
"""Additions that are made together."""


class MemoryBackend:
    """Rows in dicts. It is its own `Queries`."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._waiters = Waiters()
        self.entries: dict[TenantKey, EntryRow] = {}
        self.runs: dict[TenantKey, RunProgress] = {}
        self._run_records: dict[TenantKey, RunRecord] = {}
        """Runs as they were read, until they change."""
        self.state = RowGroups[StateValue]()
        self.implicit_runs: dict[CallerKey, tuple[str, float]] = {}
        self.counters = RowGroups[int]()
        self.rates = RowGroups[float]()
        self.held: dict[TenantKey, HeldRow] = {}
        self.last_held: dict[HeldKey, str] = {}
        self.newest_held: dict[TenantKey, str] = {}
        """The id of the last request under a key, of any caller."""
        self.refusals = RowGroups[int]()
        self.due: dict[DueKey, DueRow] = {}
        self.sessions: dict[str, SessionRow] = {}
        self.registered: dict[ContractKey, RegisteredContract] = {}
        self.vault: dict[TenantKey, tuple[float, bytes, float]] = {}
        """By tenant and pointer: when it was kept, the bytes, when it is deleted at the latest."""
        self._changes: list[Mapping[str, Any]] = []
        self._checkpoints: defaultdict[str, dict[int, Checkpoint]] = defaultdict(dict)
        self._segment = token_hex(6)
        self._waiting: list[tuple[float, Callable[[], Addition]]] = []
        """Additions that no caller waits for, with their times."""
        self._unchained: list[tuple[float, Columns]] = []
        """New events with their times; no caller of a tool waits for hashes."""
        self._log: defaultdict[str, list[LogRow]] = defaultdict(list)
        self._erased: dict[str, int] = {}
        """How many events of a tenant need not be looked at again by `_erase`."""
        self._rows = Rows(
            entries=RowTable(self.entries),
            runs=RowTable(self.runs),
            state=RowTable(self.state),
            implicit_runs=RowTable(self.implicit_runs),
            counters=RowTable(self.counters),
            rates=RowTable(self.rates),
            held=RowTable(self.held),
            last_held=self.last_held,
            refusals=RowTable(self.refusals),
            due=RowTable(self.due),
            sessions=RowTable(self.sessions),
            contracts=RowTable(self.registered),
        )
        """All rows, with the changes of the transaction under way."""
        rows = self._rows
        self._tables: tuple[RowTable[Any, Any], ...] = (
            *(rows.counters, rows.rates, rows.state, rows.refusals),
            *(rows.implicit_runs, rows.due, rows.sessions, rows.contracts),
        )
        """Those that are written as they are."""
        self._pending: tuple[dict[Any, Any] | list[Any], ...] = (
            *(rows.entries.changes, rows.runs.changes, rows.held.changes),
            *(table.changes for table in self._tables),
            *(rows.registry_changes, rows.events, rows.vault, rows.forgotten, rows.woken),
        )

    @property
    def queries(self) -> MemoryBackend:
        return self

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to give back."""

    async def flush(self) -> None:
        self._append_waiting()

    # --- transactions -----------------------------------------------------------------------------

    def transact(self, transaction: Transaction[T]) -> asyncio.Future[T]:
        future = asyncio.get_running_loop().create_future()
        future.set_result(self._transact(transaction))
        return future

    def enqueue(self, make: Callable[[], Addition]) -> None:
        self._waiting.append((self._clock(), make))
        if len(self._waiting) >= _TOGETHER:
            self._append_waiting()

    def _append_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for now, make in waiting:
            try:
                added = make()
            except Exception:  # noqa: BLE001 - no caller waits for it, and the others are kept
                _log.exception("a record could not be kept")
            else:
                self._append(now, *added)

    async def wait(
        self, where: TenantKey, watch: Transaction[float | None], seconds: float
    ) -> bool:
        return await wait_until(self._waiters, where, lambda: self.transact(watch), seconds)

    def _transact(self, transaction: Transaction[T]) -> T:
        rows = self._rows
        rows.now, rows.epoch = self._clock(), len(self._changes)
        try:
            result = transaction.decide(rows)
            if rows.events:
                self._append_waiting()  # they came before
            self._write(rows)
            if self._waiters:
                for where in rows.woken:
                    self._waiters.wake(where)
        finally:
            for changes in self._pending:
                changes.clear()
        return result

    def _write(self, rows: Rows) -> None:
        self._write_calls(rows)
        for table in self._tables:
            if table.changes:
                _apply(table)
        for _, what in rows.registry_changes:
            self._changes.append(what)
        for where in rows.forgotten:
            self.vault.pop(where, None)
        self._append(rows.now, rows.events, rows.vault)

    def _write_calls(self, rows: Rows) -> None:
        """Write entries, runs and requests, each with what is derived from it."""
        for where, row in rows.entries.changes.items():
            if row is not None:
                before = self.entries.get(where)
                resume = row.resume if row.reserved or before is None else before.resume
                # A released entry is always announced: here that costs nothing.
                self.entries[where] = row._replace(reserved=False, resume=resume, awaited=True)
        for where, run in rows.runs.changes.items():
            if run is not None:
                self.runs[where] = run._replace(opened=run.opened or self.runs[where].opened)
                self._run_records.pop(where, None)
        for where, request in rows.held.changes.items():
            if request is not None:
                if where not in self.held:
                    self.newest_held[where[0], request.held.key] = request.held.approval_id
                self.held[where] = request._replace(awaited=True)
        for tenant, run_id, _ in rows.state.changes:
            self._run_records.pop((tenant, run_id), None)

    def _append(self, now: float, events: Sequence[Columns], kept: Sequence[VaultRow]) -> None:
        for tenant, pointer, raw, keep_for in kept:
            self.vault[tenant, pointer] = (now, raw, inf if keep_for is None else now + keep_for)
        for columns in events:
            self._unchained.append((now, columns))

    # --- scans ------------------------------------------------------------------------------------

    async def claim_orphans(self, claim: Claim) -> Sequence[StoredEntry]:
        now = self._clock()
        orphans = []
        for where, row in self.entries.items():
            entry, until = row.entry, row.lease_until
            if entry.status is not EntryStatus.PENDING or entry.phase is Phase.ESCALATED:
                continue
            if until is None or now - claim.lapsed_for < until <= now + LONGEST_LEASE:
                continue
            if claim.tools is None or entry.tool in claim.tools:
                orphans.append((until, where))
        claimed = []
        for until, where in sorted(orphans)[: claim.limit]:
            row = self.entries[where]
            entry = claimed_entry(row.entry, until, claim.worker, now)
            self.entries[where] = row._replace(entry=entry, lease_until=now + claim.lease)
            self._waiters.wake(where)
            claimed.append(StoredEntry(entry, row.resume))
        return claimed

    async def claim_due(self, claim: Claim) -> Sequence[Due]:
        now = self._clock()
        waiting = []
        for key, (work, due_at) in self.due.items():
            if due_at is None or due_at > now - claim.lapsed_for:
                continue
            if claim.tools is None or work.tool in claim.tools:
                waiting.append((due_at, key))
        keys = [key for _, key in sorted(waiting)[: claim.limit]]
        for key in keys:
            self.due[key] = DueRow(claimed_due(self.due[key].due), now + claim.lease)
        return [self.due[key].due for key in keys]

    async def end_sessions(self, user: str) -> int:
        ended = [row.session for row in self.sessions.values() if row.user == user]
        for session in ended:
            del self.sessions[session]
        return len(ended)

    async def seal(self, checkpoint: Checkpoint) -> bool:
        sealed = self._checkpoints[checkpoint.tenant]
        return sealed.setdefault(checkpoint.number, checkpoint) is checkpoint

    async def expire(self, request: ExpiryRequest) -> Mapping[str, int]:
        now, limit = self._clock(), request.limit
        requests = events = 0
        oldest = -inf if request.vault_after is None else now - request.vault_after
        vault = self._expire_vault(oldest, now, limit)
        if request.vault_after is not None:
            requests = self._expire_held(now - request.vault_after, limit)
        if request.events_after is not None:
            events = self._erase(micros(now - request.events_after), limit)
        return {
            "keys": self._expire_keys(now, limit),
            "vault": vault,
            "requests": requests,
            "events": events,
            "counters": self._expire_counters(int(now // _DAY) - 2, limit),
            "sessions": self._expire_sessions(now, limit),
        }

    def _expire_keys(self, now: float, limit: int) -> int:
        kinds = (DueKind.VERIFY, DueKind.COMPENSATE)
        needed = {(tenant, key) for tenant, kind, key in self.due if kind in kinds}
        over = sorted(
            (row.expires_at, where)
            for where, row in self.entries.items()
            if row.expires_at is not None and row.expires_at <= now and where not in needed
        )
        for _, where in over[:limit]:
            self.entries[where] = self.entries[where]._replace(
                entry=expired_entry(self.entries[where].entry), expires_at=None, resume=None
            )
        return len(over[:limit])

    def _expire_vault(self, oldest: float, now: float, limit: int) -> int:
        over = (
            where
            for where, (kept_at, _, end) in self.vault.items()
            if kept_at <= oldest or end <= now
        )
        gone = list(islice(over, limit))
        for where in gone:
            del self.vault[where]
        return len(gone)

    def _expire_held(self, before: float, limit: int) -> int:
        over = sorted(
            (row.held.expires_at, where)
            for where, row in self.held.items()
            if row.held.status is not HeldStatus.WAITING
            and row.held.expires_at <= before
            and (row.held.sealed or row.held.token is not None)
        )
        for _, where in over[:limit]:
            self.change_held(where, sealed=b"", token=None)
        return len(over[:limit])

    def change_held(self, where: TenantKey, **changes: Any) -> None:
        """Change fields of a stored request."""
        row = self.held[where]
        self.held[where] = row._replace(held=replace(row.held, **changes))

    def _expire_counters(self, before: int, limit: int) -> int:
        old = sorted(
            (int(day[1]), tenant, name)
            for (tenant, run_id), counters in self.counters.groups.items()
            for name in counters
            if not run_id and (day := _OF_A_DAY.search(name)) is not None and int(day[1]) < before
        )
        for _, tenant, name in old[:limit]:
            del self.counters[tenant, "", name]
        return len(old[:limit])

    def _expire_sessions(self, now: float, limit: int) -> int:
        sessions = self.sessions.values()
        over = sorted((row.expires_at, row.session) for row in sessions if row.expires_at <= now)
        for _, session in over[:limit]:
            del self.sessions[session]
        return len(over[:limit])

    def _erase(self, until: int, limit: int) -> int:
        """Erase the text of events before a number, tenant by tenant. Returns how many.

        Events that record an erasure are never erased.
        """
        left = limit
        for tenant, rows in sorted(self._chained().items()):
            place, last, count = self._erased.get(tenant, 0), 0, 0
            while place < len(rows) and rows[place].link.number < until and count < left:
                link, columns = rows[place]
                if columns is not None and columns[_TYPE] != EventType.ERASED:
                    rows[place] = LogRow(link._replace(salt=None), None)
                    last, count = link.number, count + 1
                place += 1
            self._erased[tenant] = place
            left -= count
            if count:
                now = self._clock()
                event = columns_of(erasure_event(tenant, now, count, last))
                self._unchained.append((now, event))
        return limit - left

    # --- queries: calls and runs ------------------------------------------------------------------

    async def recall(
        self, tenant: str, run_id: str, key: str | None, who: Asker | None, *, spent: bool
    ) -> Memory:
        entry = held = None
        if key is not None:
            row = self.entries.get((tenant, key))
            entry = None if row is None else current_entry(row, self._clock())
            held = self._last_held(tenant, key, who)
        if not spent:
            return Memory(entry, held, {}, {}, {})
        return Memory(
            entry,
            held,
            run_counters=dict(self.counters.groups[tenant, run_id]),
            tenant_counters=dict(self.counters.groups[tenant, ""]),
            rates=dict(self.rates.groups[(tenant,)]),
        )

    def _last_held(self, tenant: str, key: str, who: Asker | None) -> Held | None:
        if who is None:
            approval_id = self.newest_held.get((tenant, key))
        else:
            approval_id = self.last_held.get((tenant, key, *caller_key(*who)))
        row = None if approval_id is None else self.held.get((tenant, approval_id))
        return None if row is None else row.held

    async def find_run(self, tenant: str, run_id: str) -> RunRecord | None:
        return self._find_run((tenant, run_id))

    def _find_run(self, where: TenantKey) -> RunRecord | None:
        known, row = self._run_records.get(where), self.runs.get(where)
        if known is not None or row is None or row.opened is None:
            return known
        state = self.state.groups[where]
        versions = {key: one.version for key, one in state.items() if one.version}
        if row.changes:
            versions[ANY_KEY] = row.changes
        values = {key: one.value for key, one in state.items() if one.value is not None}
        record = self._run_records[where] = replace(
            row.opened,
            turn=row.turn,
            pins=row.pins,
            seen=row.seen,
            refused=row.refused,
            state={key: from_json(value) for key, value in values.items()},
            state_versions=versions,
            untrusted=frozenset(key for key, one in state.items() if one.untrusted),
        )
        return record

    async def find_implicit_run(
        self, tenant: str, agent: str, user: str | None, now: float
    ) -> tuple[RunRecord, float] | None:
        run_id, used_at = self.implicit_runs.get((tenant, *caller_key(agent, user)), ("", now))
        run = None if now - used_at > IDLE_SECONDS else self._find_run((tenant, run_id))
        return None if run is None else (run, used_at)

    async def look_up(self, tenant: str, key: str) -> StoredEntry | None:
        row = self.entries.get((tenant, key))
        return None if row is None else stored_entry(row, row.resume, self._clock())

    async def look_up_call(self, tenant: str, call_id: str, limit: int) -> Sequence[StoredEntry]:
        found = (
            stored_entry(row, row.resume, self._clock())
            for where, row in sorted(self.entries.items())
            if where[0] == tenant and row.entry.call_id == call_id
        )
        return list(islice(found, limit))

    # --- queries: people and operators ------------------------------------------------------------

    async def find_held(self, tenant: str, approval_id: str) -> Held | None:
        row = self.held.get((tenant, approval_id))
        return None if row is None else row.held

    async def list_held(
        self,
        tenant: str | None,
        status: HeldStatus,
        limit: int,
        between: tuple[Place, Place],
        *,
        newest_first: bool,
    ) -> Sequence[Held]:
        first, last = between
        listed = [
            held
            for held, _, _ in self.held.values()
            if held.status is status
            and tenant in (None, held.tenant)
            and first < (held.expires_at, held.approval_id) < last
        ]
        listed.sort(key=lambda held: (held.expires_at, held.approval_id), reverse=newest_first)
        return listed[:limit]

    async def find_due(self, tenant: str, kind: DueKind, key: str) -> Due | None:
        row = self.due.get((tenant, str(kind), key))
        return None if row is None else row.due

    async def concerns(self, tenant: str | None, limit: int) -> Sequence[Concern]:
        escalated = [
            escalated_concern(row.entry)
            for row in self.entries.values()
            if row.entry.status is EntryStatus.PENDING
            and row.entry.phase is Phase.ESCALATED
            and tenant in (None, row.entry.tenant)
        ]
        failed = [
            failed_concern(row.due)
            for row in self.due.values()
            if row.due.failed is not None and tenant in (None, row.due.tenant)
        ]
        return sorted_concerns(escalated + failed, limit)

    async def changes(self, after: int) -> Sequence[tuple[int, Mapping[str, Any]]]:
        return [change for change in enumerate(self._changes, 1) if change[0] > after]

    async def contracts(self, tools: Collection[str]) -> Sequence[RegisteredContract]:
        return [row for row in self.registered.values() if row.tool in tools]

    async def find_session(self, session: str) -> SessionRow | None:
        return self.sessions.get(session)

    # --- queries: the record ----------------------------------------------------------------------

    def _chained(self) -> Mapping[str, list[LogRow]]:
        """Return every tenant's log, after chaining the new events: one segment for each tenant."""
        unchained, self._unchained = self._unchained, []
        for moment, columns in unchained:
            tenant = columns[1]
            rows = self._log[tenant]
            head = rows[-1].link.head if rows else GENESIS
            link = extend(tenant, self._segment, head, columns, micros(moment), os.urandom(16))
            rows.append(LogRow(link, columns))
        return self._log

    def _log_of(self, tenant: str) -> Sequence[LogRow]:
        return self._chained().get(tenant, ())

    async def fetch(self, tenant: str, pointer: str) -> bytes | None:
        kept = self.vault.get((tenant, pointer))
        return None if kept is None else kept[1]

    async def fetch_all(self, tenant: str, pointers: Sequence[str]) -> Mapping[str, bytes]:
        kept = {pointer: self.vault.get((tenant, pointer)) for pointer in pointers}
        return {pointer: value[1] for pointer, value in kept.items() if value is not None}

    async def search(self, tenant: str, search: EventFilter) -> Sequence[tuple[str, Event]]:
        log = self._log_of(tenant)
        begin, end = searched_places(search, newest_first=search.newest_first)
        wanted = searched_columns(search)
        matching = (
            (link.event_id, event_of(columns))
            for link, columns in (reversed(log) if search.newest_first else log)
            if columns is not None
            and _matches(columns, wanted)
            and (search.types is None or columns[_TYPE] in search.types)
            and begin < link[:2] < end
        )
        return list(islice(matching, search.limit))

    async def calls(self, tenant: str, search: CallFilter) -> Sequence[tuple[str, Event]]:
        wanted = searched_columns(search)
        begin, end = searched_places(search, newest_first=True)
        last: dict[str, tuple[Link, Columns]] = {}
        for link, columns in reversed(self._log_of(tenant)):
            if columns is not None and columns[_CODE] is not None:
                last.setdefault(columns[_CALL], (link, columns))
        calls = [
            (link.event_id, event_of(columns))
            for link, columns in last.values()
            if _matches(columns, wanted) and begin < link[:2] < end
        ]
        return calls[: search.limit]

    async def tallies(
        self, tenant: str, since: float, until: float, parts: int
    ) -> Sequence[TallyCount]:
        begin, end = micros(since), micros(until)
        edges = [begin + (end - begin) * part // parts for part in range(1, parts)]
        counts: Counter[tuple[int, str]] = Counter()
        costs: defaultdict[tuple[int, str], float] = defaultdict(float)
        for link, columns in self._log_of(tenant):
            if columns is not None and columns[_TALLY] is not None and begin <= link.number < end:
                where = bisect_right(edges, link.number), columns[_TALLY]
                counts[where] += 1
                costs[where] += columns[_COST] or 0.0
        return [TallyCount(*where, count, costs[where]) for where, count in counts.items()]

    async def tenants(self) -> Sequence[str]:
        sealed = [tenant for tenant, checkpoints in self._checkpoints.items() if checkpoints]
        return sorted({*self._chained(), *sealed})

    async def recorded(self, tenant: str, after: tuple[int, str], limit: int) -> Sequence[LogRow]:
        return list(islice((row for row in self._log_of(tenant) if row.link[:2] > after), limit))

    async def heads(self, tenant: str, since: int) -> Mapping[str, Head]:
        links = [link for link, _ in self._log_of(tenant)]
        return {link.segment: link.head for link in links if link.number >= since}

    async def checkpoints(self, tenant: str) -> Sequence[Checkpoint]:
        return [checkpoint for _, checkpoint in sorted(self._checkpoints[tenant].items())]


class MemoryStore(Store):
    """A store that forgets at the end. `clock` is what leases are measured by."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        super().__init__(MemoryBackend(clock))


# --- tables ---------------------------------------------------------------------------------------


def _apply(table: RowTable[Any, Any]) -> None:
    """Write the changed rows of a table; None deletes."""
    for key, row in table.changes.items():
        if row is None:
            table.loaded.pop(key, None)
        else:
            table.loaded[key] = row


# --- events ---------------------------------------------------------------------------------------


def _matches(columns: Columns, wanted: Mapping[str, str]) -> bool:
    """Return True when every column has its wanted value."""
    return all(columns[COLUMNS.index(name)] == value for name, value in wanted.items())
