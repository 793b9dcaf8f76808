"""A store in this process's memory: for tests, and for trying things out. Forgets at the end.

Nothing here awaits except callers that wait, so on one event loop every transaction is atomic.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import inf
from types import MappingProxyType
from typing import Any, Final, TypeVar

from pydantic_core import from_json

from counterseal.audit import Event, Head
from counterseal.audit.chain import Checkpoint, micros
from counterseal.ledger.due_work import (
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
from counterseal.ledger.rows import (
    CallerKey,
    DueKey,
    DueRow,
    EntryRow,
    HeldRow,
    RefusalKey,
    RowKeys,
    Rows,
    RunProgress,
    StateValue,
    TenantKey,
    current_entry,
)
from counterseal.ledger.run_changes import ANY_KEY, IDLE_SECONDS
from counterseal.storage.backend import Transaction
from counterseal.storage.memory.log import Log
from counterseal.storage.queries import Place
from counterseal.storage.store import Store
from counterseal.storage.waiting import Waiters, wait_until

__all__ = ["MemoryBackend", "MemoryStore"]

K = TypeVar("K")
T = TypeVar("T")
_DAY: Final = 86_400
_OF_A_DAY: Final = re.compile(r"/([0-9]+)$")
"""How the name of a counter ends that counts for a day."""
_NO_NUMBERS: Final[Mapping[str, float]] = MappingProxyType({})


class MemoryBackend:
    """Rows in dicts. It is its own `Queries`."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._waiters = Waiters()
        self.entries: dict[TenantKey, EntryRow] = {}
        self.runs: dict[TenantKey, RunProgress] = {}
        self.state: defaultdict[TenantKey, dict[str, StateValue]] = defaultdict(dict)
        self.implicit_runs: dict[CallerKey, tuple[str, float]] = {}
        self.counters: defaultdict[TenantKey, dict[str, float]] = defaultdict(dict)
        self.rates: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self.held: dict[TenantKey, HeldRow] = {}
        self.last_held: defaultdict[TenantKey, dict[tuple[str, str], str]] = defaultdict(dict)
        """Ids of each caller's last request under each key, in the order in which they came."""
        self.refusals: defaultdict[tuple[str, str, str], dict[str, int]] = defaultdict(dict)
        self.due: dict[DueKey, DueRow] = {}
        self.sessions: dict[str, SessionRow] = {}
        self.vault: dict[TenantKey, tuple[float, bytes, float]] = {}
        """By tenant and pointer: when it was kept, the bytes, when it is deleted at the latest."""
        self._changes: list[Mapping[str, Any]] = []
        self._checkpoints: defaultdict[str, dict[int, Checkpoint]] = defaultdict(dict)
        self._log = Log(clock)

    @property
    def queries(self) -> MemoryBackend:
        return self

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to give back."""

    async def flush(self) -> None:
        """Nothing is ever left to write."""

    # --- transactions -----------------------------------------------------------------------------

    async def transact(self, transaction: Transaction[T]) -> T:
        return self._transact(transaction)

    def enqueue(self, transaction: Transaction[Any]) -> None:
        self._transact(transaction)

    async def wait(
        self, where: TenantKey, watch: Transaction[float | None], seconds: float
    ) -> bool:
        return await wait_until(self._waiters, where, lambda: self.transact(watch), seconds)

    def _transact(self, transaction: Transaction[T]) -> T:
        keys = RowKeys()
        transaction.need(keys)
        rows = self._load(keys)
        result = transaction.decide(rows)
        if rows.changed:
            self._write(rows)
            if self._waiters:
                for where in rows.woken:
                    self._waiters.wake(where)
        return result

    def _load(self, keys: RowKeys) -> Rows:
        rows = Rows()
        rows.now = self._clock()
        rows.epoch = len(self._changes)
        if keys.implicit_runs:
            _pick(self.implicit_runs, keys.implicit_runs, rows.implicit_runs.loaded)
            for caller, (run_id, _) in rows.implicit_runs.loaded.items():
                keys.runs.add((caller[0], run_id))
        if keys.last_held:
            self._load_last_held(keys, rows)
        _pick(self.entries, keys.entries, rows.entries.loaded)
        _pick(self.runs, keys.runs, rows.runs.loaded)
        _pick(self.held, keys.held, rows.held.loaded)
        _pick(self.due, keys.due, rows.due.loaded)
        _pick(self.sessions, keys.sessions, rows.sessions.loaded)
        for tenant, run_id, name in keys.counters:
            spent = self.counters[tenant, run_id].get(name)
            if spent is not None:
                rows.counters.loaded[tenant, run_id, name] = spent
        for tenant, name in keys.rates:
            arrival = self.rates[tenant].get(name)
            if arrival is not None:
                rows.rates.loaded[tenant, name] = arrival
        if keys.state or keys.refusals:
            self._load_run_details(keys, rows)
        return rows

    def _load_last_held(self, keys: RowKeys, rows: Rows) -> None:
        for tenant, key, agent, user in keys.last_held:
            approval_id = self.last_held[tenant, key].get((agent, user))
            if approval_id is not None:
                rows.last_held[tenant, key, agent, user] = approval_id
                keys.held.add((tenant, approval_id))

    def _load_run_details(self, keys: RowKeys, rows: Rows) -> None:
        for tenant, run_id, wanted in keys.state:
            for key, state in self.state[tenant, run_id].items():
                if wanted is None or wanted == key:
                    rows.state.loaded[tenant, run_id, key] = state
        for tenant, run_id, tool in keys.refusals:
            for fingerprint, times in self.refusals[tenant, run_id, tool].items():
                rows.refusals.loaded[tenant, run_id, tool, fingerprint] = times

    def _write(self, rows: Rows) -> None:
        for where, row in rows.entries.changes.items():
            if row is not None:
                before = self.entries.get(where)
                resume = row.resume if row.reserved or before is None else before.resume
                # A released entry is always announced: here that costs nothing.
                self.entries[where] = row._replace(reserved=False, resume=resume, awaited=True)
        for where, run in rows.runs.changes.items():
            if run is not None:
                self.runs[where] = run._replace(opened=run.opened or self.runs[where].opened)
        for counter, spent in rows.counters.changes.items():
            if spent is not None:
                self.counters[counter[:2]][counter[2]] = spent
        for rate, arrival in rows.rates.changes.items():
            if arrival is not None:
                self.rates[rate[0]][rate[1]] = arrival
        if rows.events:
            self._log.record(rows.events, rows.now)
        self._write_more(rows)

    def _write_more(self, rows: Rows) -> None:
        """Write the tables that few transactions change."""
        for (tenant, run_id, key), state in rows.state.changes.items():
            if state is not None:
                self.state[tenant, run_id][key] = state
        for caller, used in rows.implicit_runs.changes.items():
            if used is not None:
                self.implicit_runs[caller] = used
        for where, row in rows.held.changes.items():
            if row is not None:
                self._write_held(where, row)
        for refusal, times in rows.refusals.changes.items():
            self._write_refusal(refusal, times)
        _apply(self.due, rows.due.changes)
        _apply(self.sessions, rows.sessions.changes)
        self._changes.extend(what for _, what in rows.registry_changes)
        for tenant, pointer, raw, keep_for in rows.vault:
            end = inf if keep_for is None else rows.now + keep_for
            self.vault[tenant, pointer] = (rows.now, raw, end)
        for where in rows.forgotten:
            self.vault.pop(where, None)

    def _write_held(self, where: TenantKey, row: HeldRow) -> None:
        if where not in self.held:
            held = row.held
            ids = self.last_held[held.tenant, held.key]
            caller = caller_key(held.agent, held.user)
            ids.pop(caller, None)
            ids[caller] = held.approval_id
        self.held[where] = row._replace(awaited=True)

    def _write_refusal(self, key: RefusalKey, times: int | None) -> None:
        counts = self.refusals[key[:3]]
        if times is None:
            counts.pop(key[3], None)
        else:
            counts[key[3]] = times

    # --- scans ------------------------------------------------------------------------------------

    async def claim_orphans(self, claim: Claim) -> Sequence[StoredEntry]:
        now = self._clock()
        orphans = []
        for where, row in self.entries.items():
            entry, until = row.entry, row.lease_until
            if entry.status is not EntryStatus.PENDING or entry.phase is Phase.ESCALATED:
                continue
            if until is None or until > now - claim.lapsed_for:
                continue
            if claim.tools is None or entry.tool in claim.tools:
                orphans.append((until, where))
        claimed = []
        for until, where in sorted(orphans)[: claim.limit]:
            row = self.entries[where]
            entry = claimed_entry(row.entry, until, claim.worker)
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
        claimed = []
        for _, key in sorted(waiting)[: claim.limit]:
            work = self.due[key].due
            work = work._replace(fence=work.fence + 1, tries=work.tries + 1)
            self.due[key] = DueRow(work, now + claim.lease)
            claimed.append(work)
        return claimed

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
            events = self._log.erase(micros(now - request.events_after), limit)
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
            entry = self.entries[where].entry
            free = entry.status is EntryStatus.FAILED_RETRYABLE
            status = entry.status if free else EntryStatus.EXPIRED
            self.entries[where] = EntryRow(entry._replace(status=status, observation=None), None)
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
            for (tenant, run_id), counters in self.counters.items()
            for name in counters
            if not run_id and (day := _OF_A_DAY.search(name)) is not None and int(day[1]) < before
        )
        for _, tenant, name in old[:limit]:
            del self.counters[tenant, ""][name]
        return len(old[:limit])

    def _expire_sessions(self, now: float, limit: int) -> int:
        over = sorted(
            (row.expires_at, row.session) for row in self.sessions.values() if row.expires_at <= now
        )
        for _, session in over[:limit]:
            del self.sessions[session]
        return len(over[:limit])

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
            return Memory(entry, held, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS)
        return Memory(
            entry,
            held,
            run_counters=dict(self.counters.get((tenant, run_id), _NO_NUMBERS)),
            tenant_counters=dict(self.counters.get((tenant, ""), _NO_NUMBERS)),
            rates=dict(self.rates.get(tenant, _NO_NUMBERS)),
        )

    def _last_held(self, tenant: str, key: str, who: Asker | None) -> Held | None:
        ids = self.last_held.get((tenant, key))
        if not ids:
            return None
        approval_id = next(reversed(ids.values())) if who is None else ids.get(caller_key(*who), "")
        row = self.held.get((tenant, approval_id))
        return None if row is None else row.held

    async def find_run(self, tenant: str, run_id: str) -> RunRecord | None:
        return self._find_run((tenant, run_id))

    def _find_run(self, where: TenantKey) -> RunRecord | None:
        row = self.runs.get(where)
        if row is None or row.opened is None:
            return None
        state = self.state.get(where, {})
        versions = {key: one.version for key, one in state.items() if one.version}
        if row.changes:
            versions[ANY_KEY] = row.changes
        values = {key: one.value for key, one in state.items() if one.value is not None}
        return replace(
            row.opened,
            turn=row.turn,
            pins=row.pins,
            seen=row.seen,
            refused=row.refused,
            state={key: from_json(value) for key, value in values.items()},
            state_versions=versions,
            untrusted=frozenset(key for key, one in state.items() if one.untrusted),
        )

    async def find_implicit_run(
        self, tenant: str, agent: str, user: str | None, now: float
    ) -> tuple[RunRecord, float] | None:
        run_id, used_at = self.implicit_runs.get((tenant, *caller_key(agent, user)), ("", now))
        run = None if now - used_at > IDLE_SECONDS else self._find_run((tenant, run_id))
        return None if run is None else (run, used_at)

    async def look_up(self, tenant: str, key: str) -> StoredEntry | None:
        return self._look_up((tenant, key))

    def _look_up(self, where: TenantKey) -> StoredEntry | None:
        row = self.entries.get(where)
        return None if row is None else StoredEntry(current_entry(row, self._clock()), row.resume)

    async def look_up_call(self, tenant: str, call_id: str) -> StoredEntry | None:
        for where, row in self.entries.items():
            if where[0] == tenant and row.entry.call_id == call_id:
                return self._look_up(where)
        return None

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

    async def find_session(self, session: str) -> SessionRow | None:
        return self.sessions.get(session)

    # --- queries: the record ----------------------------------------------------------------------

    async def fetch(self, tenant: str, pointer: str) -> bytes | None:
        kept = self.vault.get((tenant, pointer))
        return None if kept is None else kept[1]

    async def search(self, tenant: str, search: EventFilter) -> Sequence[tuple[str, Event]]:
        return self._log.search(tenant, search)

    async def calls(self, tenant: str, search: CallFilter) -> Sequence[tuple[str, Event]]:
        return self._log.calls(tenant, search)

    async def tallies(
        self, tenant: str, since: float, until: float, parts: int
    ) -> Sequence[TallyCount]:
        return self._log.tallies(tenant, since, until, parts)

    async def tenants(self) -> Sequence[str]:
        sealed = [tenant for tenant, checkpoints in self._checkpoints.items() if checkpoints]
        return sorted({*self._log.tenants(), *sealed})

    async def recorded(self, tenant: str, after: tuple[int, str], limit: int) -> Sequence[LogRow]:
        return self._log.recorded(tenant, after, limit)

    async def heads(self, tenant: str, since: int) -> Mapping[str, Head]:
        return self._log.heads(tenant, since)

    async def checkpoints(self, tenant: str) -> Sequence[Checkpoint]:
        return [checkpoint for _, checkpoint in sorted(self._checkpoints[tenant].items())]


class MemoryStore(Store):
    """A store that forgets at the end. `clock` is what leases are measured by."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        super().__init__(MemoryBackend(clock))


def _pick(table: Mapping[K, T], keys: Iterable[K], loaded: dict[K, T]) -> None:
    """Copy the rows that are there."""
    for key in keys:
        row = table.get(key)
        if row is not None:
            loaded[key] = row


def _apply(table: dict[Any, Any], changes: Mapping[Any, Any]) -> None:
    """Write changed rows into a table; None deletes."""
    for key, row in changes.items():
        if row is None:
            table.pop(key, None)
        else:
            table[key] = row
