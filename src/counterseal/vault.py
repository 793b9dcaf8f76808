"""The vault: values of calls, such as arguments and outputs, are encrypted before they are stored.

The first byte of a sealed value is its form. 0: plain, because there was no key. 1: the key's id
(8 bytes), a nonce (24 bytes), and the value encrypted with AES-256-GCM. Tenant and name are
authenticated with it, so that a value opens only under the name it was sealed for. The first half
of the nonce derives a key for each value, so that one key can seal any number of values.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from typing import Any, Final

from counterseal.errors import CountersealError

KEY_BYTES: Final = 32
_PLAIN: Final = b"\x00"
_SEALED: Final = b"\x01"
_ID_BYTES: Final = 8
_NONCE_BYTES: Final = 24
_HEAD_BYTES: Final = 1 + _ID_BYTES + _NONCE_BYTES
_TAG_BYTES: Final = 16


class VaultError(CountersealError):
    """A value can't be opened: its key is missing, or the value was changed."""


def vault_key_id(key: bytes) -> str:
    """Return a key's id, which reveals nothing about the key."""
    return sha256(b"counterseal vault key\0" + key).hexdigest()[: _ID_BYTES * 2]


class Vault:
    """Seals with the last key and opens with any. Without a key, values stay plain."""

    __slots__ = ("_id", "_key", "_keys")

    def __init__(self, *keys: bytes) -> None:
        if any(len(key) != KEY_BYTES for key in keys):
            raise ValueError(f"a vault key must have {KEY_BYTES} bytes")
        self._keys: Mapping[bytes, bytes] = {bytes.fromhex(vault_key_id(key)): key for key in keys}
        self._key = keys[-1] if keys else None
        self._id = bytes.fromhex(vault_key_id(keys[-1])) if keys else b""

    @property
    def key_id(self) -> str | None:
        """The id of the key that seals; None without a key."""
        return self._id.hex() or None

    def seal(self, tenant: str, name: str, raw: bytes) -> bytes:
        """Return the value sealed for this tenant and name."""
        key = self._key
        if key is None:
            return _PLAIN + raw
        nonce = os.urandom(_NONCE_BYTES)
        head = _SEALED + self._id + nonce
        sealed: bytes = _cipher(key, nonce).encrypt(nonce[12:], raw, _place(head, tenant, name))
        return head + sealed

    def open(self, tenant: str, name: str, sealed: bytes, *, sealed_only: bool = False) -> bytes:
        """Return the value that was sealed for this tenant and name, or raise VaultError.

        With `sealed_only`, a plain value is refused: it may have been put there by someone else.
        """
        kind = sealed[:1]
        if kind == _PLAIN:
            if sealed_only:
                raise VaultError(
                    f"{_shown(tenant, name)} is not sealed, although there is a vault key"
                )
            return sealed[1:]
        if kind != _SEALED or len(sealed) < _HEAD_BYTES + _TAG_BYTES:
            raise VaultError(f"{_shown(tenant, name)} is not a sealed value")
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
"""The vault without a key."""


def _place(head: bytes, tenant: str, name: str) -> bytes:
    """Return the authenticated data of a value. The length keeps (a, bc) and (ab, c) apart."""
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
    # Loaded only if there is a key: the library is large.
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - only with a key
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - as above

    return AESGCM, InvalidTag
