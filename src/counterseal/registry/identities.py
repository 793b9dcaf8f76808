"""API keys: what is kept of each, and how one is told from a guess.

Pure. A key is made here, and shown once; what lasts is who its holder is and a hash of its secret.
That operators issue and revoke keys as they change anything else is `operating`'s work, and what a
key is shown to is the gateway's.
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

from counterseal.errors import RegistryError
from counterseal.proposal import Principal, text_set
from counterseal.registry.records import is_aware, iso

__all__ = [
    "ADDED",
    "MARK",
    "MOST_KEYS",
    "PERSON_MARK",
    "Credential",
    "CredentialIndex",
    "IssuedKey",
    "PersonalKey",
    "User",
    "UserIndex",
    "folded",
    "key_id_in",
    "new_key",
    "new_stamp",
    "person_key_text",
    "read_person_key",
    "reserved",
    "roles_by_tenant",
    "stored",
    "without_hashes",
]


MARK: Final = "cs_key_"
"""How every key begins: people and scanners of leaked secrets know it by that."""

_KEY: Final = re.compile(rf"{MARK}([0-9a-f]{{16}})_([A-Za-z0-9_-]{{43}})")
_ID: Final = re.compile(r"[0-9a-f]{16}")
_NAMED: Final = re.compile(rf"(?:cs_[a-z]+_)?({_ID.pattern})(?:_.*)?")
_SECRET_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")


class IssuedKey(NamedTuple):
    """A key as its holder shows it."""

    key_id: str
    secret: str

    @classmethod
    def read(cls, text: str) -> IssuedKey | None:
        """None when the text is no key of ours."""
        found = _KEY.fullmatch(text)
        return None if found is None else cls(found[1], found[2])

    @property
    def text(self) -> str:
        return f"{MARK}{self.key_id}_{self.secret}"

    @property
    def hash(self) -> str:
        """What may be kept of it.

        A plain hash will do: the secret is 256 random bits, which nobody can try out, so that the
        slow hashes that passwords need would only slow down every request.
        """
        return f"sha256:{sha256(self.secret.encode()).hexdigest()}"

    def __repr__(self) -> str:
        return f"Key(key_id={self.key_id!r})"


def new_key() -> IssuedKey:
    """One that never was before."""
    return IssuedKey(secrets.token_hex(8), secrets.token_urlsafe(32))


def key_id_in(text: str) -> str:
    """The id, as people give it: alone, or with what stands around it in a key.

    RegistryError does not repeat what may be a secret.
    """
    found = _NAMED.fullmatch(text.strip())
    if found is None:
        raise RegistryError("key: takes a key's id, 16 characters from 0-9 and a-f")
    return found[1]


def reserved(principal: Principal) -> str | None:
    """Why nobody can be called that, if so: on record, these names stand for Counterseal itself."""
    name = principal.agent.casefold()
    if name == "counterseal" or name.startswith("counterseal."):
        return "agent: names that begin with `counterseal.` are Counterseal's own"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """One key in force: who holds it, and until when. Revoking it takes it away."""

    key_id: str
    hash: str = field(repr=False)
    principal: Principal
    expires_at: datetime | None = None
    by: str = ""
    at: datetime
    reason: str = ""

    def __post_init__(self) -> None:
        if _ID.fullmatch(self.key_id) is None or _SECRET_HASH.fullmatch(self.hash) is None:
            raise RegistryError("key: its id or its hash is none")
        if self.expires_at is not None and not is_aware(self.expires_at):
            raise RegistryError("expires_at: takes a datetime with a time zone")
        wrong = reserved(self.principal)
        if wrong is not None:
            raise RegistryError(wrong)

    @classmethod
    def of(cls, what: Mapping[str, Any], *, by: str, at: datetime, reason: str) -> Credential:
        """From its stored form. KeyError, TypeError, ValueError or RegistryError."""
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

    def matches(self, key: IssuedKey) -> bool:
        return hmac.compare_digest(self.hash, key.hash)

    def expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def export(self) -> dict[str, Any]:
        """For whoever looks at it."""
        return {
            "key_id": self.key_id,
            **_holder(self.principal),
            "expires_at": iso(self.expires_at),
            "by": self.by,
            "at": iso(self.at),
            "reason": self.reason,
        }


def stored(key: IssuedKey, principal: Principal, expires_at: datetime | None) -> dict[str, Any]:
    """A key as a change keeps it."""
    return {
        "key_id": key.key_id,
        "hash": key.hash,
        **_holder(principal),
        "expires_at": iso(expires_at),
    }


def _holder(principal: Principal) -> dict[str, Any]:
    return {
        "tenant": principal.tenant,
        "agent": principal.agent,
        "user": principal.user,
        "roles": sorted(principal.roles),
        "scopes": sorted(principal.scopes),
    }


class CredentialIndex:
    """The keys in force, oldest first."""

    def __init__(self) -> None:
        self._all: dict[str, Credential] = {}

    def __iter__(self) -> Iterator[Credential]:
        return iter(self._all.values())

    def get(self, key_id: str) -> Credential | None:
        return self._all.get(key_id)

    def add(self, credential: Credential) -> None:
        self._all[credential.key_id] = credential

    def discard(self, key_id: str) -> None:
        self._all.pop(key_id, None)

    def check(self, credential: Credential, now: datetime) -> None:
        """Whether a new one makes sense. RegistryError says why not."""
        if credential.key_id in self._all:
            raise RegistryError(f"key {credential.key_id} is there already")
        if credential.expired(now):
            raise RegistryError("expires_at: is over already")

    def check_there(self, key_id: str) -> None:
        if key_id not in self._all:
            raise RegistryError(
                f"key {key_id} is not in force; `counterseal keys issued` lists those that are"
            )


# --- people ---


ADDED: Final = "added"
"""In a change: the user is new."""
PERSON_MARK: Final = "cs_person_"
"""How every personal key begins."""
MOST_KEYS: Final = 20
"""How many personal keys a user has at most."""

_USER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")
_STAMP: Final = re.compile(r"[0-9a-f]{16}")
_PASSWORD_HASH: Final = re.compile(r"\$argon2id\$[!-~]{20,300}")


def folded(name: str) -> str:
    """Under which two names are the same. What nobody can be called is nobody's name."""
    return name.strip().lower()[:200]


def new_stamp() -> str:
    """One that ends all sessions under the one before."""
    return secrets.token_hex(8)


def _is(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


# --- personal keys --------------------------------------------------------------------------------


def person_key_text(key: IssuedKey) -> str:
    """As its holder shows it: like an API key, but for how it begins."""
    return f"{PERSON_MARK}{key.key_id}_{key.secret}"


def read_person_key(text: str) -> IssuedKey | None:
    """None when the text is no personal key."""
    if not text.startswith(PERSON_MARK):
        return None
    return IssuedKey.read(MARK + text.removeprefix(PERSON_MARK))


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

    def matches(self, key: IssuedKey) -> bool:
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
        if not _is(_USER_NAME, self.name):
            raise RegistryError(
                "name: takes up to 100 letters and digits from ASCII, and . _ @ + - inside"
            )
        if self.name.lower().split(".")[0] == "counterseal":
            raise RegistryError("name: those that begin with `counterseal` are Counterseal's own")
        if not _is(_PASSWORD_HASH, self.hash) or not _is(_STAMP, self.stamp):
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


class UserIndex:
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
