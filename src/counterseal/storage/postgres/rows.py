"""Between the store's records and the rows that Postgres keeps them in.

Runs and requests for approval are kept as every database keeps them.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from counterseal.ledger.entry import Entry, Phase, Status
from counterseal.storage.base import Due, DueKind, Held
from counterseal.storage.rows import held_of as _held_of
from counterseal.storage.rows import (
    held_row,
    read,
    run_of,
    run_row,
    state_rows,
    written,
)

__all__ = [
    "HeldRow",
    "Line",
    "Row",
    "RunRow",
    "StateRow",
    "Task",
    "day_of",
    "due_of",
    "held_change",
    "held_of",
    "held_row",
    "line_of",
    "line_row",
    "read",
    "run_of",
    "run_row",
    "shown",
    "state_rows",
    "task_row",
    "written",
]

Row = tuple[Any, ...]
_OF_A_DAY: Final = re.compile(r"/([0-9]{1,9})$")
"""How the name of a counter ends that counts for a day."""


# --- the ledger -----------------------------------------------------------------------------------


class Line(NamedTuple):
    """One row of the ledger: an entry as it was written, and what is kept beside it."""

    entry: Entry
    lease_until: float | None
    expires_at: float | None = None
    awaited: bool = False
    anew: bool = False
    """Whether `resume` is to be written; it is never read here."""
    resume: bytes | None = None


def line_of(row: Row) -> Line:
    """From the columns of the ledger, up to `awaited`."""
    tenant, key, request_hash, status, phase, call_id, run_id, tool, version, fence = row[:10]
    attempts, since, observation, worker, looks, lease_until, expires_at, awaited = row[10:18]
    entry = Entry(
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
        looks=looks,
    )
    return Line(entry, lease_until, expires_at, awaited)


def line_row(where: tuple[str, str], line: Line) -> Row:
    """As `write` takes one that was there; of a new one it takes all but the last."""
    entry, lease_until, expires_at, awaited, anew, resume = line
    phase, observation = entry.phase, entry.observation
    return (
        *where,
        entry.request_hash,
        str(entry.status),
        None if phase is None else str(phase),
        entry.call_id,
        entry.run_id,
        entry.tool,
        entry.version,
        entry.fence,
        entry.attempts,
        entry.unknown_since,
        None if observation is None else written(observation),
        entry.worker,
        entry.looks,
        lease_until,
        expires_at,
        awaited,
        resume,
        anew,
    )


def shown(line: Line, now: float) -> Entry:
    """The entry as it is now: whether its lease is over depends on the time."""
    entry, until = line.entry, line.lease_until
    if entry.status is not Status.PENDING or entry.phase is Phase.ESCALATED:
        return entry
    if until is None or until > now:
        return entry
    return entry._replace(lapsed=True)


# --- runs -----------------------------------------------------------------------------------------


class RunRow(NamedTuple):
    """What changes of a run. `opened` is what does not, of a new one, as `insert_runs` takes it."""

    turn: int
    changes: int
    pins: str
    seen: str
    refused: str
    opened: Row = ()


class StateRow(NamedTuple):
    value: str | None
    version: int
    untrusted: bool


# --- requests for approval, counters --------------------------------------------------------------


class HeldRow(NamedTuple):
    """A request, and what is kept beside it."""

    held: Held
    latest: bool
    """Whether it is its caller's last one under its key."""
    awaited: bool = False
    """Whether somebody, anywhere, waits for it to be decided."""


def held_of(row: Row) -> HeldRow:
    """From the columns of `held`."""
    return HeldRow(_held_of(tuple(row[:24])), *row[24:26])


def held_change(where: tuple[str, str], row: HeldRow) -> Row:
    """As `update_held` takes it."""
    held = row.held
    return (*where, held.status.value, written(held.votes), held.token, row.latest, row.awaited)


def day_of(run_id: str, name: str) -> int | None:
    """The day that a tenant's counter is for."""
    found = None if run_id else _OF_A_DAY.search(name)
    return None if found is None else int(found[1])


# --- due work -------------------------------------------------------------------------------------


class Task(NamedTuple):
    """One row of due work, and when its time comes; None once it failed."""

    due: Due
    due_at: float | None


def due_of(row: Row) -> Due:
    """From the columns of `due`, up to `since`."""
    tenant, kind, key, call_id, run_id, tool, version, body, fence, tries, failed, since = row[:12]
    call = (call_id, run_id, tool, version)
    return Due(tenant, DueKind(kind), key, *call, read(body), fence, tries, failed, since)


def task_row(task: Task) -> Row:
    """As `insert_due` takes it."""
    tenant, kind, key, call_id, run_id, tool, version, body, fence, tries, failed, since = task.due
    call = (call_id, run_id, tool, version)
    told = (written(body), fence, tries, failed, since)
    return (tenant, str(kind), key, *call, *told, task.due_at)
