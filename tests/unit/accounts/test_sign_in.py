"""Signing in: one answer for every failure, waits for who guesses, and all of it on record."""

import asyncio
import json

import pytest

from counterseal.accounts import People, RefusalReason, SignInRefused
from counterseal.accounts.users import BusyError, Passwords
from counterseal.errors import StoreError
from counterseal.operations.operator import ALL_TENANTS
from counterseal.registry.identities import User

WRONG = SignInRefused(RefusalReason.WRONG)
HERE = "192.0.2.7"


@pytest.fixture
def door(runtime, directory, passwords, steady):
    return People(runtime, directory=directory, passwords=passwords, steady=steady)


@pytest.fixture
def attempt(door, password):
    async def attempt(name="ada", given=password, source=HERE):
        return await door.attempt(name, given, source=source)

    return attempt


@pytest.fixture
def on_record(runtime):
    async def on_record(tenant="acme"):
        found = [event for _, event in await runtime.store.events(tenant)]
        return [one for one in found if one.type.value.startswith("person.")]

    return on_record


@pytest.mark.parametrize("name", ["ada", "ADA", " Ada "])
async def test_right_password_signs_in_however_the_name_is_written(attempt, ada, name):
    assert await attempt(name) == ada


async def test_every_failure_has_the_same_answer(attempt, accounts, ada, password):
    await accounts.add("eve", password, {"acme": ["viewer"]}, reason="x")
    await accounts.set_active("eve", active=False, reason="left")
    answers = [
        await attempt(given="wrong"),
        await attempt("eve"),
        await attempt("nobody"),
        await attempt("x" * 10_000),
        await attempt(given=""),
        await attempt("", ""),
        await attempt("a\0\ud800", "\0\ud800"),
    ]
    assert answers == [WRONG] * 7
    assert WRONG.message == "Wrong name or password."


async def test_every_failure_costs_one_hash(
    attempt, accounts, ada, password, passwords, monkeypatch
):
    await accounts.add("eve", password, {"acme": ["viewer"]}, reason="x")
    await accounts.set_active("eve", active=False, reason="left")
    seen = []
    real = passwords.matches

    async def spied(kept, given):
        seen.append(kept is None)
        return await real(kept, given)

    monkeypatch.setattr(passwords, "matches", spied)
    for name in ("ada", "eve", "nobody"):
        assert await attempt(name, "wrong") == WRONG
    assert seen == [False, True, True]


async def test_who_fails_too_often_waits_although_the_password_is_right(attempt, ada, steady):
    for _ in range(5):
        assert await attempt(given="wrong") == WRONG
    assert await attempt() == SignInRefused(RefusalReason.LOCKED, 30)
    assert "30 seconds" in (await attempt()).message
    steady.advance(30)
    assert await attempt() == ada


async def test_guesses_made_all_at_once_are_no_more_than_those_made_one_by_one(attempt, ada):
    answers = await asyncio.gather(*(attempt(given=f"guess {n}") for n in range(50)))
    assert answers.count(WRONG) == 5
    assert {one.reason for one in answers} == {RefusalReason.WRONG, RefusalReason.LOCKED}


async def test_wait_is_the_same_for_unknown_names(attempt, ada):
    for name in ("ada", "nobody"):
        answers = [await attempt(name, "wrong", source=f"192.0.2.{n}") for n in range(6)]
        assert answers == [WRONG] * 5 + [SignInRefused(RefusalReason.LOCKED, 30)]


async def test_wait_of_minutes_is_told_in_minutes():
    assert "in 15 minutes." in SignInRefused(RefusalReason.LOCKED, 900).message
    assert "in 5 seconds." in SignInRefused(RefusalReason.BUSY, 5).message


async def test_attempt_that_was_not_looked_at_does_not_count(attempt, ada, passwords, monkeypatch):
    async def full(*_):
        raise BusyError("full")

    with monkeypatch.context() as patched:
        patched.setattr(passwords, "matches", full)
        for _ in range(30):
            assert (await attempt()).reason is RefusalReason.BUSY
    assert await attempt() == ada


# --- on record ------------------------------------------------------------------------------------


async def test_success_is_on_record_in_every_tenant_of_the_user(attempt, accounts, ada, on_record):
    await accounts.set_roles("ada", "globex", ["viewer"], reason="x")
    await attempt()
    for tenant in ("acme", "globex"):
        (event,) = await on_record(tenant)
        assert (event.type, event.caller.user) == ("person.signed_in", "ada")
        assert event.body == {"source": HERE}
    assert await on_record(ALL_TENANTS) == []


async def test_failure_is_on_record_with_a_reason_that_the_answer_does_not_reveal(
    attempt, accounts, ada, on_record
):
    await attempt(given="wrong")
    await accounts.set_active("ada", active=False, reason="left")
    await attempt()
    events = await on_record()
    assert [(one.type, one.caller.user, one.body["reason"]) for one in events] == [
        ("person.refused", "ada", "password"),
        ("person.refused", "ada", "disabled"),
    ]


async def test_password_in_the_wrong_field_is_not_on_record(attempt, on_record, password, runtime):
    await attempt(password, "wrong")
    await attempt("nobody", password)
    events = await on_record(ALL_TENANTS)
    assert [one.body["reason"] for one in events] == ["unknown", "unknown"]
    assert [one.caller.user for one in events] == [None, None]
    assert events[0].body["name"] == runtime.fingerprint("*", password)
    assert password not in json.dumps([one.record("evt_1") for one in events])


async def test_wait_that_begins_is_on_record_and_what_comes_during_it_is_not(
    attempt, ada, on_record
):
    for _ in range(50):
        await attempt(given="wrong")
    events = await on_record()
    assert [one.body.get("locked_for") for one in events] == [None, None, None, None, 30]


async def test_source_is_on_record_in_a_few_words_at_most(attempt, ada, on_record):
    await attempt(source="x" * 10_000)
    assert (await on_record())[0].body == {"source": "x" * 100}


async def test_signing_in_fails_if_it_can_not_be_put_on_record(attempt, ada, runtime, monkeypatch):
    async def full(*_):
        raise StoreError("the disk is full")

    monkeypatch.setattr(runtime.store, "write", full)
    with pytest.raises(StoreError):
        await attempt()


# --- other parameters -----------------------------------------------------------------------------


async def test_outdated_hash_is_made_anew_and_ends_no_session(
    runtime, directory, ada, password, passwords
):
    stronger = Passwords(time_cost=2, memory_kib=8)
    door = People(runtime, directory=directory, passwords=stronger)
    found = await door.attempt("ada", password, source=HERE)
    assert isinstance(found, User)
    assert found.hash != ada.hash
    assert found.stamp == ada.stamp
    assert not stronger.outdated(found.hash)
    assert await stronger.matches(found.hash, password)
    assert runtime.registry.changes[-1].user_change == "rehashed"
    before = runtime.registry.stored
    assert await door.attempt("ada", password, source=HERE) == found
    assert await door.attempt("ada", "wrong", source=HERE) == WRONG
    assert runtime.registry.stored == before


async def test_password_that_was_changed_meanwhile_is_not_undone_by_a_new_hash(
    runtime, accounts, ada, password
):
    await accounts.set_password("ada", "another password", reason="it leaked")
    with pytest.raises(Exception, match="changed meanwhile"):
        await accounts.rehash(ada, password)
    assert runtime.registry.changes[-1].user_change == "password"
