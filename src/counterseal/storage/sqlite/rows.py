"""Between the ledger, due work and the rows that SQLite keeps them in."""

from __future__ import annotations

from pydantic_core import from_json

from counterseal.ledger import Entry, Phase, Status
from counterseal.storage.base import Due, DueKind
from counterseal.storage.rows import Row, read, written

__all__ = ["due_of", "entry_of", "entry_values"]


# --- the ledger -----------------------------------------------------------------------------------


def entry_of(tenant: str, key: str, row: Row, now: float) -> Entry:
    """From `find_entry`, as it is at a moment."""
    request_hash, status, phase, call_id, tool, version, fence, attempts, since = row[:9]
    observation, run_id, worker, looks, until = row[9:]
    over = status == "PENDING" and phase != "escalated" and until is not None and until <= now
    return Entry(
        tenant=tenant,
        key=key,
        request_hash=request_hash,
        status=Status(status),
        phase=None if phase is None else Phase(phase),
        call_id=call_id,
        tool=tool,
        version=version,
        fence=fence,
        attempts=attempts,
        unknown_since=since,
        observation=None if observation is None else from_json(observation),
        run_id=run_id,
        worker=worker,
        lapsed=over,
        looks=looks,
    )


def entry_values(entry: Entry) -> tuple[Row, Row]:
    """What comes before an entry's fence in its row, and what comes after."""
    phase, observation = entry.phase, entry.observation
    before = (
        entry.request_hash,
        str(entry.status),
        None if phase is None else str(phase),
        entry.call_id,
        entry.tool,
        entry.version,
    )
    kept = None if observation is None else written(observation)
    return before, (entry.attempts, entry.unknown_since, kept, entry.run_id, entry.looks)


# --- due work -------------------------------------------------------------------------------------


def due_of(row: Row) -> Due:
    """From `due`, `find_due` or `failed_due`."""
    tenant, kind, key, call_id, run_id, tool, version, body, *rest = row
    return Due(tenant, DueKind(kind), key, call_id, run_id, tool, version, read(body), *rest)
