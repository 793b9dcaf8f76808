"""Between the ledger, due work and the rows that SQLite keeps them in."""

from __future__ import annotations

from typing import Final

from pydantic_core import from_json

from counterseal.ledger.entry import Entry, Phase, Status
from counterseal.storage.base import Due, DueKind
from counterseal.storage.rows import Row, read, written

__all__ = ["NULL", "blob", "due_of", "entry_of", "reserved", "standing"]

# `sqlite3` looks for an adapter for every None and every bytes object that is bound, which takes
# longer than all else that is done with it; for floats and bytearrays it does not. So in what is
# written with every call, these stand for them.
NULL: Final = float("nan")
"""What SQLite keeps as NULL."""


def blob(value: bytes | None) -> bytearray | float:
    """Bytes, or none, as they are bound."""
    return NULL if value is None else bytearray(value)


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


def reserved(entry: Entry) -> Row:
    """What an entry is of, as `reserve` takes it."""
    what = (entry.call_id, entry.tool, entry.version, entry.run_id, entry.fence)
    return (entry.key, blob(entry.request_hash), *what)


def standing(entry: Entry) -> Row:
    """How an entry stands, as `reserve` and `settle` take it."""
    phase, since, observation = entry.phase, entry.unknown_since, entry.observation
    return (
        str(entry.status),
        NULL if phase is None else str(phase),
        entry.attempts,
        NULL if since is None else since,
        NULL if observation is None else written(observation),
        entry.looks,
    )


# --- due work -------------------------------------------------------------------------------------


def due_of(row: Row) -> Due:
    """From `due`, `find_due` or `failed_due`."""
    tenant, kind, key, call_id, run_id, tool, version, body, *rest = row
    return Due(tenant, DueKind(kind), key, call_id, run_id, tool, version, read(body), *rest)
