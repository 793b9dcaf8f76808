"""The record: searched, read with its links, sealed, and forgotten when its time is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from counterseal.audit import Event, Head, Link, event_of
from counterseal.audit.checkpoint import Checkpoint
from counterseal.ledger.rules import erased, micros, place_of, said
from counterseal.storage.base import Erasure, Recorded, Search
from counterseal.storage.checkpoints import checkpoint_of, checkpoint_row
from counterseal.storage.rows import Row, read, written
from counterseal.storage.sqlite.queries import queries
from counterseal.storage.sqlite.transaction import Transaction

__all__ = [
    "between",
    "change",
    "changes",
    "checkpoints",
    "expire",
    "fetch",
    "found_of",
    "heads",
    "recorded",
    "seal",
    "search",
    "tenants",
]

_Q: Final = queries()
_OLDEST_FIRST: Final = (_Q["events_of_call"], _Q["events_of_run"], _Q["events"])
_NEWEST_FIRST: Final = (_Q["newest_of_call"], _Q["newest_of_run"], _Q["newest"])
_BEFORE_ALL: Final = (0, "")
_AFTER_ALL: Final = (2**62, "")
_DAY: Final = 86_400
_DAYS_KEPT: Final = 2
"""How many days' counters are kept beside today's."""


def search(db: Transaction, tenant: str, search: Search) -> list[tuple[str, Event]]:
    """Events, narrowed down, in the order asked for."""
    first, last = between(search)
    of_call, of_run, of_all = _NEWEST_FIRST if search.newest_first else _OLDEST_FIRST
    run_id, tool, where = search.run_id, search.tool, (*first, *last)
    types = None if search.types is None else f" {' '.join(map(str, search.types))} "
    limit = -1 if search.limit is None else search.limit
    narrow = (run_id, run_id, tool, tool, types, types, limit)
    if search.call_id is not None:
        rows = db.run(of_call, (tenant, search.call_id, *where, *narrow))
    elif run_id is not None:
        rows = db.run(of_run, (tenant, run_id, *where, *narrow))
    else:
        rows = db.run(of_all, (tenant, *where, *narrow))
    return [found_of(row) for row in rows]


def between(search: Search) -> tuple[tuple[int, str], tuple[int, str]]:
    """The places that what is looked for lies between, neither of them included."""
    first = _BEFORE_ALL if search.since is None else (micros(search.since), "")
    last = _AFTER_ALL if search.until is None else (micros(search.until), "")
    if search.after is not None:
        place = place_of(search.after)
        if search.newest_first:
            last = min(last, place)
        else:
            first = max(first, place)
    return first, last


def tenants(db: Transaction) -> list[str]:
    """Everybody who has events or checkpoints, by name."""
    return [tenant for (tenant,) in db.run(_Q["tenants"])]


def recorded(
    db: Transaction, tenant: str, after: tuple[int, str], limit: int
) -> Sequence[Recorded]:
    """A page of the log, behind a place."""
    return [_recorded_of(row) for row in db.run(_Q["recorded"], (tenant, *after, limit))]


def heads(db: Transaction, tenant: str, since: int) -> Mapping[str, Head]:
    """Where each segment ends that has links from this number on."""
    rows = db.run(_Q["heads"], (tenant, since))
    return {segment: Head(*head) for segment, *head in rows}


def checkpoints(db: Transaction, tenant: str) -> Sequence[Checkpoint]:
    """What was sealed, oldest first."""
    return [checkpoint_of(tenant, row) for row in db.run(_Q["checkpoints"], (tenant,))]


def seal(db: Transaction, checkpoint: Checkpoint) -> bool:
    """False when its number is taken."""
    return db.run(_Q["seal"], checkpoint_row(checkpoint)).rowcount > 0


def fetch(db: Transaction, tenant: str, pointer: str) -> bytes | None:
    """What a pointer into the vault leads to."""
    row = db.one(_Q["fetch"], (tenant, pointer))
    return None if row is None else row[0]


# --- the registry's changes -----------------------------------------------------------------------


def changes(db: Transaction, after: int) -> Sequence[tuple[int, Mapping[str, Any]]]:
    """What came after a change, oldest first."""
    return [(number, read(what)) for number, what in db.run(_Q["changes"], (after,))]


def change(db: Transaction, number: int, what: Mapping[str, Any], events: Sequence[Event]) -> bool:
    """False, and nothing, when the number is not the next one."""
    if db.run(_Q["change"], (number, written(what), number)).rowcount <= 0:
        return False
    db.record(events)
    return True


# --- forgetting -----------------------------------------------------------------------------------


def expire(db: Transaction, request: Erasure) -> Mapping[str, int]:
    """One batch of everything."""
    now, limit = db.now(), request.limit
    vault = requests = events = 0
    if request.vault_after is not None:
        before = now - request.vault_after
        vault = db.run(_Q["empty_vault"], (before, limit)).rowcount
        requests = db.run(_Q["forget_held"], (before, limit)).rowcount
    if request.events_after is not None:
        events = _erase(db, now, micros(now - request.events_after), limit)
    last_day = int(now // _DAY) - _DAYS_KEPT - 1
    return {
        "keys": db.run(_Q["expire_keys"], (now, limit)).rowcount,
        "vault": vault,
        "requests": requests,
        "events": events,
        "counters": db.run(_Q["forget_days"], (last_day, limit)).rowcount,
        "sessions": db.run(_Q["expire_sessions"], (now, limit)).rowcount,
    }


def _erase(db: Transaction, now: float, before: int, limit: int) -> int:
    """Forget what events before a number say, one tenant after the other. How many."""
    left = limit
    for tenant in tenants(db):
        done = db.one(_Q["erased_until"], (tenant,))
        since = 0 if done is None else done[0]
        gone = db.run(_Q["erasable"], (tenant, since, before, left)).fetchall()
        if gone:
            until = gone[-1][1]
            db.many(_Q["erase"], gone)
            db.run(_Q["erased"], (tenant, until))
            db.record([erased(tenant, now, len(gone), until)])
            left -= len(gone)
        if left <= 0:
            break
    return limit - left


# --- between records and rows ---------------------------------------------------------------------


def found_of(row: Row) -> tuple[str, Event]:
    """From `events`: with the id that it goes by."""
    number, segment, *columns = row
    link = Link(number, segment, 0, None, b"", b"")
    return link.event_id, event_of(tuple(columns))


def _recorded_of(row: Row) -> Recorded:
    """From `recorded`."""
    link = Link(*row[:6])
    return Recorded(link, said(link, row[6:]))
