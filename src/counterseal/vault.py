"""The vault: what is kept of a call beside its record is sealed before a store sees it.

A sealed value begins with a byte that says how it is kept. 0: as it came, because there was no key.
1: the key's id (8 bytes), a nonce (24), and the value under AES-256-GCM. Tenant and name are sealed
in with it, so that a value opens only where it was put. A nonce's first half makes a key of its own
for each value: one key can seal as many as there will ever be.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from typing import Any, Final

from counterseal.errors import CountersealError

__all__ = ["KEY_BYTES", "PLAIN", "Vault", "VaultError", "vault_key_id"]

KEY_BYTES: Final = 32
_PLAIN: Final = b"\x00"
_SEALED: Final = b"\x01"
_ID_BYTES: Final = 8
_NONCE_BYTES: Final = 24
_HEAD_BYTES: Final = 1 + _ID_BYTES + _NONCE_BYTES
_TAG_BYTES: Final = 16


class VaultError(CountersealError):
    """A kept value can't be opened: its key is not here, or it is not what was kept."""


def vault_key_id(key: bytes) -> str:
    """A name for a key that tells nothing about it."""
    return sha256(b"counterseal vault key\0" + key).hexdigest()[: _ID_BYTES * 2]


class Vault:
    """Seals with the last key, opens with any. Without a key it keeps values as they come."""

    __slots__ = ("_id", "_key", "_keys")

    def __init__(self, *keys: bytes) -> None:
        if any(len(key) != KEY_BYTES for key in keys):
            raise ValueError(f"a vault's key has {KEY_BYTES} bytes")
        self._keys: Mapping[bytes, bytes] = {bytes.fromhex(vault_key_id(key)): key for key in keys}
        self._key = keys[-1] if keys else None
        self._id = bytes.fromhex(vault_key_id(keys[-1])) if keys else b""

    @property
    def key_id(self) -> str | None:
        """Of the key that seals; None without one."""
        return self._id.hex() or None

    def seal(self, tenant: str, name: str, raw: bytes) -> bytes:
        """The value as a store may keep it, under this name of this tenant."""
        key = self._key
        if key is None:
            return _PLAIN + raw
        nonce = os.urandom(_NONCE_BYTES)
        head = _SEALED + self._id + nonce
        sealed: bytes = _cipher(key, nonce).encrypt(nonce[12:], raw, _place(head, tenant, name))
        return head + sealed

    def open(self, tenant: str, name: str, sealed: bytes, *, sealed_only: bool = False) -> bytes:
        """The value that was sealed under this name. VaultError when that can't be.

        `sealed_only`: what lies there without a seal could be anybody's, and is not opened.
        """
        kind = sealed[:1]
        if kind == _PLAIN:
            if sealed_only:
                raise VaultError(f"{_shown(tenant, name)} is not sealed, although there is a key")
            return sealed[1:]
        if kind != _SEALED or len(sealed) < _HEAD_BYTES + _TAG_BYTES:
            raise VaultError(f"{_shown(tenant, name)} is not something that a vault has sealed")
        key_id, nonce = sealed[1 : 1 + _ID_BYTES], sealed[1 + _ID_BYTES : _HEAD_BYTES]
        key = self._keys.get(key_id)
        if key is None:
            raise VaultError(
                f"{_shown(tenant, name)} was sealed with the vault key {key_id.hex()}, which is not"
                " here; put its file back into the folder of keys"
            )
        place = _place(sealed[:_HEAD_BYTES], tenant, name)
        try:
            raw: bytes = _cipher(key, nonce).decrypt(nonce[12:], sealed[_HEAD_BYTES:], place)
        except _changed():
            raise VaultError(
                f"{_shown(tenant, name)} was changed since it was sealed, or is kept under another"
                " name than it was"
            ) from None
        return raw


PLAIN: Final = Vault()
"""The vault of who has no key."""


def _place(head: bytes, tenant: str, name: str) -> bytes:
    """What a value is bound to. The length keeps (a, bc) apart from (ab, c)."""
    whose = tenant.encode()
    return head + len(whose).to_bytes(4, "big") + whose + name.encode()


def _shown(tenant: str, name: str) -> str:
    return f"the value {name!r} of tenant {tenant!r}"


def _cipher(key: bytes, nonce: bytes) -> Any:
    aead, _ = _library()
    return aead(hmac.digest(key, nonce[:12], "sha256"))


def _changed() -> type[Exception]:
    _, changed = _library()
    return changed


@cache
def _library() -> tuple[Any, type[Exception]]:
    # Only who has a key pays for loading it.
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - only with a key
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - as above

    return AESGCM, InvalidTag
