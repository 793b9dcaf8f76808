"""The people of a runtime: who signs in, and whose session or personal key a request carries."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from counterseal.accounts.passwords import Passwords
from counterseal.accounts.sessions import Session, Sessions
from counterseal.accounts.sign_in import SignIn, SignInRefused
from counterseal.accounts.users import (
    EVERYWHERE,
    Accounts,
    AccountServices,
    Directory,
    LocalUsers,
    Person,
    person_by_key,
)
from counterseal.registry.identities import User

_FIRST_TENANT: Final = "default"
"""Where a user of all tenants works as long as there is none."""


class People:
    """Signs people in and out, and recognises them. One for a process: it holds the lock-out.

    Raises StoreError while the store can't be reached.
    """

    def __init__(
        self,
        services: AccountServices,
        *,
        directory: Directory | None = None,
        passwords: Passwords | None = None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._services = services
        self._passwords = passwords or Passwords()
        self.directory: Directory = directory or LocalUsers(services, steady=steady)
        self.sessions = Sessions(services.store, clock=services.clock)
        self._sign_in = SignIn(services, self.directory, passwords=self._passwords, steady=steady)

    async def sign_in(
        self, name: str, password: str, *, source: str
    ) -> tuple[str, Session] | SignInRefused:
        """Start a new session and return its secret, for the cookie; or why it was refused.

        `source` is the address that the attempt comes from.
        """
        user = await self._sign_in.attempt(name, password, source=source)
        if isinstance(user, SignInRefused):
            return user
        return await self.sessions.issue(user, (await self.tenants(user))[0])

    async def session(self, secret: str | None, *, refresh: bool = True) -> Session | None:
        """Return the session that a cookie's secret opens, if any.

        `refresh=False` is for requests that a page makes by itself: they don't keep it alive.
        """
        if not secret:
            return None
        return await self.sessions.read(secret, self.directory, refresh=refresh)

    async def still_valid(self, session: Session) -> bool:
        """Return whether a session goes on, for streams, which outlast requests."""
        return await self.sessions.still_valid(session, self.directory) is not None

    async def sign_out(self, session: Session) -> None:
        """End this session, on every worker at once."""
        await self.sessions.end(session)

    async def sign_out_everywhere(self, session: Session) -> None:
        """End all sessions of the person, on every worker."""
        name = session.person.name
        await self.accounts(name).sign_out(name, reason="signed out everywhere")

    async def by_key(self, text: str) -> Person | None:
        """Return the holder of a personal key; None if it is not valid."""
        return await person_by_key(text, self.directory, self._services.clock())

    async def tenants(self, user: User) -> Sequence[str]:
        """Return the tenants that a user can work in, own ones first; at least one."""
        own = sorted(tenant for tenant in user.tenants if tenant != EVERYWHERE)
        if EVERYWHERE not in user.tenants:
            return own
        registry = self._services.registry
        others = {
            *await self._services.store.tenants(),
            *self._services.tenants,
            *(credential.principal.tenant for credential in registry.credentials),
            *(tenant for other in registry.users for tenant in other.tenants),
        }
        return [*own, *sorted(others - {*own, EVERYWHERE})] or [_FIRST_TENANT]

    def accounts(self, by: str) -> Accounts:
        """Return an `Accounts` that changes users in this name."""
        return Accounts(
            self._services.operator(by),
            self._passwords,
            sessions=self._services.store,
            clock=self._services.clock,
        )
