"""The people of a runtime: who signs in, whose session and whose key it is. One for a process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from counterseal.accounts.changing import Accounts
from counterseal.accounts.directory import Directory, LocalUsers
from counterseal.accounts.keys import person_by_key
from counterseal.accounts.model import EVERYWHERE, Person
from counterseal.accounts.passwords import Passwords
from counterseal.accounts.sessions import Session, Sessions
from counterseal.accounts.signing_in import Refused, SignIn
from counterseal.registry.identities import User

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["People"]

_NONE_YET: Final = "default"
"""Where somebody of all tenants works while there is none."""


class People:
    """Ask it at every request; what it knows is at most a second old. StoreError as of a store."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        directory: Directory | None = None,
        passwords: Passwords | None = None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runtime = runtime
        self._passwords = passwords or Passwords()
        self.directory: Directory = directory or LocalUsers(runtime, steady=steady)
        self.sessions = Sessions(runtime.keys, clock=runtime.clock)
        self._sign_in = SignIn(runtime, self.directory, passwords=self._passwords, steady=steady)

    async def sign_in(
        self, name: str, password: str, *, source: str
    ) -> tuple[str, Session] | Refused:
        """A new session and its cookie's text, whatever session there was before."""
        found = await self._sign_in.attempt(name, password, source=source)
        if isinstance(found, Refused):
            return found
        return self.sessions.issue(found, (await self.tenants(found))[0])

    async def session(self, cookie: str | None) -> Session | None:
        """Whose session a cookie's text is. `cookie` of it is what to send back, if anything."""
        return None if not cookie else await self.sessions.read(cookie, self.directory)

    async def still(self, session: Session) -> Session | None:
        """The same session later, for streams, which outlast requests."""
        return await self.sessions.still(session, self.directory)

    def sign_out(self, session: Session) -> None:
        """End this session; in other processes it ends with its time."""
        self.sessions.end(session)

    async def sign_out_everywhere(self, session: Session) -> None:
        """End all sessions of the person, at every worker."""
        await self.accounts(session.person.name).sign_out(
            session.person.name, reason="signed out everywhere"
        )

    async def by_key(self, text: str) -> Person | None:
        """Whose personal key it is."""
        return await person_by_key(text, self.directory, self._runtime.clock())

    async def tenants(self, user: User) -> Sequence[str]:
        """Where a user can work, own tenants first; never none."""
        own = sorted(tenant for tenant in user.tenants if tenant != EVERYWHERE)
        if EVERYWHERE not in user.tenants:
            return own
        registry = self._runtime.registry
        others = {
            *await self._runtime.store.tenants(),
            *self._runtime.tenants,
            *(one.principal.tenant for one in registry.credentials),
            *(tenant for one in registry.users for tenant in one.tenants),
        }
        return [*own, *sorted(others - {*own, EVERYWHERE})] or [_NONE_YET]

    def accounts(self, by: str) -> Accounts:
        """Who changes users, on record by this name."""
        return Accounts(self._runtime.operator(by), self._passwords, clock=self._runtime.clock)
