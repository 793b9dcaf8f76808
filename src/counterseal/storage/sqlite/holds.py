"""Requests for approval: asked once, voted on, decided once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from counterseal.audit import Event
from counterseal.ledger.rules import asked_before, asker
from counterseal.storage.base import Asker, Ballot, Due, Held, HeldStatus
from counterseal.storage.rows import held_of, held_row, written
from counterseal.storage.sqlite.queries import queries
from counterseal.storage.sqlite.transaction import Transaction
from counterseal.storage.sqlite.work import put_down

__all__ = ["decide", "find_held", "hold", "last_held", "list_held", "vote", "waits_for"]

_Q: Final = queries()
_LAST_HELD: Final = _Q["last_held"]
_LAST_HELD_OF: Final = _Q["last_held_of"]
_FIND_HELD: Final = _Q["find_held"]
_DECIDE: Final = _Q["decide"]
_EVER: Final = float("-inf")


def last_held(db: Transaction, tenant: str, key: str, who: Asker | None) -> Held | None:
    """The last proposal that was held under a key: a caller's, or anybody's."""
    if who is None:
        row = db.one(_LAST_HELD, (tenant, key))
    else:
        row = db.one(_LAST_HELD_OF, (tenant, key, *asker(*who)))
    return None if row is None else held_of(row)


def find_held(db: Transaction, tenant: str, approval_id: str) -> Held | None:
    """A request, whatever became of it."""
    row = db.one(_FIND_HELD, (tenant, approval_id))
    return None if row is None else held_of(row)


def list_held(
    db: Transaction,
    tenant: str | None,
    status: HeldStatus,
    limit: int,
    between: tuple[tuple[float, str], tuple[float, str]],
    *,
    newest_first: bool,
) -> Sequence[Held]:
    """Those of a status between two places, by when they end."""
    first, last = between
    asked = (status.value, *first, *last, limit)
    if tenant is None:
        query = _Q["newest_of_all_held"] if newest_first else _Q["list_all_held"]
        rows = db.run(query, asked)
    else:
        query = _Q["newest_held"] if newest_first else _Q["list_held"]
        rows = db.run(query, (tenant, *asked))
    return [held_of(row) for row in rows]


def waits_for(db: Transaction, tenant: str, approval_id: str) -> float:
    """For how many seconds it waits, unless somebody decides: without an end, or not at all."""
    row = db.one(_Q["held_status"], (tenant, approval_id))
    waits = row is not None and row[0] == HeldStatus.WAITING.value
    return float("inf") if waits else 0.0


def hold(
    db: Transaction, held: Held, events: Sequence[Event], due: Sequence[tuple[float, Due]]
) -> Held:
    """An identical one that still stands is returned instead."""
    before = last_held(db, held.tenant, held.key, (held.agent, held.user))
    if before is not None and asked_before(before, held):
        return before
    db.apart(_Q["hold"], held_row(held))
    put_down(db, due)
    db.record(events)
    return held


def vote(db: Transaction, ballot: Ballot) -> Held | None:
    """None when it does not wait, or others have voted since."""
    tenant, approval_id, seen, votes, status, token, due, events = ballot
    held = find_held(db, tenant, approval_id)
    if held is None or held.status is not HeldStatus.WAITING or len(held.votes) != seen:
        return None
    db.apart(_Q["vote"], (written(votes), status.value, token, tenant, approval_id))
    put_down(db, due)
    db.record(events)
    return replace(held, votes=tuple(votes), status=status, token=token)


def decide(
    db: Transaction, tenant: str, approval_id: str, status: HeldStatus, events: Sequence[Event]
) -> Held | None:
    """None when there is none, or it was decided before."""
    held = find_held(db, tenant, approval_id)
    open_for = HeldStatus.APPROVED if status is HeldStatus.VOID else HeldStatus.WAITING
    if held is None or held.status is not open_for:
        return None
    db.record(events)
    if status is HeldStatus.VOID:
        db.apart(_Q["void"], (tenant, approval_id))
        return replace(held, status=status, token=None)
    db.apart(_DECIDE, (status.value, tenant, approval_id))
    return replace(held, status=status)
