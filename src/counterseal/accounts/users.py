"""Users: their roles and passwords, how they are looked up, and how operators change them.

A `Directory` says who a user is at the moment of a request, so that a role that was taken away is
gone at once. `Accounts` changes users for every worker: each change has a reason, is on record by
the operator's name, and ends the user's sessions where it takes something away.
"""

from __future__ import annotations

import asyncio
import os
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar

from counterseal.errors import CountersealError, RegistryError
from counterseal.operations.operator import Operator, RegistryFollower, RegistryServices
from counterseal.proposal import check_tenant, folded
from counterseal.registry import Registry, RegistryChange
from counterseal.registry.identities import (
    ADDED,
    PersonalKey,
    User,
    key_id_in,
    new_key,
    new_stamp,
    person_key_text,
    roles_by_tenant,
)
from counterseal.storage.store import Store

if TYPE_CHECKING:
    from argon2 import PasswordHasher

EVERYWHERE: Final = "*"
"""In a user's tenants: every tenant. Only roles held here reach what all tenants share."""
Roles = Mapping[str, Iterable[str]]
"""Roles by tenant; those under `*` count in every tenant."""
MIN_LENGTH: Final = 12
"""Characters of a password."""
MAX_BYTES: Final = 1024
_MAX_WAITING: Final = 64
"""Passwords that may wait to be hashed."""

T = TypeVar("T")


class AccountServices(RegistryServices, Protocol):
    """The parts of a runtime that accounts use."""

    store: Store
    registry: Registry
    clock: Callable[[], float]

    @property
    def tenants(self) -> Mapping[str, Any]: ...

    def operator(self, by: str) -> Operator: ...

    def fingerprint(self, tenant: str, value: str) -> str: ...


# --- roles ----------------------------------------------------------------------------------------


class Role(StrEnum):
    """The roles that the product itself asks for. Approvals may ask for further ones."""

    VIEWER = "viewer"
    """May look."""
    APPROVER = "approver"
    """May look and vote."""
    OPERATOR = "operator"
    """May look, stop and grant tools, and settle unknown outcomes."""
    ADMIN = "admin"
    """May do all of that, and change users."""


_SUFFICIENT: Final[Mapping[Role, frozenset[str]]] = {
    Role.VIEWER: frozenset(Role),
    Role.APPROVER: frozenset({Role.APPROVER, Role.ADMIN}),
    Role.OPERATOR: frozenset({Role.OPERATOR, Role.ADMIN}),
    Role.ADMIN: frozenset({Role.ADMIN}),
}
"""Which roles are sufficient where a role is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A user at work in one tenant."""

    name: str
    tenant: str
    roles: frozenset[str] = frozenset()
    """All roles that count in this tenant."""
    everywhere: frozenset[str] = frozenset()
    """Those of them that count in every tenant."""

    @classmethod
    def of(cls, name: str, tenant: str, tenants: Mapping[str, frozenset[str]]) -> Self | None:
        """Return the user with the roles that count in a tenant. None without any there."""
        everywhere = frozenset(tenants.get(EVERYWHERE, ()))
        roles = everywhere | frozenset(tenants.get(tenant, ()))
        if not roles or tenant == EVERYWHERE:
            return None
        return cls(name=name, tenant=tenant, roles=roles, everywhere=everywhere)

    def may(self, role: Role) -> bool:
        """Return whether the roles held in this tenant are sufficient."""
        return not self.roles.isdisjoint(_SUFFICIENT[role])

    def may_everywhere(self, role: Role) -> bool:
        """Return whether the roles held in every tenant are sufficient."""
        return not self.everywhere.isdisjoint(_SUFFICIENT[role])


# --- lookup ---------------------------------------------------------------------------------------


