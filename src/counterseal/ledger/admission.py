"""Rules of the transactions around an execution: admit, settle, renew, watch.

Each rule checks everything before it changes anything, so that a refused request leaves no trace,
and a rule can be run again on freshly loaded rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

from counterseal.audit import Columns
from counterseal.ledger.changes import ANY_KEY, advance_run, need_progress
from counterseal.ledger.due_work import add_due, need_due
from counterseal.ledger.entry import Entry, EntryStatus, reservable
from counterseal.ledger.holds import change_held, usable
from counterseal.ledger.records import HeldStatus
from counterseal.ledger.requests import (
    Admission,
    AdmissionRefusal,
    AdmissionRequest,
    SettlementRequest,
)
from counterseal.ledger.rows import (
    LONGEST_LEASE,
    EntryRow,
    RowKeys,
    Rows,
    RunProgress,
    TenantKey,
    current_entry,
)

_ADMITTED: Final = Admission()
_OUTDATED: Final = Admission(AdmissionRefusal.EPOCH)


# --- admission ------------------------------------------------------------------------------------


def is_durable(request: AdmissionRequest) -> bool:
    """Return False for an admission that only spends: a power loss may undo that without harm."""
    return bool(request.entry or request.approval_id or request.events)


def need_admission(keys: RowKeys, request: AdmissionRequest) -> None:
    """Add the rows that `admit` reads or changes."""
    tenant, run_id = request.tenant, request.run_id
    keys.registry = True
    keys.runs.add((tenant, run_id))
    for key in request.reads:
        if key != ANY_KEY:
            keys.state.add((tenant, run_id, key))
    for charge in request.charges:
        keys.counters.add((tenant, run_id if charge.of_run else "", charge.counter))
    for rate in request.rates:
        keys.rates.add((tenant, rate.counter))
    if request.entry is not None:
        keys.entries.add((tenant, request.entry.key))
    if request.approval_id is not None:
        keys.held.add((tenant, request.approval_id))


def admit(rows: Rows, request: AdmissionRequest, events: Sequence[Columns]) -> Admission:
    """Admit a call: spend its budgets and its approval, reserve its entry, record its events.

    Where something has changed since the decision, nothing happens, and the answer says what.
    """
    tenant = request.tenant
    run = rows.runs.get((tenant, request.run_id))
    refused = _obstacle(rows, request, run) or _spend(rows, request)
    if refused is not None:
        return refused
    if run is not None and request.tool not in run.pins:
        pins = {**run.pins, request.tool: request.version}
        rows.runs.put((tenant, request.run_id), run._replace(pins=pins))
    if events:
        rows.events.extend(events)
    if request.captured is not None:
        rows.vault.append(request.captured)
    if request.approval_id is not None:
        change_held(rows, (tenant, request.approval_id), status=HeldStatus.SPENT)
    if request.entry is None:
        return _ADMITTED
    return Admission(entry=_reserve(rows, request, request.entry))


def _obstacle(rows: Rows, request: AdmissionRequest, run: RunProgress | None) -> Admission | None:
    """Return the first change since the decision that forbids the call now."""
    if request.epoch != rows.epoch:
        return _OUTDATED
    tenant = request.tenant
    if run is not None:
        if run.pins.get(request.tool, request.version) != request.version:
            return Admission(AdmissionRefusal.PIN)
        if request.reads and _state_changed(rows, request, run):
            return Admission(AdmissionRefusal.STATE)
    if request.entry is not None:
        row = rows.entries.get((tenant, request.entry.key))
        if row is not None:
            entry = current_entry(row, rows.now)
            if not reservable(entry, request.takes_over):
                return Admission(AdmissionRefusal.DUPLICATE, entry)
    if request.approval_id is not None:
        held = rows.held.get((tenant, request.approval_id))
        if held is None or not usable(held.held, request.now):
            return Admission(AdmissionRefusal.APPROVAL)
    return None


def _state_changed(rows: Rows, request: AdmissionRequest, run: RunProgress) -> bool:
    """Return True when the run state that the decision rests on has another version by now."""
    for key, version in request.reads.items():
        if key == ANY_KEY:
            current = run.changes
        else:
            row = rows.state.get((request.tenant, request.run_id, key))
            current = 0 if row is None else row.version
        if current != version:
            return True
    return False


def _spend(rows: Rows, request: AdmissionRequest) -> Admission | None:
    """Spend from every counter and rate, or change nothing and return the limit in the way."""
    tenant, run_id, now = request.tenant, request.run_id, request.now
    counters: dict[tuple[str, str, str], int] = {}
    for charge in request.charges:
        counter = (tenant, run_id if charge.of_run else "", charge.counter)
        spent = counters.get(counter)
        if spent is None:
            spent = rows.counters.get(counter) or 0
        if charge.exceeds(spent):
            return Admission(AdmissionRefusal.BUDGET, charge=charge, spent=spent)
        counters[counter] = spent + charge.amount
    arrivals: dict[tuple[str, str], float] = {}
    for rate in request.rates:
        name = (tenant, rate.counter)
        arrival = arrivals.get(name)
        if arrival is None:
            arrival = rows.rates.get(name) or 0.0
        wait = rate.wait(arrival, now)
        if wait > 0:
            return Admission(AdmissionRefusal.RATE, rate=rate, retry_after=wait)
        arrivals[name] = rate.next(arrival, now)
    rows.counters.changes.update(counters)
    rows.rates.changes.update(arrivals)
    return None


def count(rows: Rows, tenant: str, run_id: str, counts: Mapping[str, int]) -> dict[str, int]:
    """Add to counters of a run, whatever their limits. Returns the new totals."""
    totals = {
        name: (rows.counters.get((tenant, run_id, name)) or 0) + more
        for name, more in counts.items()
    }
    for name, total in totals.items():
        rows.counters.put((tenant, run_id, name), total)
    return totals


def _reserve(rows: Rows, request: AdmissionRequest, entry: Entry) -> Entry:
    """Put the entry under its next fence number, in place of an earlier one."""
    where = (request.tenant, entry.key)
    before = rows.entries.get(where)
    awaited = False
    if before is not None:
        awaited = before.awaited
        earlier = before.entry
        entry = entry._replace(fence=earlier.fence + 1, attempts=earlier.attempts + 1)
    until = rows.now + request.lease
    row = EntryRow(entry, until, None, awaited, True, request.resume, created_at=rows.now)
    rows.entries.put(where, row)
    return entry


# --- settlement -----------------------------------------------------------------------------------


def need_settlement(keys: RowKeys, request: SettlementRequest) -> None:
    """Add the rows that `settle` reads or changes."""
    if request.entry is not None:
        keys.entries.add((request.tenant, request.entry.key))
    if request.gives_back is not None:
        keys.held.add((request.tenant, request.gives_back))
    need_progress(keys, request)
    need_due(keys, request.due)


def settle(rows: Rows, request: SettlementRequest, events: Sequence[Columns]) -> bool:
    """Write an outcome. Returns False, and changes nothing, for an older fence number.

    That is so when another worker holds the entry by now, or has settled it; also if the entry is
    not held by `held_by`.
    """
    if request.entry is not None and not _release(rows, request, request.entry):
        return False
    if request.seen or request.state or request.mended is not None:
        advance_run(rows, request)
    if request.gives_back is not None:
        where = (request.tenant, request.gives_back)
        row = rows.held.get(where)
        if row is not None and row.held.status is HeldStatus.SPENT:
            change_held(rows, where, status=HeldStatus.APPROVED)
    if request.due:
        add_due(rows, request.due)
    rows.events.extend(events)
    return True


def _release(rows: Rows, request: SettlementRequest, entry: Entry) -> bool:
    """Put the settled entry, and announce it to waiting callers."""
    where = (request.tenant, entry.key)
    row = rows.entries.get(where)
    if row is None or not _is_current(row, entry.fence):
        return False
    if request.held_by is not None and row.entry.worker != request.held_by:
        return False
    if entry.worker is not None or entry.lapsed:
        entry = entry._replace(worker=None, lapsed=False)
    pending = entry.status is EntryStatus.PENDING
    after = request.again_after if pending else request.keep_for
    if pending and after is not None:
        after = min(after, LONGEST_LEASE)
    until = None if after is None else rows.now + after
    if row.awaited:
        rows.woken.append(where)
    lease_until, expires_at = (until, None) if pending else (None, until)
    settled = row._replace(entry=entry, lease_until=lease_until, expires_at=expires_at)
    completed_at = None if pending else rows.now
    rows.entries.put(where, settled._replace(awaited=False, completed_at=completed_at))
    return True


def _is_current(row: EntryRow, fence: int) -> bool:
    """Return True while the entry is PENDING under this fence number."""
    return row.entry.fence == fence and row.entry.status is EntryStatus.PENDING


# --- leases ---------------------------------------------------------------------------------------


def need_entries(keys: RowKeys, entries: Sequence[Entry]) -> None:
    """Add the rows that `renew` reads or changes."""
    keys.entries.update((entry.tenant, entry.key) for entry in entries)


def renew(rows: Rows, entries: Sequence[Entry], lease: float) -> Sequence[bool]:
    """Extend leases. Returns False for each entry that another worker holds, or has settled."""
    return [_renew(rows, entry, lease) for entry in entries]


def _renew(rows: Rows, entry: Entry, lease: float) -> bool:
    where = (entry.tenant, entry.key)
    row = rows.entries.get(where)
    if row is None or not _is_current(row, entry.fence) or row.entry.worker is None:
        return False
    rows.entries.put(where, row._replace(lease_until=rows.now + lease))
    return True


def watch_entry(rows: Rows, where: TenantKey) -> float | None:
    """Mark a held entry as awaited. Returns the seconds left of its lease; None: not held."""
    row = rows.entries.get(where)
    if row is None or not current_entry(row, rows.now).held:
        return None
    if not row.awaited:
        rows.entries.put(where, row._replace(awaited=True))
    return inf if row.lease_until is None else row.lease_until - rows.now
