"""Sessions of people, as rows."""

from __future__ import annotations

from typing import Final

from counterseal.storage.base import SessionRow
from counterseal.storage.rows import read, written
from counterseal.storage.sqlite.queries import queries
from counterseal.storage.sqlite.transaction import Transaction

__all__ = ["end", "end_all", "find", "save"]

_Q: Final = queries()


def save(db: Transaction, row: SessionRow) -> bool:
    """Insert a new session, or refresh one that is stored."""
    if row.seen_at > row.created_at:
        values = (row.user, *row[2:5], written(row.facts), row.session)
        return db.apart(_Q["refresh_session"], values) > 0
    return db.apart(_Q["save_session"], (*row[:5], written(row.facts))) > 0


def find(db: Transaction, session: str) -> SessionRow | None:
    """Return a session by its digest."""
    row = db.one(_Q["find_session"], (session,))
    if row is None:
        return None
    digest, user, created_at, seen_at, expires_at, facts = row
    return SessionRow(digest, user, created_at, seen_at, expires_at, read(facts))


def end(db: Transaction, session: str) -> bool:
    """Delete a session."""
    return db.apart(_Q["end_session"], (session,)) > 0


def end_all(db: Transaction, user: str) -> int:
    """Delete all sessions of a user."""
    return db.apart(_Q["end_sessions"], (user,))
