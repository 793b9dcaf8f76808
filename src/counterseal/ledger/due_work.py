"""Rules of due work, and of what waits for an operator."""

from __future__ import annotations

from collections.abc import Sequence

from counterseal.audit import Columns
from counterseal.ledger.entry import Entry, EntryStatus, Phase
from counterseal.ledger.records import Concern, Due
from counterseal.ledger.requests import FinishRequest
from counterseal.ledger.rows import DueKey, DueRow, RowKeys, Rows

Later = Sequence[tuple[float, Due]]
"""Work to be done later, each with the seconds until then."""


def due_key(due: Due) -> DueKey:
    """Return the key of the row of a piece of work."""
    return due.tenant, str(due.kind), due.key


def need_due(keys: RowKeys, later: Later) -> None:
    """Add the rows that `add_due` reads or changes."""
    for _, due in later:
        keys.due.add(due_key(due))


def add_due(rows: Rows, later: Later) -> bool:
    """Add work that is not there yet. Returns False when some of it is."""
    new = True
    for after, due in later:
        where = due_key(due)
        if rows.due.get(where) is not None:
            new = False
            continue
        fresh = due._replace(fence=0, tries=0, failed=None, since=rows.now)
        rows.due.put(where, DueRow(fresh, rows.now + after))
    return new


def schedule(rows: Rows, later: Later, events: Sequence[Columns]) -> bool:
    """Add one piece of work with its events. Returns False, and adds nothing, if it is there."""
    new = add_due(rows, later)
    if new:
        rows.events.extend(events)
    return new


def need_finish(keys: RowKeys, request: FinishRequest) -> None:
    """Add the rows that `finish` reads or changes."""
    keys.due.add(due_key(request.work))
    need_due(keys, request.due)
    if request.compensated is not None:
        keys.entries.add((request.work.tenant, request.work.key))


def finish(rows: Rows, request: FinishRequest, events: Sequence[Columns]) -> bool:
    """Write the outcome of a piece of work. Returns False for an older fence number."""
    where = due_key(request.work)
    row = rows.due.get(where)
    if row is None or row.due.fence != request.work.fence:
        return False
    if request.failed is not None:
        failed = row.due._replace(failed=request.failed, since=rows.now)
        rows.due.put(where, DueRow(failed, None))
    elif request.again_after is not None:
        again = row.due._replace(failed=None)
        rows.due.put(where, DueRow(again, rows.now + request.again_after))
    else:
        rows.due.remove(where)
    _compensate(rows, request)
    add_due(rows, request.due)
    rows.events.extend(events)
    return True


def _compensate(rows: Rows, request: FinishRequest) -> None:
    """Mark the call's entry as reversed, with the observation that repeats get from now on."""
    if request.compensated is None:
        return
    where = (request.work.tenant, request.work.key)
    row = rows.entries.get(where)
    if row is not None and row.entry.status is EntryStatus.COMPLETED:
        entry = row.entry._replace(status=EntryStatus.COMPENSATED, observation=request.compensated)
        rows.entries.put(where, row._replace(entry=entry))


def claimed_entry(entry: Entry, lease_until: float, worker: str, now: float) -> Entry:
    """Return an orphaned entry as the worker that claims it gets it: unknown, with a new fence."""
    since = min(lease_until, now) if entry.unknown_since is None else entry.unknown_since
    return entry._replace(
        fence=entry.fence + 1,
        worker=worker,
        phase=Phase.UNKNOWN,
        unknown_since=since,
        lapsed=False,
        looks=entry.looks + 1,
    )


def claimed_due(work: Due) -> Due:
    """Return a piece of work as the worker that claims it gets it: with a new fence."""
    return work._replace(fence=work.fence + 1, tries=work.tries + 1)


# --- what waits for an operator -------------------------------------------------------------------


def escalated_concern(entry: Entry) -> Concern:
    """Return an escalated entry as an operator is shown it."""
    call = (entry.call_id, entry.run_id, entry.tool, entry.version)
    since, reason = entry.unknown_since or 0.0, "it is not known whether this took effect"
    return Concern(entry.tenant, "unknown", entry.key, *call, since, reason, entry.fence)


def failed_concern(due: Due) -> Concern:
    """Return failed work as an operator is shown it."""
    call = (due.call_id, due.run_id, due.tool, due.version)
    return Concern(*due_key(due), *call, due.since, due.failed or "", due.fence)


def sorted_concerns(concerns: Sequence[Concern], limit: int) -> Sequence[Concern]:
    """Return the oldest concerns first, up to a limit."""
    ordered = sorted(concerns, key=lambda one: (one.since, one.tenant, one.kind, one.key))
    return ordered[:limit]
