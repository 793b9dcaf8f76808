"""Personal keys: a person without a browser, as they are at the moment of the request."""

import logging
from datetime import UTC, datetime, timedelta

import pytest

from counterseal.accounts import People
from counterseal.registry.identities import read_person_key


@pytest.fixture
def person(runtime, directory):
    return People(runtime, directory=directory).by_key


@pytest.fixture
async def key(accounts, ada):
    return (await accounts.issue_key("ada", reason="a script"))[0]


async def test_key_leads_to_its_person(person, key):
    found = await person(key)
    assert (found.name, found.tenant, found.roles) == ("ada", "acme", {"approver"})


async def test_change_of_roles_holds_from_the_next_request_on(person, key, accounts):
    await accounts.set_roles("ada", "acme", ["viewer"], reason="x")
    assert (await person(key)).roles == {"viewer"}
    await accounts.set_roles("ada", "globex", ["admin"], reason="x")
    await accounts.set_roles("ada", "acme", [], reason="x")
    assert await person(key) is None, "it was for acme"


async def test_new_password_leaves_keys_in_force(person, key, accounts):
    await accounts.set_password("ada", "another password", reason="x")
    assert await person(key) is not None


async def test_key_ends_when_it_is_revoked_and_with_its_holder(person, key, accounts, password):
    other = (await accounts.issue_key("ada", reason="another"))[0]
    await accounts.revoke_key(key, reason="it leaked")
    assert await person(key) is None
    assert await person(other) is not None
    await accounts.set_active("ada", active=False, reason="x")
    assert await person(other) is None
    await accounts.set_active("ada", active=True, reason="x")
    assert await person(other) is not None
    await accounts.remove("ada", reason="left")
    await accounts.add("ada", password, {"acme": ["admin"]}, reason="another one")
    assert await person(other) is None


async def test_key_ends_at_its_time(person, accounts, ada, clock):
    until = datetime.fromtimestamp(clock(), UTC) + timedelta(hours=1)
    text, _ = await accounts.issue_key("ada", until=until, reason="for an hour")
    clock.advance(3599)
    assert await person(text) is not None
    clock.advance(1)
    assert await person(text) is None


async def test_wrong_secret_is_refused_and_not_logged(person, key, caplog):
    read = read_person_key(key)
    wrong = key[:-1] + ("a" if key[-1] != "a" else "b")
    with caplog.at_level(logging.INFO):
        for text in (wrong, key[:-1], read.text, "", "cs_person_", f"{key} ", f"Bearer {key}"):
            assert await person(text) is None
    assert read.key_id in caplog.text
    assert read.secret[:-1] not in caplog.text
