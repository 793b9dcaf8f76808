"""Sessions of people, as rows."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from counterseal.storage.base import SessionRow
from counterseal.storage.postgres.job import Alone
from counterseal.storage.postgres.queries import queries
from counterseal.storage.postgres.rows import read, written
from counterseal.storage.postgres.world import World

__all__ = ["EndingSessions", "SavingSession", "find_session"]

_Q: Final = queries()


class SavingSession(Alone):
    """Insert a new session, or refresh one that is stored."""

    __slots__ = ("_row",)
    durable: ClassVar[bool] = False

    def __init__(self, row: SessionRow) -> None:
        super().__init__()
        self._row = row

    async def run(self, connection: Any, world: World) -> bool:
        row = self._row
        refreshes = row.seen_at > row.created_at
        query = _Q["refresh_session"] if refreshes else _Q["save_session"]
        saved = await connection.fetchval(query, *row[:5], written(row.facts))
        return saved is not None


class EndingSessions(Alone):
    """Delete one session, or all sessions of a user. The answer is their number."""

    __slots__ = ("_session", "_user")

    def __init__(self, *, session: str | None = None, user: str | None = None) -> None:
        super().__init__()
        self._session = session
        self._user = user

    async def run(self, connection: Any, world: World) -> int:
        if self._session is not None:
            return len(await connection.fetch(_Q["end_session"], self._session))
        return len(await connection.fetch(_Q["end_sessions"], self._user))


async def find_session(connection: Any, session: str) -> SessionRow | None:
    """Return a session by its digest."""
    row = await connection.fetchrow(_Q["find_session"], session)
    if row is None:
        return None
    digest, user, created_at, seen_at, expires_at, facts = row
    return SessionRow(digest, user, created_at, seen_at, expires_at, read(facts))
