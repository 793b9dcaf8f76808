"""API keys and users: what is stored of each, and how a key is checked.

Pure. A key is made here and shown once; what is stored is its holder and a hash of its secret. A
user is one record, and every change stores it anew: name, password hash, roles by tenant, personal
keys. `operations` issues and revokes keys and changes users; `accounts` signs users in.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from counterseal.canonical import exported
from counterseal.errors import RegistryError
from counterseal.proposal import Principal, check_tenant, folded, text_set
from counterseal.registry.records import is_aware, iso

MARK: Final = "cs_key_"
"""The prefix of every API key, by which secret scanners recognise it."""

_KEY: Final = re.compile(r"([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_ID: Final = re.compile(r"[0-9a-f]{16}")
_NAMED: Final = re.compile(rf"(?:cs_[a-z]+_)?({_ID.pattern})(?:_.*)?")
_SECRET_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")


class IssuedKey(NamedTuple):
    """A key with its secret, as its holder sends it."""

    key_id: str
    secret: str

    @classmethod
    def read(cls, text: str, mark: str = MARK) -> IssuedKey | None:
        """Return the key in a text, or None."""
        match = _KEY.fullmatch(text.removeprefix(mark)) if text.startswith(mark) else None
        return None if match is None else cls(match[1], match[2])

    @property
    def text(self) -> str:
        return f"{MARK}{self.key_id}_{self.secret}"

    @property
    def hash(self) -> str:
        """The hash that is stored.

        A plain hash is enough: the secret has 256 random bits, which can't be guessed, and the slow
        hashes that passwords need would slow down every request.
        """
        return f"sha256:{sha256(self.secret.encode()).hexdigest()}"

    def __repr__(self) -> str:
        return f"Key(key_id={self.key_id!r})"


def new_key() -> IssuedKey:
    """Return a new random key."""
    return IssuedKey(secrets.token_hex(8), secrets.token_urlsafe(32))


def key_id_in(text: str) -> str:
    """Return the id in a text that is an id or a whole key.

    RegistryError does not repeat the text, which may be a secret.
    """
    match = _NAMED.fullmatch(text.strip())
    if match is None:
        raise RegistryError("key: must be the id of a key: 16 characters from 0-9 and a-f")
    return match[1]


def reserved(principal: Principal) -> str | None:
    """Return why this agent name is not allowed, or None. Some names are Counterseal's own."""
    name = folded(principal.agent)
    if name == "counterseal" or name.startswith("counterseal."):
        return "agent: names that begin with `counterseal.` are reserved"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """The stored part of a key: the hash of its secret, and until when it is valid."""

    key_id: str
    hash: str = field(repr=False)
    expires_at: datetime | None = None
    at: datetime

    def __post_init__(self) -> None:
        if not _is(_ID, self.key_id) or not _is(_SECRET_HASH, self.hash):
            raise RegistryError("key: the id or the hash is not valid")
        for name in ("expires_at", "at"):
            moment = getattr(self, name)
            if moment is not None and not is_aware(moment):
                raise RegistryError(f"{name}: must be a datetime with a time zone")

    def matches(self, key: IssuedKey) -> bool:
        return hmac.compare_digest(self.hash, key.hash)

    def expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential(StoredKey):
    """One API key in force: its holder and its expiry."""

    principal: Principal
    by: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        StoredKey.__post_init__(self)
        error = reserved(self.principal)
        if error is not None:
            raise RegistryError(error)

    @classmethod
    def of(cls, what: Mapping[str, Any], *, by: str, at: datetime, reason: str) -> Credential:
        """Parse the stored form. Raises KeyError, TypeError, ValueError or RegistryError."""
        fields = dict(what)
        expires_at = fields.pop("expires_at")
        return cls(
            key_id=fields.pop("key_id"),
            hash=fields.pop("hash"),
            expires_at=None if expires_at is None else datetime.fromisoformat(expires_at),
            principal=Principal(**fields),
            by=by,
            at=at,
            reason=reason,
        )

    def export(self) -> dict[str, Any]:
        """Return the public fields as plain JSON data."""
        return {
            "key_id": self.key_id,
            **_holder(self.principal),
            "expires_at": iso(self.expires_at),
            "by": self.by,
            "at": iso(self.at),
            "reason": self.reason,
        }


def _holder(principal: Principal) -> dict[str, Any]:
    """Return a key's holder as plain JSON data. A key belongs to one agent, without parents."""
    return {name: value for name, value in exported(principal).items() if name != "parents"}


def stored(key: IssuedKey, principal: Principal, expires_at: datetime | None) -> dict[str, Any]:
    """Return the form in which a change stores the key."""
    return {
        "key_id": key.key_id,
        "hash": key.hash,
        **_holder(principal),
        "expires_at": iso(expires_at),
    }


ADDED: Final = "added"
"""The user change that adds a user."""
PERSON_MARK: Final = "cs_person_"
"""The prefix of every personal key."""
MOST_KEYS: Final = 20
"""The largest number of personal keys of a user."""

_USER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")
_STAMP: Final = re.compile(r"[0-9a-f]{16}")
_PASSWORD_HASH: Final = re.compile(r"\$argon2id\$[!-~]{20,300}")


def new_stamp() -> str:
    """Return a new stamp, which ends all sessions with the old one."""
    return secrets.token_hex(8)


