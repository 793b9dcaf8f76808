"""The folder of keys: the newest signs, all verify, and what is open to others is refused."""

import os
import re
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from packaging.requirements import Requirement

from counterseal.keys import KeyRing, KeysError, Purpose, derived_key, new_key
from counterseal.vault import PLAIN, VaultError

TODAY = datetime(2026, 7, 31, tzinfo=UTC)
posix = pytest.mark.skipif(os.name != "posix", reason="only there has a file such a mode")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "keys"


def pem_of(private, password=None):
    locked = serialization.BestAvailableEncryption(password) if password else None
    return private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        locked or serialization.NoEncryption(),
    )


def write(folder, name, content, mode=0o600):
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_bytes(content)
    file.chmod(mode)
    return file


def refusal(folder):
    with pytest.raises(KeysError) as caught:
        KeyRing.load(folder)
    return str(caught.value)


# --- making ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("purpose", "name"),
    [
        (Purpose.AUDIT, "audit-2026-07-31.pem"),
        (Purpose.APPROVAL, "approval-2026-07-31.pem"),
        (Purpose.VAULT, "vault-2026-07-31.key"),
        (Purpose.SESSION, "session-2026-07-31.key"),
    ],
)
def test_a_new_key_has_a_name_that_sorts_by_time(folder, purpose, name):
    made = new_key(folder, purpose, TODAY)
    assert made.file == folder / name
    assert KeyRing.load(folder).newest(purpose).key_id == made.key_id


@posix
def test_a_new_key_is_for_its_owner_only(folder):
    made = new_key(folder, Purpose.AUDIT, TODAY)
    assert made.file.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o077 == 0


def test_a_new_folder_of_keys_is_kept_out_of_git(folder):
    new_key(folder, Purpose.AUDIT, TODAY)
    assert (folder / ".gitignore").read_text() == "*\n"


def test_the_twelfth_key_of_a_day_is_newer_than_the_ninth(folder):
    made = [new_key(folder, Purpose.AUDIT, TODAY) for _ in range(12)]
    assert made[-1].file.name == "audit-2026-07-31-12.pem"
    assert KeyRing.load(folder).signer("audit").key_id == made[-1].key_id
    assert len(KeyRing.load(folder).keys) == 12


def test_a_key_that_would_never_sign_is_not_made(folder):
    write(folder, "audit-2099-01-01.pem", pem_of(ed25519.Ed25519PrivateKey.generate()))
    with pytest.raises(KeysError, match=r"would sort before audit-2099-01-01\.pem"):
        new_key(folder, Purpose.AUDIT, TODAY)
    assert len(list(folder.glob("*.pem"))) == 1


# --- using ----------------------------------------------------------------------------------------


def test_the_newest_signs_and_all_verify(folder):
    old = new_key(folder, Purpose.AUDIT, TODAY)
    signature = KeyRing.load(folder).signer("audit").sign(b"message")
    new = new_key(folder, Purpose.AUDIT, TODAY)
    ring = KeyRing.load(folder)
    assert ring.signer("audit").key_id == new.key_id
    assert ring.verify("audit", old.key_id, b"message", signature) is True
    assert ring.verify("audit", new.key_id, b"message", signature) is False
    assert ring.verify("audit", old.key_id, b"another", signature) is False
    assert ring.verify("audit", old.key_id, b"message", b"") is False


def test_a_key_that_is_not_there_is_unknown_and_not_wrong(folder):
    made = new_key(folder, Purpose.AUDIT, TODAY)
    ring = KeyRing.load(folder)
    assert ring.verify("audit", "0" * 16, b"message", bytes(64)) is None
    assert ring.verify("approval", made.key_id, b"message", bytes(64)) is None


def test_purposes_do_not_sign_for_one_another(folder):
    new_key(folder, Purpose.AUDIT, TODAY)
    ring = KeyRing.load(folder)
    assert ring.signer("approval") is None
    assert ring.signer("vault") is None


def test_a_public_key_verifies_and_does_not_sign(folder, tmp_path):
    made = new_key(folder, Purpose.AUDIT, TODAY)
    signature = KeyRing.load(folder).signer("audit").sign(b"message")
    other = tmp_path / "auditor"
    write(other, made.file.name, made.public_pem().encode(), mode=0o644)
    ring = KeyRing.load(other)
    assert ring.signer("audit") is None
    assert ring.verify("audit", made.key_id, b"message", signature) is True


def test_a_ring_seals_with_its_newest_vault_key(folder):
    new_key(folder, Purpose.VAULT, TODAY)
    sealed = KeyRing.load(folder).vault().seal("acme", "call_1", b"raw")
    newer = new_key(folder, Purpose.VAULT, TODAY)
    vault = KeyRing.load(folder).vault()
    assert vault.key_id == newer.key_id
    assert vault.open("acme", "call_1", sealed) == b"raw"
    with pytest.raises(VaultError, match="put its file back"):
        KeyRing().vault().open("acme", "call_1", sealed)


def test_sessions_outlast_new_vault_keys_and_end_with_a_new_session_key(folder):
    new_key(folder, Purpose.VAULT, TODAY)
    sealed = [derived_key(KeyRing.load(folder), "sessions")]
    for purpose in (Purpose.VAULT, Purpose.SESSION, Purpose.VAULT, Purpose.SESSION):
        new_key(folder, purpose, TODAY)
        sealed.append(derived_key(KeyRing.load(folder), "sessions"))
    first, rotated, own, still, ended = sealed
    assert first == rotated
    assert own == still
    assert len({first, own, ended}) == 3


