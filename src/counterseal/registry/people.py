"""Users: what is kept of each, and which of them there are.

Pure. A user is one record, and every change stores it anew: name, password hash, roles by tenant,
and personal keys. That admins make and change users as operators change anything else is
`operating`'s work; how a user signs in is `people`'s.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from counterseal.errors import RegistryError
from counterseal.proposal import text_set
from counterseal.registry.credentials import MARK, Key
from counterseal.registry.records import is_aware, iso

__all__ = [
    "ADDED",
    "MOST_KEYS",
    "PERSON_MARK",
    "PersonalKey",
    "User",
    "Users",
    "folded",
    "new_stamp",
    "person_key_text",
    "read_person_key",
    "roles_by_tenant",
    "without_hashes",
]

ADDED: Final = "added"
"""In a change: the user is new."""
PERSON_MARK: Final = "cs_person_"
"""How every personal key begins."""
MOST_KEYS: Final = 20
"""How many personal keys a user has at most."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")
_STAMP: Final = re.compile(r"[0-9a-f]{16}")
_HASH: Final = re.compile(r"\$argon2id\$[!-~]{20,300}")


def folded(name: str) -> str:
    """Under which two names are the same. What nobody can be called is nobody's name."""
    return name.strip().lower()[:200]


def new_stamp() -> str:
    """One that ends all sessions under the one before."""
    return secrets.token_hex(8)


