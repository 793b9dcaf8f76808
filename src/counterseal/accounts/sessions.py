"""Sessions: rows in the store, found by the secret in a browser's cookie.

The row holds a digest of the secret, so a copy of the store opens no session. A session ends after
eight hours, after an hour without a request, when it is signed out (at once, on every worker),
and when its user's password, roles or status change: those give the user a new stamp, and every
request compares the stamp of its session with the user's.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import inf
from typing import Any, Final

from counterseal.accounts.users import Directory, Person
from counterseal.ledger.records import SessionRow
from counterseal.proposal import folded
from counterseal.registry.identities import User
from counterseal.storage.store import Store

SESSION_SECONDS: Final = 8 * 3600.0
_IDLE_SECONDS: Final = 3600.0
_REFRESH_SECONDS: Final = 60.0
"""How old `seen_at` of a stored session may become before a request writes it anew."""
_SECRET_LENGTH: Final = 43
"""Characters of a secret: 256 bits in base64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A signed-in person, as of this request."""

    person: Person
    user: User
    """With all tenants that the person can switch to."""
    row: SessionRow = field(repr=False)
    csrf: str = field(repr=False)
    """The token that every form of this session must send back."""

    @property
    def session_id(self) -> str:
        return self.row.session

    @property
    def ends_at(self) -> float:
        """When it ends unless the person does something."""
        return self.row.expires_at


class Sessions:
    """Issues, reads and ends sessions. Raises StoreError while the store can't be reached."""

    def __init__(
        self, store: Store, directory: Directory, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._directory = directory
        self._clock = clock

    async def issue(self, user: User, tenant: str) -> tuple[str, Session]:
        """Start a session and return its secret, for the cookie.

        Raises ValueError if the user has no role in the tenant.
        """
        return await self._start(user, tenant, self._clock() + SESSION_SECONDS)

    async def switch(self, session: Session, tenant: str) -> tuple[str, Session]:
        """Replace a session by one in another tenant, which ends when the first would have ended.

        The secret and the CSRF token are new, so a form that was shown in the first tenant can't
        be sent in the second. Raises ValueError if the user has no role there.
        """
        secret, switched = await self._start(session.user, tenant, session.row.facts["until"])
        await self._store.end_session(session.row.session)
        return secret, switched

    async def read(self, secret: str | None, *, refresh: bool = True) -> Session | None:
        """Return the session that a cookie's secret opens; None if there is none, or it has ended.

        A request that a person made restarts the idle time; `refresh=False` is for those that a
        page makes by itself.
        """
        if secret is None or len(secret) != _SECRET_LENGTH or not secret.isascii():
            return None
        row = await self._store.find_session(_digest(secret))
        session = None if row is None else await self._checked(row, _csrf(secret))
        now = self._clock()
        if session is None or not refresh or now - session.row.seen_at < _REFRESH_SECONDS:
            return session
        expires_at = min(session.row.facts.get("until", -inf), now + _IDLE_SECONDS)
        row = session.row._replace(seen_at=now, expires_at=expires_at)
        # It may have been ended in the meantime.
        return replace(session, row=row) if await self._store.save_session(row) else None

    async def still_valid(self, session: Session) -> Session | None:
        """Return a session that was read before, if it is still valid. For streams.

        Does not restart the idle time.
        """
        row = await self._store.find_session(session.row.session)
        return None if row is None else await self._checked(row, session.csrf)

    async def end(self, session: Session) -> None:
        """Sign out, on every worker. Other sessions of the user go on."""
        await self._store.end_session(session.row.session)

    async def _start(self, user: User, tenant: str, until: float) -> tuple[str, Session]:
        person = Person.of(user.name, tenant, user.tenants)
        if person is None:
            raise ValueError(f"tenant: {user.name} has no role in {tenant[:100]!r}")
        secret, now = secrets.token_urlsafe(32), float(self._clock())
        row = SessionRow(
            session=_digest(secret),
            user=folded(user.name),
            created_at=now,
            seen_at=now,
            expires_at=min(until, now + _IDLE_SECONDS),
            facts={"tenant": tenant, "stamp": user.stamp, "until": until},
        )
        await self._store.save_session(row)
        return secret, Session(person=person, user=user, row=row, csrf=_csrf(secret))

    async def _checked(self, row: SessionRow, csrf: str) -> Session | None:
        """Return the session of a row if its time, its user and its tenant are still good."""
        facts: Any = row.facts
        if self._clock() >= row.expires_at:
            return None
        user = await self._directory.user(row.user)
        if user is None or user.stamp != facts["stamp"]:
            # This worker may not know the latest change.
            user = await self._directory.user_now(row.user)
        if user is None or not user.active or user.stamp != facts["stamp"]:
            return None
        person = Person.of(user.name, facts["tenant"], user.tenants)
        return None if person is None else Session(person=person, user=user, row=row, csrf=csrf)


def check_csrf(session: Session, token: str | None) -> bool:
    """Return whether a form or a header carries the token of this session."""
    return hmac.compare_digest(session.csrf.encode(), (token or "").encode(errors="replace"))


def _digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


def _csrf(secret: str) -> str:
    return hmac.digest(secret.encode(), b"csrf", "sha256").hex()
