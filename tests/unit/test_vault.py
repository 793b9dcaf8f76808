"""The vault: what goes in comes out, only where it was put, and only with its key."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.errors import CountersealError
from counterseal.vault import PLAIN, Vault, VaultError, vault_key_id

ONE, OTHER = os.urandom(32), os.urandom(32)
VAULT = Vault(ONE)


@given(st.binary(max_size=300), st.text(max_size=20), st.text(max_size=20))
def test_what_goes_in_comes_out(raw, tenant, name):
    for vault in (PLAIN, VAULT):
        assert vault.open(tenant, name, vault.seal(tenant, name, raw)) == raw


def test_without_a_key_a_value_is_kept_as_it_is_behind_one_byte():
    assert PLAIN.seal("acme", "call_1", b"raw") == b"\x00raw"
    assert PLAIN.key_id is None


def test_with_a_key_nothing_of_the_value_can_be_read():
    sealed = VAULT.seal("acme", "call_1", b"account 1234")
    assert b"1234" not in sealed
    assert sealed[:1] == b"\x01"
    assert sealed[1:9].hex() == VAULT.key_id == vault_key_id(ONE)
    assert ONE[:8] not in sealed


def test_the_same_value_is_never_sealed_alike():
    assert len({VAULT.seal("acme", "call_1", b"raw") for _ in range(50)}) == 50


@given(st.data())
def test_no_byte_of_a_sealed_value_can_be_changed(data):
    sealed = bytearray(VAULT.seal("acme", "call_1", b"raw"))
    place = data.draw(st.integers(1, len(sealed) - 1))
    sealed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(VaultError):
        VAULT.open("acme", "call_1", bytes(sealed))


@pytest.mark.parametrize(
    ("tenant", "name"), [("acme", "call_2"), ("zeta", "call_1"), ("acm", "ecall_1")]
)
def test_a_value_opens_only_where_it_was_put(tenant, name):
    sealed = VAULT.seal("acme", "call_1", b"raw")
    with pytest.raises(VaultError, match=f"{name!r} of tenant {tenant!r} was changed"):
        VAULT.open(tenant, name, sealed)


def test_a_new_key_seals_and_the_old_one_still_opens():
    old = VAULT.seal("acme", "call_1", b"old")
    both = Vault(ONE, OTHER)
    assert both.key_id == vault_key_id(OTHER)
    assert both.open("acme", "call_1", old) == b"old"
    new = both.seal("acme", "call_1", b"new")
    assert Vault(OTHER).open("acme", "call_1", new) == b"new"


def test_what_was_kept_before_there_was_a_key_can_still_be_read():
    assert VAULT.open("acme", "call_1", PLAIN.seal("acme", "call_1", b"raw")) == b"raw"


def test_where_only_sealed_values_count_a_plain_one_is_not_opened():
    plain, sealed = (vault.seal("acme", "call_1", b"raw") for vault in (PLAIN, VAULT))
    assert VAULT.open("acme", "call_1", sealed, sealed_only=True) == b"raw"
    with pytest.raises(VaultError, match="is not sealed, although there is a vault key"):
        VAULT.open("acme", "call_1", plain, sealed_only=True)


@pytest.mark.parametrize("vault", [PLAIN, Vault(OTHER)])
def test_a_missing_key_is_named(vault):
    sealed = VAULT.seal("acme", "call_1", b"raw")
    with pytest.raises(CountersealError, match=f"{vault_key_id(ONE)}, which is not here"):
        vault.open("acme", "call_1", sealed)


@pytest.mark.parametrize("sealed", [b"", b"\x02raw", b"raw", b"\x01", b"\x01" + b"x" * 40])
def test_what_no_vault_has_sealed_is_refused(sealed):
    with pytest.raises(VaultError, match="not a sealed value"):
        VAULT.open("acme", "call_1", sealed)


def test_a_key_of_another_length_is_refused():
    with pytest.raises(ValueError, match="32 bytes"):
        Vault(b"short")


def test_who_has_no_key_does_not_load_cryptography():
    code = (
        "import sys\nfrom counterseal.keys import KeyRing\nfrom counterseal.vault import PLAIN\n"
        "PLAIN.open('a', 'b', KeyRing().vault().seal('a', 'b', b'c'))\n"
        "print('cryptography' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
