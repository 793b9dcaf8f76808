"""Sessions: what a browser holds of a sign-in, sealed so that nobody can read, change or make one.

Nothing is stored: the cookie is the session. Its user is asked for at every request, so that a new
password, other roles or a removal end it everywhere. Signing out of one session is remembered by
the process that it was told to, until the session would have ended anyway.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import logging
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from counterseal.accounts.directory import Directory
from counterseal.accounts.model import Person
from counterseal.keys import KeyRing, derived_key
from counterseal.registry.identities import User
from counterseal.vault import Vault, VaultError

__all__ = ["Session", "Sessions", "check_csrf"]

_FORM: Final = 1
"""Of what is sealed; another one is not read."""
_PURPOSE: Final = "console sessions"
_RENEWED: Final = 60.0
"""Seconds after which a browser gets a cookie that says when it was last seen."""
_LONGEST: Final = 4000
"""Characters of a cookie; browsers keep no longer one."""
_LONGEST_NAME: Final = 200
_log = logging.getLogger("counterseal.accounts")


class Sealed(NamedTuple):
    """What a cookie holds."""

    form: int
    name: str
    tenant: str
    stamp: str
    issued_at: float
    seen_at: float
    session_id: str
    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Somebody who is signed in, as they are now."""

    person: Person
    user: User
    """With all tenants that they can change to."""
    sealed: Sealed = field(repr=False)
    csrf: str = field(repr=False)
    """What every form of this session must send back."""
    ends_at: float
    """When it ends, if nothing more is heard."""
    cookie: str | None = field(default=None, repr=False)
    """What the browser should hold from now on; None: what it has."""

    @property
    def session_id(self) -> str:
        return self.sealed.session_id

    @property
    def issued_at(self) -> float:
        return self.sealed.issued_at


_KINDS: Final = (int, str, str, str, float, float, str, str)


class Sessions:
    """`seconds` is how long a session lasts, `idle` how long nothing may be heard of it.

    Without a vault key in the ring the seal is this process's own: sessions end with it, and no
    other worker knows them.
    """

    def __init__(
        self,
        ring: KeyRing | None = None,
        *,
        clock: Callable[[], float] = time.time,
        seconds: float = 8 * 3600.0,
        idle: float = 3600.0,
    ) -> None:
        key = derived_key(ring, _PURPOSE)
        if key is None:
            _log.warning(
                "there is no vault key: who is signed in is signed out when this process ends, and"
                " other workers don't know them; `counterseal keys new vault` makes one"
            )
        self._vault = Vault(key or os.urandom(32))
        self._clock = clock
        self._seconds = seconds
        self._idle = idle
        self._ended: dict[str, float] = {}
        """Sessions that were signed out, and when they would have ended."""

    def issue(self, user: User, tenant: str | None = None) -> tuple[str, Session]:
        """A new session, with an id that never was before. ValueError: no role in that tenant.

        Without a tenant: the first of the user's own.
        """
        chosen = _first(user) if tenant is None else tenant
        now = float(self._clock())
        made = Sealed(
            form=_FORM,
            name=user.name,
            tenant=chosen,
            stamp=user.stamp,
            issued_at=now,
            seen_at=now,
            session_id=secrets.token_urlsafe(16),
            secret=secrets.token_urlsafe(32),
        )
        return self._given(made, user)

    def switch(self, session: Session, tenant: str) -> tuple[str, Session]:
        """The same session in another tenant. ValueError: no role there.

        What was shown in the first tenant can't be sent off in the second: `csrf` is another one.
        """
        user, now = session.user, self._clock()
        return self._given(session.sealed._replace(tenant=tenant, seen_at=now), user)

    async def read(self, cookie: str, directory: Directory) -> Session | None:
        """Whose session it is, if it is good: sealed here, not over, not ended. StoreError."""
        sealed = self._opened(cookie)
        if sealed is None:
            return None
        found = await self._good(sealed, directory)
        if found is None or self._clock() - sealed.seen_at < _RENEWED:
            return found
        text, renewed = self._given(sealed._replace(seen_at=self._clock()), found.user)
        return replace(renewed, cookie=text)

    async def still(self, session: Session, directory: Directory) -> Session | None:
        """The same session later, for what outlasts a request. That nobody acts ends it too."""
        return await self._good(session.sealed, directory)

    def end(self, session: Session) -> None:
        """Sign out. Other sessions of the user go on."""
        now = self._clock()
        for known in [one for one, end in self._ended.items() if end <= now]:
            del self._ended[known]
        self._ended[session.session_id] = session.issued_at + self._seconds

    # --- inside -----------------------------------------------------------------------------------

    async def _good(self, sealed: Sealed, directory: Directory) -> Session | None:
        now = self._clock()
        if now >= min(sealed.issued_at + self._seconds, sealed.seen_at + self._idle):
            return None
        if sealed.session_id in self._ended:
            return None
        user = await directory.user(sealed.name)
        if user is None or user.stamp != sealed.stamp:
            user = await directory.user_now(sealed.name)  # it may be this process that is late
        if user is None or not user.active or user.stamp != sealed.stamp:
            return None
        return self._session(sealed, user)

    def _given(self, sealed: Sealed, user: User) -> tuple[str, Session]:
        session = self._session(sealed, user)
        if session is None or len(sealed.tenant) > _LONGEST_NAME:
            raise ValueError(f"tenant: {user.name} has no role in {sealed.tenant[:100]!r}")
        raw = json.dumps(sealed, ensure_ascii=False, separators=(",", ":")).encode()
        text = base64.urlsafe_b64encode(self._vault.seal("*", _PURPOSE, raw)).decode().rstrip("=")
        return text, session

    def _session(self, sealed: Sealed, user: User) -> Session | None:
        person = Person.of(user.name, sealed.tenant, user.tenants)
        if person is None:
            return None
        return Session(
            person=person,
            user=user,
            sealed=sealed,
            csrf=_csrf(sealed),
            ends_at=min(sealed.issued_at + self._seconds, sealed.seen_at + self._idle),
        )

    def _opened(self, cookie: str) -> Sealed | None:
        """What was sealed. None for anything else, be it off by a single bit."""
        if len(cookie) > _LONGEST:
            return None
        try:
            given = cookie.encode("ascii")
            sealed = base64.b64decode(given + b"=" * (-len(given) % 4), b"-_", validate=True)
            if base64.urlsafe_b64encode(sealed).rstrip(b"=") != given:
                return None  # the last character has bits to spare
            raw = self._vault.open("*", _PURPOSE, sealed, sealed_only=True)
            told: Any = json.loads(raw)
        except (ValueError, binascii.Error, VaultError):
            return None
        if tuple(map(type, told)) != _KINDS or told[0] != _FORM:
            return None
        return Sealed(*told)


def check_csrf(session: Session, given: str | None) -> bool:
    """Whether a form or a header came from a page of this session."""
    return hmac.compare_digest(session.csrf.encode(), (given or "").encode(errors="replace"))


def _csrf(sealed: Sealed) -> str:
    told = f"csrf\0{sealed.session_id}\0{sealed.tenant}".encode()
    return hmac.new(sealed.secret.encode(), told, "sha256").hexdigest()


def _first(user: User) -> str:
    own = sorted(tenant for tenant in user.tenants if tenant != "*")
    if not own:
        raise ValueError(f"tenant: {user.name} works in all of them; say in which")
    return own[0]
