"""Keys: files in a folder outside the store that sign the record and approvals and seal the vault.

`audit-….pem` and `approval-….pem` hold Ed25519 keys; `vault-….key` and `session-….key` hold 32
random bytes in base64. The newest key of a purpose (the last by name) signs or seals; all of them
verify or open, so rotation means adding a file. Only the newest session key is used. A PEM file
with only a public key verifies and never signs.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from counterseal.errors import CountersealError
from counterseal.vault import KEY_BYTES, PLAIN, Vault, vault_key_id

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

_NAME: Final = re.compile(r"(audit|approval)-[\w.-]+\.pem|(vault|session)-[\w.-]+\.key")
_NUMBERS: Final = re.compile(r"(\d+)")
_POSIX: Final = os.name == "posix"
_AGAIN: Final = ("", *(f"-{number}" for number in range(2, 1000)))
"""Ends of the names of keys that are made on one day."""


class KeysError(CountersealError):
    """A key, or the keys folder, can't be used. The message names the file and the fix."""


class Purpose(StrEnum):
    AUDIT = "audit"
    """Signs the checkpoints of the audit log."""
    APPROVAL = "approval"
    """Signs approval tokens."""
    VAULT = "vault"
    """Seals values in the vault."""
    SESSION = "session"
    """Derives the secrets that workers share: for cursors, MCP request state and fingerprints.

    Without one, the oldest vault key is used.
    """


