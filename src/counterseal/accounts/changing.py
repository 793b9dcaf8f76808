"""Who can sign in, changed for every worker: users, their passwords, roles and personal keys.

An `Accounts` is an operator's: every change has a reason, is on record by the operator's name, and
ends the user's sessions wherever it takes something away. Who may be an admin is for whoever makes
one to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from time import time

from counterseal.accounts.passwords import Passwords, refuse_unfit
from counterseal.errors import RegistryError
from counterseal.operations.operator import Operator
from counterseal.registry import Change, Registry
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

__all__ = ["Accounts", "Roles"]

Roles = Mapping[str, Iterable[str]]
"""By tenant; those under `*` count in every one."""


class Accounts:
    """RegistryError when a change makes no sense; then nothing is stored."""

    def __init__(
        self,
        operator: Operator,
        passwords: Passwords | None = None,
        *,
        clock: Callable[[], float] = time,
    ) -> None:
        self._operator = operator
        self._passwords = passwords or Passwords()
        self._clock = clock

    async def add(self, name: str, password: str, tenants: Roles, *, reason: str) -> User:
        """Somebody new, who can sign in at once."""
        roles, kept = roles_by_tenant(tenants), await self._hashed(password)

        def made(_: Registry) -> User:
            return User(name=name, hash=kept, tenants=roles, stamp=new_stamp())

        return await self._operator.put_user(ADDED, made, reason=reason)

    async def set_password(self, name: str, password: str, *, reason: str) -> User:
        """Another password. All sessions of the user end; personal keys do not."""
        kept = await self._hashed(password)
        return await self._alter(name, "password", reason, lambda user: replace(user, hash=kept))

    async def set_roles(self, name: str, tenant: str, roles: Iterable[str], *, reason: str) -> User:
        """Other roles in one tenant, in the place of all there; none: no more business there.

        All sessions end.
        """
        given = roles_by_tenant({tenant: kept}) if (kept := _list(roles)) else {}

        def altered(user: User) -> User:
            others = {one: had for one, had in user.tenants.items() if one != tenant}
            return replace(user, tenants=others | given)

        return await self._alter(name, "roles", reason, altered)

    async def set_active(self, name: str, *, active: bool, reason: str) -> User:
        """Whether the user is let in at all. All sessions end, and no personal key is taken."""
        did = "enabled" if active else "disabled"
        return await self._alter(name, did, reason, lambda user: replace(user, active=active))

    async def sign_out(self, name: str, *, reason: str) -> User:
        """End all sessions of a user, wherever they are."""
        return await self._alter(name, "signed_out", reason, lambda user: user)

    async def remove(self, name: str, *, reason: str) -> Change:
        """Forget a user, with all sessions and personal keys."""
        return await self._operator.remove_user(name, reason=reason)

    async def issue_key(
        self, name: str, tenant: str | None = None, *, until: datetime | None = None, reason: str
    ) -> tuple[str, PersonalKey]:
        """A personal key for one tenant. Its text is given this once: only a hash of it is kept.

        The tenant may be left out for a user who has roles in one only.
        """
        key = new_key()

        def altered(user: User) -> User:
            now = datetime.fromtimestamp(self._clock(), UTC)
            made = PersonalKey(
                key_id=key.key_id,
                hash=key.hash,
                tenant=_only_tenant(user) if tenant is None else tenant,
                expires_at=until,
                at=now,
            )
            return user.with_key(made, now)

        user = await self._alter(name, "key", reason, altered, ends_sessions=False)
        return person_key_text(key), next(one for one in user.keys if one.key_id == key.key_id)

    async def revoke_key(self, key_id: str, *, reason: str) -> User:
        """End a personal key by its id, whoever's it is."""
        known = key_id_in(key_id)

        def made(registry: Registry) -> User:
            holder = registry.key_holder(known)
            if holder is None:
                raise RegistryError(f"key {known} is nobody's personal key")
            return holder.without_key(known)

        return await self._operator.put_user("unkey", made, reason=reason)

    async def rehash(self, user: User, password: str) -> User:
        """Keep the same password by today's parameters. RegistryError: it is another one by now."""
        kept = await self._passwords.hashed(password)

        def altered(now: User) -> User:
            if now.hash != user.hash:
                raise RegistryError(f"the password of {user.name} was changed meanwhile")
            return replace(now, hash=kept)

        reason = "hashed anew, by today's parameters"
        return await self._alter(user.name, "rehashed", reason, altered, ends_sessions=False)

    async def _hashed(self, password: str) -> str:
        refuse_unfit(password)
        return await self._passwords.hashed(password)

    async def _alter(
        self,
        name: str,
        did: str,
        reason: str,
        change: Callable[[User], User],
        *,
        ends_sessions: bool = True,
    ) -> User:
        def made(registry: Registry) -> User:
            user = change(registry.existing_user(name))
            return replace(user, stamp=new_stamp()) if ends_sessions else user

        return await self._operator.put_user(did, made, reason=reason)


def _list(roles: Iterable[str]) -> Iterable[str]:
    """Still one string where one was given by mistake: it will be refused."""
    return roles if isinstance(roles, str) else list(roles)


def _only_tenant(user: User) -> str:
    (first, *others) = user.tenants
    if others or first == "*":
        raise RegistryError(f"tenant: {user.name} works in several; name the one that it is for")
    return first