def _is(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


# --- personal keys --------------------------------------------------------------------------------


def person_key_text(key: Key) -> str:
    """As its holder shows it: like an API key, but for how it begins."""
    return f"{PERSON_MARK}{key.key_id}_{key.secret}"


def read_person_key(text: str) -> Key | None:
    """None when the text is no personal key."""
    if not text.startswith(PERSON_MARK):
        return None
    return Key.read(MARK + text.removeprefix(PERSON_MARK))


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonalKey:
    """A key with which a user reaches the API, in one tenant. The roles are always the user's."""

    key_id: str
    hash: str = field(repr=False)
    tenant: str
    expires_at: datetime | None = None
    at: datetime

    def __post_init__(self) -> None:
        for name in ("expires_at", "at"):
            moment = getattr(self, name)
            if moment is not None and not is_aware(moment):
                raise RegistryError(f"{name}: takes a datetime with a time zone")

    @classmethod
    def of(cls, what: Mapping[str, Any]) -> PersonalKey:
        end = what["expires_at"]
        return cls(
            key_id=what["key_id"],
            hash=what["hash"],
            tenant=what["tenant"],
            expires_at=None if end is None else datetime.fromisoformat(end),
            at=datetime.fromisoformat(what["at"]),
        )

    def matches(self, key: Key) -> bool:
        return hmac.compare_digest(self.hash, key.hash)

    def expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def export(self) -> dict[str, Any]:
        """For whoever looks at it."""
        return {
            "key_id": self.key_id,
            "tenant": self.tenant,
            "expires_at": iso(self.expires_at),
            "at": iso(self.at),
        }

    def stored(self) -> dict[str, Any]:
        return {**self.export(), "hash": self.hash}


# --- users ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Somebody who can sign in, as the last change left them."""

    name: str
    hash: str = field(repr=False)
    """Of the password, as argon2 writes it. Shown to nobody."""
    tenants: Mapping[str, frozenset[str]]
    """Roles by tenant; those under `*` count in every one."""
    stamp: str
    """Sessions bear it, and end with it. Random, because the clocks of workers differ."""
    active: bool = True
    keys: tuple[PersonalKey, ...] = ()
    by: str = ""
    at: datetime | None = None
    reason: str = ""
    """Of the last change."""

    def __post_init__(self) -> None:
        if not _is(_NAME, self.name):
            raise RegistryError(
                "name: takes up to 100 letters and digits from ASCII, and . _ @ + - inside"
            )
        if self.name.lower().split(".")[0] == "counterseal":
            raise RegistryError("name: those that begin with `counterseal` are Counterseal's own")
        if not _is(_HASH, self.hash) or not _is(_STAMP, self.stamp):
            raise RegistryError("password: its hash, or the user's stamp, is none")
        object.__setattr__(self, "tenants", MappingProxyType(roles_by_tenant(self.tenants)))
        if self.active not in (True, False):
            raise RegistryError("active: takes true or false")
        if len(self.keys) > MOST_KEYS:
            raise RegistryError(f"keys: a user has at most {MOST_KEYS}; revoke one")

    @classmethod
    def of(cls, what: Mapping[str, Any], *, by: str, at: datetime, reason: str) -> User:
        """From its stored form. KeyError, TypeError, ValueError or RegistryError."""
        fields = dict(what)
        keys = tuple(PersonalKey.of(one) for one in fields.pop("keys"))
        return cls(**fields, keys=keys, by=by, at=at, reason=reason)

    def key(self, key_id: str) -> PersonalKey | None:
        return next((one for one in self.keys if one.key_id == key_id), None)

    def with_key(self, key: PersonalKey, now: datetime) -> User:
        """With one more. RegistryError when it could not be used."""
        if key.expired(now):
            raise RegistryError("expires_at: is over already")
        if key.tenant == "*" or not (self.tenants.keys() & {key.tenant, "*"}):
            raise RegistryError(f"tenant: {self.name} has no role in {key.tenant!r}")
        return replace(self, keys=(*self.keys, key))

    def without_key(self, key_id: str) -> User:
        """With one less. RegistryError when it is not there."""
        if self.key(key_id) is None:
            raise RegistryError(f"key {key_id} is none of {self.name}")
        return replace(self, keys=tuple(one for one in self.keys if one.key_id != key_id))

    def export(self) -> dict[str, Any]:
        """For whoever looks at it. No hash is in it."""
        return {
            "name": self.name,
            "tenants": {tenant: sorted(roles) for tenant, roles in sorted(self.tenants.items())},
            "active": self.active,
            "keys": [one.export() for one in self.keys],
            "by": self.by,
            "at": iso(self.at),
            "reason": self.reason,
        }

    def stored(self) -> dict[str, Any]:
        """As a change keeps it."""
        return {
            "name": self.name,
            "hash": self.hash,
            "tenants": {tenant: sorted(roles) for tenant, roles in sorted(self.tenants.items())},
            "active": self.active,
            "stamp": self.stamp,
            "keys": [one.stored() for one in self.keys],
        }


def roles_by_tenant(tenants: Mapping[str, Iterable[str]]) -> dict[str, frozenset[str]]:
    """As they are kept. RegistryError says what is wrong with them."""
    if not tenants:
        raise RegistryError("tenants: a user has a role in one of them at least")
    try:
        text_set("tenants", tenants)
        found = {tenant: text_set("roles", roles) for tenant, roles in tenants.items()}
    except (TypeError, ValueError) as error:
        raise RegistryError(str(error)) from None
    empty = next((tenant for tenant, roles in found.items() if not roles), None)
    if empty is not None:
        raise RegistryError(f"roles: there is none for tenant {empty[:100]!r}")
    return found


def without_hashes(what: Mapping[str, Any]) -> dict[str, Any]:
    """A change of a user for those who look at it later: on record, in lists, in logs."""
    if not isinstance(what.get("user"), Mapping):
        return dict(what)
    user = _shown(what["user"])
    return {**what, "user": {**user, "keys": [_shown(one) for one in user.get("keys", ())]}}


def _shown(what: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in what.items() if name not in ("hash", "stamp")}


class Users:
    """All users there are, oldest first."""

    def __init__(self) -> None:
        self._all: dict[str, User] = {}
        self._holders: dict[str, str] = {}
        """Whose a personal key is, by its id."""

    def __iter__(self) -> Iterator[User]:
        return iter(self._all.values())

    def get(self, name: str) -> User | None:
        return self._all.get(folded(name))

    def holder(self, key_id: str) -> User | None:
        """Whose personal key it is."""
        name = self._holders.get(key_id)
        return None if name is None else self._all.get(name)

    def put(self, user: User) -> None:
        name = folded(user.name)
        self._forget_keys(name)
        self._all[name] = user
        self._holders.update({one.key_id: name for one in user.keys})

    def discard(self, name: str) -> None:
        self._forget_keys(folded(name))
        self._all.pop(folded(name), None)

    def _forget_keys(self, name: str) -> None:
        before = self._all.get(name)
        for one in before.keys if before is not None else ():
            self._holders.pop(one.key_id, None)

    def check(self, user: User, *, new: bool) -> None:
        """Whether a new user, or a change of one, makes sense. RegistryError says why not."""
        if not new:
            self.check_there(user.name)
            return
        there = self.get(user.name)
        if there is not None:
            raise RegistryError(f"user {there.name} is there already")

    def check_there(self, name: str) -> User:
        """The user. RegistryError when there is none."""
        found = self.get(name)
        if found is None:
            raise RegistryError(
                f"there is no user {name[:100]!r}; `counterseal users list` shows who there is"
            )
        return found
