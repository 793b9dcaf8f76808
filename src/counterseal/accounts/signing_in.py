"""Signing in with a name and a password: one answer for every failure, and all of it on record.

Somebody who is not there, or not active, gets the same answer as a wrong password, after the same
work. Who signs in, and who tries to, is on record in the tenants where they have roles.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from counterseal.accounts.changing import Accounts
from counterseal.accounts.directory import Directory
from counterseal.accounts.locking import Lockout, address_of
from counterseal.accounts.passwords import BusyError, Passwords
from counterseal.audit import Caller, Event, EventType
from counterseal.errors import CountersealError
from counterseal.registry.identities import User, folded

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["Refused", "SignIn", "Why"]

_NOBODYS: Final = "*"
"""The tenant where attempts are on record that are nobody's."""
_BUSY: Final = 5.0
"""Seconds after which to come back where too many sign in."""


class Why(StrEnum):
    WRONG = "wrong"
    """Name and password don't go together. Which of them is wrong, nobody is told."""
    LOCKED = "locked"
    """Too many attempts have failed; this one was not looked at."""
    BUSY = "busy"
    """Too many people sign in at once; this one was not looked at."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Nobody is signed in."""

    reason: Why
    wait: float = 0.0
    """In how many seconds it can be tried again."""

    @property
    def message(self) -> str:
        """For the person."""
        if self.reason is Why.WRONG:
            return "Name and password don't go together."
        seconds = max(1, round(self.wait))
        when = f"{seconds} seconds" if seconds < 100 else f"{round(seconds / 60)} minutes"
        if self.reason is Why.LOCKED:
            return f"Too many attempts have failed. Try again in {when}."
        return f"Too many people sign in just now. Try again in {when}."


class SignIn:
    """One for a process: it holds the lock-out."""

    def __init__(
        self,
        runtime: Runtime,
        directory: Directory,
        *,
        passwords: Passwords | None = None,
        lockout: Lockout | None = None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runtime = runtime
        self._directory = directory
        self._passwords = passwords or Passwords()
        self._lockout = lockout or Lockout(steady=steady)

    async def attempt(self, name: str, password: str, *, source: str) -> User | Refused:
        """The user, if the password is theirs. StoreError where that can't be told, or recorded.

        `source` is the address that the attempt comes from.
        """
        known_as, address = folded(name), address_of(source)
        wait = self._lockout.begin(known_as, address)
        if wait > 0:
            return Refused(Why.LOCKED, wait)
        user = await self._directory.user_now(known_as)
        able = user if user is not None and user.active else None
        try:
            good = await self._passwords.matches(None if able is None else able.hash, password)
        except BusyError:
            self._lockout.withdraw(known_as, address)
            return Refused(Why.BUSY, _BUSY)
        if able is None or not good:
            await self._record(self._failure(user, known_as, source, address))
            return Refused(Why.WRONG)
        self._lockout.passed(known_as, address)
        await self._record(self._success(able, source))
        return await self._with_todays_hash(able, password)

    async def _with_todays_hash(self, user: User, password: str) -> User:
        if not self._passwords.outdated(user.hash):
            return user
        operator = self._runtime.operator(user.name)
        try:
            return await Accounts(operator, self._passwords).rehash(user, password)
        except CountersealError:
            return user  # the next time will do

    # --- on record --------------------------------------------------------------------------------

    def _success(self, user: User, source: str) -> Iterable[Event]:
        told = {"source": source[:100]}
        return self._events(EventType.SIGNED_IN, "signed in", user, told)

    def _failure(self, user: User | None, name: str, source: str, address: str) -> Iterable[Event]:
        """What nobody is called is not kept as it is: it may be a password, in the wrong field."""
        told: dict[str, Any] = {"source": source[:100]}
        if user is None:
            told |= {"reason": "unknown", "name": self._runtime.fingerprint(_NOBODYS, name)}
        else:
            told["reason"] = "password" if user.active else "disabled"
        wait = self._lockout.wait(name, address)
        if wait > 0:
            told["locked_for"] = round(wait)
        return self._events(EventType.SIGN_IN_REFUSED, "refused", user, told)

    def _events(
        self, kind: EventType, decision: str, user: User | None, told: dict[str, Any]
    ) -> Iterable[Event]:
        now = self._runtime.clock()
        name = None if user is None else user.name
        for tenant in [_NOBODYS] if user is None else user.tenants:
            caller = Caller(tenant, "", "", "", "", "counterseal", name, "")
            yield Event(kind, caller, now, decision, body=told)

    async def _record(self, events: Iterable[Event]) -> None:
        """For good, before anybody is answered: it counts as a refusal of nothing else."""
        await self._runtime.store.refuse(_NOBODYS, "", "", (), list(events))