_SECRET: Final = (Purpose.VAULT, Purpose.SESSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key file. Its content is never shown."""

    purpose: Purpose
    key_id: str
    file: Path
    created: datetime
    private: Ed25519PrivateKey | None = field(default=None, repr=False)
    public: Ed25519PublicKey | None = field(default=None, repr=False)
    secret: bytes | None = field(default=None, repr=False)
    """The bytes of a symmetric key."""

    @property
    def is_whole(self) -> bool:
        """Return whether the key can sign or seal, not only verify."""
        return self.private is not None or self.secret is not None

    def public_pem(self) -> str:
        """Return the public key in PEM form."""
        if self.public is None:
            raise KeysError(f"{self.file}: a {self.purpose} key has no public key")
        from cryptography.hazmat.primitives import serialization as form  # noqa: PLC0415 - loaded

        pem: bytes = self.public.public_bytes(
            form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo
        )
        return pem.decode()


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs with one key."""

    key_id: str
    sign: Callable[[bytes], bytes] = field(repr=False)


class KeyRing:
    """All keys of a folder. An empty key ring signs and seals nothing."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:

        def age(key: Key) -> tuple[str, list[tuple[int, str]], str]:
            # By purpose, then by name, with 10 after 9.
            parts = _NUMBERS.split(key.file.stem)
            numbered = [(int(part) if part.isdigit() else -1, part) for part in parts]
            return key.purpose, numbered, key.key_id

        self.keys: Sequence[Key] = tuple(sorted(keys, key=age))
        self._by_id = {(key.purpose, key.key_id): key for key in self.keys}
        sealing = [key for key in self.keys if key.purpose is Purpose.VAULT]
        secrets = [key.secret for key in sealing if key.secret is not None]
        self._vault = Vault(*secrets) if secrets else PLAIN

    @classmethod
    def load(cls, path: str | Path) -> KeyRing:
        """Read the keys of a folder. Raise KeysError for an unusable or exposed key."""
        folder = Path(path)
        if not folder.is_dir():
            raise KeysError(
                f"{folder}: the folder does not exist; create it with `counterseal keys new audit`"
            )
        _refuse_writable(folder)
        files = [file for file in sorted(folder.iterdir()) if file.suffix in (".pem", ".key")]
        return cls(_read(file) for file in files if file.is_file())

    def newest(self, purpose: str) -> Key | None:
        """Return the newest key that can sign or seal; None if there is none."""
        whole = [key for key in self.keys if key.purpose == purpose and key.is_whole]
        return whole[-1] if whole else None

    def signer(self, purpose: str) -> Signer | None:
        """Return a signer with the newest key of a purpose; None if there is none."""
        key = self.newest(purpose)
        if key is None or key.private is None:
            return None
        return Signer(key.key_id, key.private.sign)

    def verify(self, purpose: str, key_id: str, message: bytes, signature: bytes) -> bool | None:
        """Return whether the key made this signature; None if the key is not in the folder."""
        key = self._by_id.get((Purpose(purpose), key_id))
        if key is None or key.public is None:
            return None
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - loaded

        try:
            key.public.verify(signature, message)
        except InvalidSignature:
            return False
        return True

    def vault(self) -> Vault:
        """Return the vault of these keys; without a vault key, values stay plain."""
        return self._vault


def fingerprint_key(ring: KeyRing | None) -> bytes | None:
    """Return the key of fingerprints: of the oldest vault key, else of the oldest session key.

    Fingerprints on record stay comparable when keys of either kind are rotated.
    """
    keys = () if ring is None else ring.keys
    oldest = {key.purpose: key for key in reversed(keys)}
    chosen = oldest.get(Purpose.VAULT) or oldest.get(Purpose.SESSION)
    return _derived(chosen, "fingerprints")


def derived_key(ring: KeyRing | None, purpose: str) -> bytes | None:
    """Return a secret that all workers share, derived from the newest session key.

    Without a session key, the oldest vault key is used: it stays the same when vault keys are
    rotated.
    """
    if ring is None:
        return None
    vaults = (key for key in ring.keys if key.purpose is Purpose.VAULT)
    return _derived(ring.newest(Purpose.SESSION) or next(vaults, None), purpose)


def _derived(key: Key | None, purpose: str) -> bytes | None:
    secret = None if key is None else key.secret
    return None if secret is None else sha256(f"counterseal {purpose}\0".encode() + secret).digest()


# --- reading --------------------------------------------------------------------------------------


def _read(file: Path) -> Key:
    if _NAME.fullmatch(file.name) is None:
        raise KeysError(
            f"{file}: no key is called so; rename it to audit-….pem, approval-….pem, vault-….key or"
            " session-….key, or put it elsewhere"
        )
    purpose = Purpose(file.name.partition("-")[0])
    try:
        raw, about = file.read_bytes(), file.stat()
    except OSError as error:
        raise KeysError(f"{file}: can't be read: {error.strerror}") from None
    private, public, secret = None, None, b""
    if purpose not in _SECRET:
        private, public = _pair(file, raw)
        key_id = sha256(public.public_bytes_raw()).hexdigest()[:16]
    else:
        with suppress(binascii.Error):
            secret = base64.b64decode(raw.strip(), validate=True)
        if len(secret) != KEY_BYTES:
            raise KeysError(
                f"{file}: a {purpose} key is {KEY_BYTES} random bytes in base64;"
                f" `counterseal keys new {purpose}` makes one"
            )
        key_id = vault_key_id(secret)
    is_whole = private is not None or bool(secret)
    if _POSIX and is_whole and about.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeysError(f"{file}: other users may read it; run `chmod 600 {file}`")
    _refuse_writable(file)
    return Key(
        purpose=purpose,
        key_id=key_id,
        file=file,
        created=datetime.fromtimestamp(about.st_mtime, UTC),
        private=private,
        public=public,
        secret=secret or None,
    )


def _refuse_writable(path: Path) -> None:
    """Refuse a folder, or a public key, that other users may change: their keys would be used."""
    if not _POSIX or os.statvfs(path).f_flag & os.ST_RDONLY:
        return
    about = path.stat()
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise KeysError(f"{path}: other users may write to it; run `chmod go-w {path}`")
    if about.st_uid not in (0, os.geteuid()):
        raise KeysError(f"{path}: it belongs to another user; run `chown {os.geteuid()} {path}`")


def _pair(file: Path, raw: bytes) -> tuple[Ed25519PrivateKey | None, Ed25519PublicKey]:
    """Read the private and public key, or only the public key if the file has no other."""
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - only with a key
    from cryptography.hazmat.primitives import serialization as form  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - as above

    key: Any
    try:
        if b"PRIVATE KEY" in raw:
            key = form.load_pem_private_key(raw, password=None)
        else:
            key = form.load_pem_public_key(raw)
    except TypeError:
        raise KeysError(
            f"{file}: the key has a password; store it without one, readable only by its owner"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise KeysError(
            f"{file}: not a key in PEM form; create one with `counterseal keys new`"
        ) from None
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key, key.public_key()
    if isinstance(key, ed25519.Ed25519PublicKey):
        return None, key
    raise KeysError(f"{file}: not an Ed25519 key; create one with `counterseal keys new`")


# --- making ---------------------------------------------------------------------------------------


def new_key(folder: Path, purpose: Purpose, today: datetime) -> Key:
    """Create a new key of a purpose, and the folder if needed, with a .gitignore."""
    from cryptography.hazmat.primitives import serialization as form  # noqa: PLC0415 - on demand
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - as above

    text, suffix = base64.b64encode(os.urandom(KEY_BYTES)) + b"\n", "key"
    if purpose not in _SECRET:
        suffix = "pem"
        text = ed25519.Ed25519PrivateKey.generate().private_bytes(
            form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
        )
    try:
        if not folder.exists():
            folder.mkdir(parents=True, mode=0o700)
            (folder / ".gitignore").write_text("*\n", encoding="utf-8")
        _refuse_writable(folder)
        names = [f"{purpose}-{today:%Y-%m-%d}{again}.{suffix}" for again in _AGAIN]
        made = next((folder / name for name in names if _write_new(folder / name, text)), None)
        newest = KeyRing.load(folder).newest(purpose)
        if made is not None and newest is not None and newest.file != made:
            made.unlink()
    except OSError as error:
        raise KeysError(f"{error.filename or folder}: {error.strerror}") from None
    if made is None or newest is None:
        raise KeysError(
            f"{folder}: too many {purpose} keys were made today; check what creates them"
        )
    if newest.file != made:
        last = f"{newest.file.name}, which would stay in use"
        raise KeysError(f"{made}: would sort before {last}; rename that file")
    return newest


def _write_new(file: Path, text: bytes) -> bool:
    """Write a file that only its owner can read. Return False if the file exists."""
    try:
        handle = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(handle, "wb") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    return True
