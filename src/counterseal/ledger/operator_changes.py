"""Rules of what people change outside of calls: the stored registry, and their sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from counterseal.audit import Columns
from counterseal.ledger.records import SessionRow
from counterseal.ledger.rows import RowKeys, Rows


def need_registry_change(keys: RowKeys) -> None:
    """Lock the registry: admissions that rest on it wait, or were decided before."""
    keys.registry_change = True


def change_registry(
    rows: Rows, number: int, what: Mapping[str, Any], events: Sequence[Columns]
) -> bool:
    """Store a change to the registry. Returns False when its number is not the next one."""
    if number != rows.epoch + 1:
        return False
    rows.epoch = number
    rows.registry_changes.append((number, what))
    rows.events.extend(events)
    return True


def save_session(rows: Rows, row: SessionRow) -> bool:
    """Store or refresh a session. Returns False when a session to be refreshed has ended."""
    refreshes = row.seen_at > row.created_at
    if refreshes and rows.sessions.get(row.session) is None:
        return False
    rows.sessions.put(row.session, row)
    return True


def end_session(rows: Rows, session: str) -> bool:
    """Delete a session. Returns False when there was none."""
    if rows.sessions.get(session) is None:
        return False
    rows.sessions.remove(session)
    return True