def _is(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


# --- personal keys --------------------------------------------------------------------------------


def person_key_text(key: IssuedKey) -> str:
    """Return a personal key as text."""
    return f"{PERSON_MARK}{key.key_id}_{key.secret}"


def read_person_key(text: str) -> IssuedKey | None:
    """Return the personal key in a text, or None."""
    return IssuedKey.read(text, PERSON_MARK)


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonalKey(StoredKey):
    """A user's key for the API in one tenant. It has the roles of the user."""

    tenant: str

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

    def export(self) -> dict[str, Any]:
        """Return the public fields as plain JSON data."""
        ends, made = iso(self.expires_at), iso(self.at)
        return {"key_id": self.key_id, "tenant": self.tenant, "expires_at": ends, "at": made}

    def stored(self) -> dict[str, Any]:
        return {**self.export(), "hash": self.hash}


# --- users ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user who can sign in, after the last change."""

    name: str
    hash: str = field(repr=False)
    """The argon2 hash of the password. Never shown."""
    tenants: Mapping[str, frozenset[str]]
    """Roles by tenant; the roles of `*` apply in every tenant."""
    stamp: str
    """Sessions carry it and end when it changes. Random, because workers' clocks differ."""
    active: bool = True
    keys: tuple[PersonalKey, ...] = ()
    by: str = ""
    at: datetime | None = None
    reason: str = ""
    """The reason of the last change."""

    def __post_init__(self) -> None:
        if not _is(_USER_NAME, self.name):
            raise RegistryError(
                "name: must be 1 to 100 ASCII letters and digits, with . _ @ + - after the first"
            )
        if folded(self.name).split(".")[0] == "counterseal":
            raise RegistryError("name: names that begin with `counterseal` are reserved")
        if not _is(_PASSWORD_HASH, self.hash) or not _is(_STAMP, self.stamp):
            raise RegistryError("password: the hash or the stamp is not valid")
        object.__setattr__(self, "tenants", MappingProxyType(roles_by_tenant(self.tenants)))
        if self.active not in (True, False):
            raise RegistryError("active: must be true or false")
        if len(self.keys) > MOST_KEYS:
            raise RegistryError(f"keys: a user can have at most {MOST_KEYS}; revoke one first")

    @classmethod
    def of(cls, what: Mapping[str, Any], *, by: str, at: datetime, reason: str) -> User:
        """Parse the stored form. Raises KeyError, TypeError, ValueError or RegistryError."""
        fields = dict(what)
        keys = tuple(PersonalKey.of(one) for one in fields.pop("keys"))
        return cls(**fields, keys=keys, by=by, at=at, reason=reason)

    def key(self, key_id: str) -> PersonalKey | None:
        return next((one for one in self.keys if one.key_id == key_id), None)

    def with_key(self, key: PersonalKey, now: datetime) -> User:
        """Return the user with one more key. RegistryError when the key could not be used."""
        if key.expired(now):
            raise RegistryError("expires_at: is in the past")
        if key.tenant == "*" or not (self.tenants.keys() & {key.tenant, "*"}):
            raise RegistryError(f"tenant: {self.name} has no role in {key.tenant!r}")
        try:
            check_tenant("tenant", key.tenant)
        except ValueError as error:
            raise RegistryError(str(error)) from None
        return replace(self, keys=(*self.keys, key))

    def without_key(self, key_id: str) -> User:
        """Return the user without a key. RegistryError when there is no such key."""
        if self.key(key_id) is None:
            raise RegistryError(f"{self.name} has no key {key_id}")
        return replace(self, keys=tuple(one for one in self.keys if one.key_id != key_id))

    def export(self) -> dict[str, Any]:
        """Return the public fields as plain JSON data, without any hash."""
        shown = _shown(self.stored())
        keys = [one.export() for one in self.keys]
        return {**shown, "keys": keys, "by": self.by, "at": iso(self.at), "reason": self.reason}

    def stored(self) -> dict[str, Any]:
        """Return the form in which a change stores the user."""
        return {
            "name": self.name,
            "hash": self.hash,
            "tenants": {tenant: sorted(roles) for tenant, roles in sorted(self.tenants.items())},
            "active": self.active,
            "stamp": self.stamp,
            "keys": [one.stored() for one in self.keys],
        }


def roles_by_tenant(tenants: Mapping[str, Iterable[str]]) -> dict[str, frozenset[str]]:
    """Validate roles by tenant. RegistryError says what is wrong."""
    if not tenants:
        raise RegistryError("tenants: a user needs a role in at least one tenant")
    try:
        text_set("tenants", tenants)
        checked = {tenant: text_set("roles", roles) for tenant, roles in tenants.items()}
    except (TypeError, ValueError) as error:
        raise RegistryError(str(error)) from None
    empty = next((tenant for tenant, roles in checked.items() if not roles), None)
    if empty is not None:
        raise RegistryError(f"roles: tenant {empty[:100]!r} has no role")
    return checked


def without_hashes(what: Mapping[str, Any]) -> dict[str, Any]:
    """Return a change of a user without hashes, for records, lists and logs."""
    if not isinstance(what.get("user"), Mapping):
        return dict(what)
    user = _shown(what["user"])
    return {**what, "user": {**user, "keys": [_shown(one) for one in user.get("keys", ())]}}


def _shown(what: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in what.items() if name not in ("hash", "stamp")}


class UserIndex:
    """All users, oldest first."""

    def __init__(self) -> None:
        self._all: dict[str, User] = {}
        self._holders: dict[str, str] = {}
        """The name of the user by the id of a personal key."""

    def __iter__(self) -> Iterator[User]:
        return iter(self._all.values())

    def get(self, name: str) -> User | None:
        return self._all.get(folded(name))

    def holder(self, key_id: str) -> User | None:
        """Return the user who has this personal key."""
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

    def existing(self, name: str) -> User:
        """Return the user. RegistryError when there is none."""
        user = self.get(name)
        if user is None:
            raise RegistryError(
                f"there is no user {name[:100]!r}; `counterseal users list` lists all users"
            )
        return user
