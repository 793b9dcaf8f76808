"""Held proposals: kept for a person, decided once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from counterseal.audit import Event
from counterseal.storage.base import Held, HeldStatus
from counterseal.storage.rules import counts, same_question
from counterseal.storage.sqlite.queries import queries
from counterseal.storage.sqlite.rows import held_of, held_row
from counterseal.storage.sqlite.transaction import Transaction

__all__ = ["decide", "hold", "last_held"]

_Q: Final = queries()
_LAST_HELD: Final = _Q["last_held"]
_FIND_HELD: Final = _Q["find_held"]
_HOLD: Final = _Q["hold"]
_DECIDE: Final = _Q["decide"]


def last_held(db: Transaction, tenant: str, key: str) -> Held | None:
    """The last proposal that was held under a key."""
    row = db.one(_LAST_HELD, (tenant, key))
    return None if row is None else held_of(tenant, row)


def hold(db: Transaction, held: Held, events: Sequence[Event]) -> Held:
    """An identical one that still counts is returned instead."""
    before = last_held(db, held.tenant, held.key)
    if before is not None and same_question(before, held) and counts(before):
        return before
    db.run(_HOLD, held_row(held))
    db.record(events)
    return held


def decide(
    db: Transaction, tenant: str, approval_id: str, status: HeldStatus, events: Sequence[Event]
) -> Held | None:
    """None when there is none, or it was decided before."""
    row = db.one(_FIND_HELD, (tenant, approval_id))
    held = None if row is None else held_of(tenant, row)
    open_for = HeldStatus.APPROVED if status is HeldStatus.VOID else HeldStatus.WAITING
    if held is None or held.status is not open_for:
        return None
    db.run(_DECIDE, (status.value, tenant, approval_id))
    db.record(events)
    return replace(held, status=status)