def test_a_session_key_opens_nothing_of_the_vault(folder):
    new_key(folder, Purpose.SESSION, TODAY)
    assert KeyRing.load(folder).vault() is PLAIN


def test_an_empty_ring_signs_and_seals_nothing():
    ring = KeyRing()
    assert ring.signer("audit") is None
    assert ring.vault().seal("acme", "call_1", b"raw") == b"\x00raw"


def test_no_secret_is_in_what_is_shown(folder):
    for purpose in Purpose:
        made = new_key(folder, purpose, TODAY)
        shown = f"{made!r}{KeyRing.load(folder).signer(purpose)!r}"
        secret = made.file.read_text().splitlines()
        assert not any(line in shown for line in secret)
        assert "private=" not in shown


# --- what is refused ------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
@pytest.mark.parametrize("purpose", [Purpose.AUDIT, Purpose.VAULT])
def test_a_key_that_others_may_read_is_refused_with_the_fix(folder, purpose, mode):
    file = new_key(folder, purpose, TODAY).file
    file.chmod(mode)
    told = f"{file}: other users may read it; run `chmod 600 {file}`"
    assert refusal(folder) == told


@posix
@pytest.mark.parametrize("mode", [0o720, 0o702, 0o775, 0o777, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused_with_the_fix(folder, mode):
    """A key that another user puts there would be the newest, and sign."""
    new_key(folder, Purpose.AUDIT, TODAY)
    folder.chmod(mode)
    before = sorted(folder.iterdir())
    told = f"{folder}: other users may write to it; run `chmod go-w {folder}`"
    for use in (lambda: KeyRing.load(folder), lambda: new_key(folder, Purpose.AUDIT, TODAY)):
        with pytest.raises(KeysError, match=re.escape(told)):
            use()
    assert sorted(folder.iterdir()) == before, "no key is made there"
    folder.chmod(0o755)
    assert len(KeyRing.load(folder).keys) == 1


@posix
def test_a_public_key_that_others_may_replace_is_refused(folder):
    public = new_key(folder, Purpose.AUDIT, TODAY).public_pem()
    file = write(folder, "audit-2026-08-01.pem", public.encode(), mode=0o644)
    assert len(KeyRing.load(folder).keys) == 2
    file.chmod(0o664)
    with pytest.raises(KeysError, match="other users may write to it"):
        KeyRing.load(folder)


@posix
def test_a_folder_of_another_user_is_refused(folder, monkeypatch):
    new_key(folder, Purpose.AUDIT, TODAY)
    os.chown(folder, 4321, -1) if os.geteuid() == 0 else monkeypatch.setattr(
        os, "geteuid", lambda: 4321
    )
    with pytest.raises(KeysError, match="it belongs to another user"):
        KeyRing.load(folder)


@pytest.mark.parametrize("name", ["audit.pem", "signing-1.pem", "vault-1.pem", "audit-1.key"])
def test_a_key_with_another_name_is_not_overlooked(folder, name):
    file = write(folder, name, b"")
    assert refusal(folder).startswith(f"{file}: no key is called so; rename it")


def test_other_files_are_left_alone(folder):
    write(folder, "README.md", b"These are keys.")
    (folder / "audit-old.pem").mkdir()
    assert KeyRing.load(folder).keys == ()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("audit-1.pem", b"nonsense", "not a key in PEM form"),
        (
            "audit-1.pem",
            b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
            "not a key",
        ),
        ("vault-1.key", b"nonsense", "32 random bytes in base64"),
        ("vault-1.key", b"AAAA\n", "32 random bytes in base64"),
    ],
)
def test_what_is_no_key_is_named_with_its_file(folder, name, content, message):
    file = write(folder, name, content)
    told = refusal(folder)
    assert told.startswith(f"{file}: ")
    assert message in told


def test_another_kind_of_key_is_refused(folder):
    write(folder, "audit-1.pem", pem_of(ec.generate_private_key(ec.SECP256R1())))
    assert "not an Ed25519 key" in refusal(folder)


def test_a_locked_key_is_refused(folder):
    write(folder, "audit-1.pem", pem_of(ed25519.Ed25519PrivateKey.generate(), b"secret"))
    assert "has a password" in refusal(folder)


def test_a_folder_that_is_not_there_is_named(folder):
    assert refusal(folder).startswith(f"{folder}: the folder does not exist")


def test_a_vault_key_has_no_public_half(folder):
    with pytest.raises(KeysError, match="no public key"):
        new_key(folder, Purpose.VAULT, TODAY).public_pem()


def test_a_folder_of_vault_keys_alone_loads_no_cryptography(folder):
    new_key(folder, Purpose.VAULT, TODAY)
    code = (
        "import sys\nfrom counterseal.keys import KeyRing\n"
        f"KeyRing.load({str(folder)!r})\nprint('cryptography' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_library_of_tokens_is_one_without_known_faults():
    """PyJWT 2.10.0 accepted an issuer that was only a part of the expected one (CVE-2024-53861)."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    needed = [Requirement(one) for one in project["project"]["dependencies"]]
    (tokens,) = [one for one in needed if one.name == "pyjwt"]
    assert not tokens.specifier.contains("2.10.0")
    assert tokens.specifier.contains("2.10.1")
