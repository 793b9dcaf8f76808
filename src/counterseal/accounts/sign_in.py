"""Signing in: names and passwords, sessions, personal keys, lock-out.

Every failure gets the same answer: an unknown or disabled user costs the same work and reads the
same as a wrong password. Successes and failures are on record in the tenants where the user has
roles.

The lock-out counts failures by name and by address, in memory, for each process, and forgets them
an hour after the last one. Unknown names are counted like known ones, so that the wait does not
tell which exist. A user who has signed in from an address before is not kept out there by guesses
made from other addresses.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Any, Final

from counterseal.accounts.sessions import Session, Sessions
from counterseal.accounts.users import (
    EVERYWHERE,
    Accounts,
    AccountServices,
    BusyError,
    Directory,
    Passwords,
    Person,
)
from counterseal.audit import CallFields, Event, EventType
from counterseal.errors import CountersealError
from counterseal.proposal import folded
from counterseal.registry.identities import User, read_person_key

_log = logging.getLogger("counterseal.accounts")

_SHARED_TENANT: Final = "*"
"""The tenant whose record holds attempts under unknown names."""
_FIRST_TENANT: Final = "default"
"""Where a user of all tenants works as long as there is none."""
_BUSY_SECONDS: Final = 5.0
"""Seconds to wait when too many people sign in at once."""
_MAX_NAME: Final = 200
"""Characters of a name that are looked at; no user has a longer one."""
_FIRST_WAIT: Final = 30.0
"""Seconds of the first wait; each further failure doubles it."""
_LONGEST_WAIT: Final = 900.0
_FORGET_AFTER: Final = 3600.0
"""Seconds without a failure after which the count starts again."""
_MAX_COUNTED: Final = 20_000
"""Names and addresses that are remembered; the least recently used one goes first."""


class RefusalReason(StrEnum):
    WRONG = "wrong"
    """Wrong name or password; the answer never says which."""
    LOCKED = "locked"
    """Too many failures. The password was not checked."""
    BUSY = "busy"
    """Too many people sign in at once. The password was not checked."""


@dataclass(frozen=True, slots=True)
class SignInRefused:
    """Why an attempt to sign in failed."""

    reason: RefusalReason
    wait: float = 0.0
    """Seconds until the next attempt is allowed."""

    @property
    def message(self) -> str:
        """The sentence that the person reads."""
        if self.reason is RefusalReason.WRONG:
            return "Wrong name or password."
        seconds = max(1, round(self.wait))
        when = f"{seconds} seconds" if seconds < 100 else f"{round(seconds / 60)} minutes"
        if self.reason is RefusalReason.LOCKED:
            return f"Too many failed attempts. Try again in {when}."
        return f"Too many people are signing in. Try again in {when}."


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
        self._lockout = Lockout(steady=steady)
        self.directory = directory or Directory(services, steady=steady)
        self.sessions = Sessions(services.store, self.directory, clock=services.clock)

    async def sign_in(
        self, name: str, password: str, *, source: str
    ) -> tuple[str, Session] | SignInRefused:
        """Start a new session and return its secret, for the cookie; or why it was refused.

        `source` is the address that the attempt comes from.
        """
        user = await self.attempt(name, password, source=source)
        if isinstance(user, SignInRefused):
            return user
        return await self.sessions.issue(user, (await self.tenants(user))[0])

    async def attempt(self, name: str, password: str, *, source: str) -> User | SignInRefused:
        """Return the user if the password is right. The attempt is on record before the answer."""
        known_as, address = folded(name[:_MAX_NAME]), network_of(source)
        wait = self._lockout.begin(known_as, address)
        if wait > 0:
            return SignInRefused(RefusalReason.LOCKED, wait)
        user = await self.directory.user_now(known_as)
        active = user if user is not None and user.active else None
        try:
            good = await self._passwords.matches(None if active is None else active.hash, password)
        except BusyError:
            self._lockout.withdraw(known_as, address)
            return SignInRefused(RefusalReason.BUSY, _BUSY_SECONDS)
        facts: dict[str, Any] = {"source": source[:100]}
        if active is None or not good:
            wait = self._lockout.wait(known_as, address)
            facts |= {"locked_for": round(wait)} if wait > 0 else {}
            await self._record_failure(user, known_as, facts)
            return SignInRefused(RefusalReason.WRONG)
        self._lockout.passed(known_as, address)
        await self._record(EventType.SIGNED_IN, "signed in", active, facts)
        if self._passwords.outdated(active.hash):  # made with older parameters than today's
            with suppress(CountersealError):  # the next sign-in tries again
                return await self.accounts(active.name).rehash(active, password)
        return active

    async def _record_failure(self, user: User | None, name: str, facts: dict[str, Any]) -> None:
        """Record a failed attempt.

        An unknown name is recorded as a fingerprint: people type passwords into the wrong field.
        """
        if user is None:
            fingerprint = self._services.fingerprint(_SHARED_TENANT, name)
            facts = {**facts, "reason": "unknown", "name": fingerprint}
        else:
            facts = {**facts, "reason": "password" if user.active else "disabled"}
        await self._record(EventType.SIGN_IN_REFUSED, "refused", user, facts)

    async def _record(
        self, kind: EventType, decision: str, user: User | None, facts: dict[str, Any]
    ) -> None:
        now, name = self._services.clock(), None if user is None else user.name
        tenants = [_SHARED_TENANT] if user is None else user.tenants
        callers = [
            CallFields(tenant, "", "", "", "", "counterseal", name, "") for tenant in tenants
        ]
        events = [Event(kind, caller, now, decision, body=facts) for caller in callers]
        await self._services.store.write(events)

    async def sign_out_everywhere(self, session: Session) -> None:
        """End all sessions of the person, on every worker."""
        name = session.person.name
        await self.accounts(name).sign_out(name, reason="signed out everywhere")

    async def by_key(self, text: str) -> Person | None:
        """Return the holder of a personal key, with the roles held now; None if it is not valid."""
        key = read_person_key(text)
        if key is None:
            _log.info("a personal key was refused: it is incomplete")
            return None
        user = await self.directory.holder(key.key_id)
        stored = None if user is None else user.key(key.key_id)
        if user is None or stored is None:
            reason = "it is unknown or revoked"
        elif not stored.matches(key):
            reason = "its secret is wrong"
        elif stored.expired(datetime.fromtimestamp(self._services.clock(), UTC)):
            reason = "it has expired"
        elif not user.active:
            reason = "its holder is disabled"
        else:
            return Person.of(user.name, stored.tenant, user.tenants)
        _log.info("the personal key %s was refused: %s", key.key_id, reason)
        return None

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
        services = self._services
        operator = services.operator(by)
        return Accounts(operator, self._passwords, sessions=services.store, clock=services.clock)


# --- lock-out -------------------------------------------------------------------------------------


def network_of(source: str) -> str:
    """Return what counts as one address: for IPv6 its /64 network, which one customer has whole."""
    try:
        address = ip_address(source.strip().partition("%")[0])
    except ValueError:
        return source[:100]
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(IPv6Network((address, 64), strict=False))
    return str(address)


@dataclass(slots=True)
class _Count:
    failures: int = 0
    last: float = 0.0
    """When the last failure was."""
    until: float = 0.0
    """Until when no attempt is allowed."""


class _Counts:
    """Failures by name, by address, or by both."""

    def __init__(self, allowed: int, most: int) -> None:
        self._allowed = allowed
        self._most = most
        self._all: OrderedDict[Hashable, _Count] = OrderedDict()

    def wait(self, key: Hashable, now: float) -> float:
        count = self._all.get(key)
        return 0.0 if count is None else max(0.0, count.until - now)

    def failed(self, key: Hashable, now: float) -> None:
        count = self._all.pop(key, None)
        if count is None or now - max(count.last, count.until) >= _FORGET_AFTER:
            count = _Count()
        count.failures += 1
        count.last = now
        over = count.failures - self._allowed
        if over >= 0:
            count.until = now + min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(over, 32))
        self._all[key] = count
        while len(self._all) > self._most:
            self._all.popitem(last=False)

    def uncount(self, key: Hashable) -> None:
        """Uncount one failure."""
        count = self._all.get(key)
        if count is not None and count.failures > 0:
            count.failures -= 1
            count.until = 0.0  # the attempt began when no wait was left

    def forget(self, key: Hashable) -> None:
        self._all.pop(key, None)


class Lockout:
    """Counts attempts. `begin` counts one as failed until it is reported as `passed`.

    So a thousand guesses at once are allowed no more than a thousand one after the other.
    """

    def __init__(
        self, *, steady: Callable[[], float] = time.monotonic, most: int = _MAX_COUNTED
    ) -> None:
        self._names = _Counts(5, most)
        """By name; by name and address where the name has signed in from the address before."""
        self._addresses = _Counts(20, most)
        self._steady = steady
        self._most = most
        self._trusted: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Names and the addresses from which they have signed in before."""

    def begin(self, name: str, address: str) -> float:
        """Count an attempt as failed, or return the seconds until one is allowed."""
        wait = self.wait(name, address)
        if wait <= 0:
            now = self._steady()
            self._names.failed(self._key(name, address), now)
            self._addresses.failed(address, now)
        return wait

    def wait(self, name: str, address: str) -> float:
        """Return the seconds until an attempt is allowed; 0: now."""
        now = self._steady()
        by_name = self._names.wait(self._key(name, address), now)
        return max(by_name, self._addresses.wait(address, now))

    def passed(self, name: str, address: str) -> None:
        """Report an attempt as successful. Of the address only this attempt is uncounted."""
        self._names.forget(self._key(name, address))
        self._addresses.uncount(address)
        self._trusted[name, address] = None
        self._trusted.move_to_end((name, address))
        while len(self._trusted) > self._most:
            self._trusted.popitem(last=False)

    def withdraw(self, name: str, address: str) -> None:
        """Report an attempt as not made after all."""
        self._names.uncount(self._key(name, address))
        self._addresses.uncount(address)

    def _key(self, name: str, address: str) -> Hashable:
        pair = (name, address)
        return pair if pair in self._trusted else name