class Directory:
    """Looks up the users in the registry. Raises StoreError while the store can't answer.

    A subclass with the same three methods can look them up elsewhere.
    """

    def __init__(
        self, services: AccountServices, *, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._services = services
        self._changes = RegistryFollower(services, steady)
        self._misses = RegistryFollower(services, steady)

    async def user(self, name: str) -> User | None:
        """Return the user, active or not, at most a second old; None if there is none."""
        await self._changes.refresh()
        return self._services.registry.user(name)

    async def user_now(self, name: str) -> User | None:
        """Return the user as of this moment, for decisions that grant access."""
        await self._services.catch_up()
        return self._services.registry.user(name)

    async def holder(self, key_id: str) -> User | None:
        """Return the user who holds a personal key; None if no user does."""
        await self._changes.refresh()
        user = self._services.registry.key_holder(key_id)
        if user is None:
            await self._misses.refresh()  # another worker may have issued it just now
            user = self._services.registry.key_holder(key_id)
        return user


# --- passwords ------------------------------------------------------------------------------------


class BusyError(CountersealError):
    """Raised when too many passwords wait to be hashed."""


def check_password(password: str) -> None:
    """Raise RegistryError if the password breaks the rules. The message does not repeat it."""
    raw = _bytes(password)
    if raw is None:
        raise RegistryError("password: contains a character that is not text")
    if len(raw) > MAX_BYTES:
        raise RegistryError(f"password: must be at most {MAX_BYTES:,} bytes, got {len(raw):,}")
    if len(_normal(password)) < MIN_LENGTH:
        raise RegistryError(
            f"password: must be at least {MIN_LENGTH} characters; several words are fine"
        )


class Passwords:
    """Computes argon2id hashes and compares passwords with them.

    A hash costs 46 MiB and about fifty milliseconds of one core, on purpose. So only a few are
    computed at a time, in threads of their own, and only a limited number may wait: an attacker who
    tries passwords by the thousand slows down sign-ins, and nothing else.
    """

    def __init__(
        self,
        *,
        time_cost: int = 1,
        memory_kib: int = 47_104,
        at_once: int | None = None,
        waiting: int = _MAX_WAITING,
    ) -> None:
        self._time_cost = time_cost
        self._memory_kib = memory_kib
        self._at_once = at_once or max(1, min(4, (os.cpu_count() or 1) // 2))
        self._waiting = waiting
        self._pending = 0

    async def hashed(self, password: str) -> str:
        """Return the hash to store. Raises BusyError."""
        text = _normal(password)
        return await self._in_thread(lambda: self._hasher.hash(text))

    async def matches(self, stored: str | None, password: str) -> bool:
        """Return whether a password matches a stored hash. Raises BusyError.

        For a user who does not exist, pass None: it takes as long, and is False.
        """
        raw = _bytes(password)
        fits = raw is not None and len(raw) <= MAX_BYTES
        text = _normal(password) if fits else ""

        def compare() -> bool:
            from argon2.exceptions import (  # noqa: PLC0415 - an optional extra
                InvalidHashError,
                VerificationError,
            )

            if stored is None:
                self._hasher.hash(text)  # the same work
                return False
            try:
                self._hasher.verify(stored, text)
            except (VerificationError, InvalidHashError):
                return False
            return fits

        return await self._in_thread(compare)

    def outdated(self, stored: str) -> bool:
        """Return whether a hash was made with other parameters than today's."""
        return self._hasher.check_needs_rehash(stored)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._pending >= self._waiting + self._at_once:
            raise BusyError("Too many people are signing in. Try again in a moment.")
        self._pending += 1
        task = asyncio.get_running_loop().run_in_executor(self._threads, work)

        def done(task: asyncio.Future[T]) -> None:
            self._pending -= 1
            if not task.cancelled():
                task.exception()  # otherwise asyncio logs it when the caller was cancelled

        # The thread goes on when the caller is cancelled, so its place stays taken until it ends.
        task.add_done_callback(done)
        return await asyncio.shield(task)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._at_once, thread_name_prefix="counterseal-password")

    @cached_property
    def _hasher(self) -> PasswordHasher:
        from argon2 import PasswordHasher  # noqa: PLC0415 - an optional extra

        # One lane: a sign-in takes one core, and not all of them.
        return PasswordHasher(
            time_cost=self._time_cost, memory_cost=self._memory_kib, parallelism=1
        )


def _normal(password: str) -> str:
    """Normalise a password: keyboards encode the same letter in different ways."""
    return unicodedata.normalize("NFKC", password)


def _bytes(password: str) -> bytes | None:
    try:
        raw = _normal(password).encode()
    except UnicodeEncodeError:
        return None
    return None if b"\0" in raw else raw


# --- changes --------------------------------------------------------------------------------------


class Accounts:
    """Changes users in an operator's name. Raises RegistryError for a change that is not valid.

    With `sessions`, a change that takes something away also deletes the user's sessions at once;
    without, other workers notice it within a second, by the user's new stamp.
    """

    def __init__(
        self,
        operator: Operator,
        passwords: Passwords | None = None,
        *,
        sessions: Store | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._operator = operator
        self._passwords = passwords or Passwords()
        self._sessions = sessions
        self._clock = clock

    async def add(self, name: str, password: str, tenants: Roles, *, reason: str) -> User:
        """Add a user, who can sign in at once."""
        roles, password_hash = _new_roles(tenants), await self._hashed(password)

        def new_user(_: Registry) -> User:
            return User(name=name, hash=password_hash, tenants=roles, stamp=new_stamp())

        return await self._operator.put_user(ADDED, new_user, reason=reason)

    async def set_password(self, name: str, password: str, *, reason: str) -> User:
        """Set another password. Ends the user's sessions; personal keys stay valid."""
        new = await self._hashed(password)
        return await self._alter(name, "password", reason, lambda user: replace(user, hash=new))

    async def set_roles(self, name: str, tenant: str, roles: Iterable[str], *, reason: str) -> User:
        """Replace the user's roles in one tenant; no roles: no access there. Ends all sessions."""
        listed = roles if isinstance(roles, str) else list(roles)  # a string is refused below
        given = _new_roles({tenant: listed}) if listed else {}

        def altered(user: User) -> User:
            others = {key: held for key, held in user.tenants.items() if key != tenant}
            return replace(user, tenants=others | given)

        return await self._alter(name, "roles", reason, altered)

    async def set_active(self, name: str, *, active: bool, reason: str) -> User:
        """Enable or disable a user. Ends all sessions; personal keys of a disabled user fail."""
        change = "enabled" if active else "disabled"
        return await self._alter(name, change, reason, lambda user: replace(user, active=active))

    async def sign_out(self, name: str, *, reason: str) -> User:
        """End all sessions of a user, on every worker."""
        return await self._alter(name, "signed_out", reason, lambda user: user)

    async def remove(self, name: str, *, reason: str) -> RegistryChange:
        """Remove a user, with all sessions and personal keys."""
        change = await self._operator.remove_user(name, reason=reason)
        await self._end_sessions(name)
        return change

    async def issue_key(
        self, name: str, tenant: str | None = None, *, until: datetime | None = None, reason: str
    ) -> tuple[str, PersonalKey]:
        """Issue a personal key for one tenant. Its text is returned once; only a hash is stored.

        The tenant may be left out for a user who has roles in one tenant only.
        """
        key = new_key()

        def altered(user: User) -> User:
            now = datetime.fromtimestamp(self._clock(), UTC)
            issued = PersonalKey(
                key_id=key.key_id,
                hash=key.hash,
                tenant=_only_tenant(user) if tenant is None else tenant,
                expires_at=until,
                at=now,
            )
            return user.with_key(issued, now)

        user = await self._alter(name, "key", reason, altered, ends_sessions=False)
        return person_key_text(key), next(one for one in user.keys if one.key_id == key.key_id)

    async def revoke_key(self, key_id: str, *, reason: str) -> User:
        """End a personal key, by its id."""
        known = key_id_in(key_id)

        def holder_without_it(registry: Registry) -> User:
            holder = registry.key_holder(known)
            if holder is None:
                raise RegistryError(f"no user holds the personal key {known}")
            return holder.without_key(known)

        return await self._operator.put_user("unkey", holder_without_it, reason=reason)

    async def rehash(self, user: User, password: str) -> User:
        """Store the same password with today's hash parameters.

        Raises RegistryError if the password was changed in the meantime.
        """
        new = await self._passwords.hashed(password)

        def altered(current: User) -> User:
            if current.hash != user.hash:
                raise RegistryError(f"the password of {user.name} was changed meanwhile")
            return replace(current, hash=new)

        reason = "hashed anew, by today's parameters"
        return await self._alter(user.name, "rehashed", reason, altered, ends_sessions=False)

    async def _hashed(self, password: str) -> str:
        check_password(password)
        return await self._passwords.hashed(password)

    async def _alter(
        self,
        name: str,
        change: str,
        reason: str,
        altered: Callable[[User], User],
        *,
        ends_sessions: bool = True,
    ) -> User:
        def stamped(registry: Registry) -> User:
            user = altered(registry.existing_user(name))
            return replace(user, stamp=new_stamp()) if ends_sessions else user

        user = await self._operator.put_user(change, stamped, reason=reason)
        if ends_sessions:
            await self._end_sessions(name)
        return user

    async def _end_sessions(self, name: str) -> None:
        if self._sessions is not None:
            await self._sessions.end_sessions(folded(name))


def _new_roles(tenants: Roles) -> dict[str, frozenset[str]]:
    """Return checked roles. Users who were stored earlier may have tenants that are refused now."""
    roles = roles_by_tenant(tenants)
    try:
        for tenant in roles:
            check_tenant("tenant", tenant)
    except ValueError as error:
        raise RegistryError(str(error)) from None
    return roles


def _only_tenant(user: User) -> str:
    (first, *others) = user.tenants
    if others or first == EVERYWHERE:
        raise RegistryError(
            f"tenant: {user.name} works in several tenants; give the tenant that the key is for"
        )
    return first
