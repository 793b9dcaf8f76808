"""API keys: what is kept of each, and how one is told from a guess.

Pure. A key is made here, and shown once; what lasts is who its holder is and a hash of its secret.
That operators issue and revoke keys as they change anything else is `operating`'s work, and what a
key is shown to is the gateway's.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, NamedTuple

from counterseal.errors import RegistryError
from counterseal.proposal import Principal
from counterseal.registry.records import is_aware, iso

__all__ = [
    "MARK",
    "Credential",
    "Credentials",
    "Key",
    "key_id_in",
    "new_key",
    "reserved",
    "stored",
]

MARK: Final = "cs_key_"
"""How every key begins: people and scanners of leaked secrets know it by that."""

_KEY: Final = re.compile(rf"{MARK}([0-9a-f]{{16}})_([A-Za-z0-9_-]{{43}})")
_ID: Final = re.compile(r"[0-9a-f]{16}")
_NAMED: Final = re.compile(rf"(?:cs_[a-z]+_)?({_ID.pattern})(?:_.*)?")
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")


class Key(NamedTuple):
    """A key as its holder shows it."""

    key_id: str
    secret: str

    @classmethod
    def read(cls, text: str) -> Key | None:
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


def new_key() -> Key:
    """One that never was before."""
    return Key(secrets.token_hex(8), secrets.token_urlsafe(32))


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
        if _ID.fullmatch(self.key_id) is None or _HASH.fullmatch(self.hash) is None:
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

    def matches(self, key: Key) -> bool:
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


def stored(key: Key, principal: Principal, expires_at: datetime | None) -> dict[str, Any]:
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


class Credentials:
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
