"""Accounts: users, passwords, roles and keys are changed for every worker, with a reason."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from counterseal.accounts import Accounts
from counterseal.errors import RegistryError
from counterseal.operations.operator import ALL_TENANTS, Operator, catch_up
from counterseal.registry import Registry
from counterseal.registry.identities import read_person_key


@pytest.fixture
def registry(runtime):
    return runtime.registry


async def test_new_user_can_be_recognised_by_the_password(registry, ada, passwords, password):
    assert registry.user("ada") == ada
    assert (ada.by, ada.reason, ada.active) == ("root", "the desk", True)
    assert await passwords.matches(ada.hash, password)
    assert not await passwords.matches(ada.hash, password + "!")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("short", "at least 12 characters"),
        ("e\u0301" * 6, "at least 12 characters"),
        ("x" * 1025, "at most 1,024 bytes"),
        ("correct horse\0", "not text"),
        ("correct horse\ud800", "not text"),
    ],
)
async def test_password_that_is_unfit_is_refused_and_not_repeated(accounts, ada, wrong, said):
    for change in (
        accounts.add("bob", wrong, {"acme": ["viewer"]}, reason="x"),
        accounts.set_password("ada", wrong, reason="x"),
    ):
        with pytest.raises(RegistryError, match=said) as refused:
            await change
        assert wrong not in str(refused.value)


async def test_long_password_is_taken(accounts, passwords):
    made = await accounts.add("bob", "x" * 1024, {"acme": ["viewer"]}, reason="new")
    assert await passwords.matches(made.hash, "x" * 1024)
    assert not await passwords.matches(made.hash, "x" * 1023)


async def test_what_takes_something_away_ends_the_sessions_and_nothing_else_does(accounts, ada):
    changes = (
        accounts.set_password("ada", "another password", reason="x"),
        accounts.set_roles("ada", "acme", ["viewer"], reason="x"),
        accounts.set_active("ada", active=False, reason="x"),
        accounts.set_active("ada", active=True, reason="x"),
        accounts.sign_out("ada", reason="x"),
    )
    stamps = [ada.stamp, *[(await change).stamp for change in changes]]
    assert len(set(stamps)) == 6
    _, key = await accounts.issue_key("ada", reason="x")
    assert (await accounts.revoke_key(key.key_id, reason="x")).stamp == stamps[-1]


async def test_user_who_is_added_again_is_a_new_account(accounts, ada, password):
    await accounts.remove("ADA", reason="left")
    again = await accounts.add("ada", password, {"acme": ["approver"]}, reason="back")
    assert again.stamp != ada.stamp
    assert again.hash != ada.hash


async def test_roles_are_set_in_one_tenant_and_kept_in_others(accounts, ada):
    more = await accounts.set_roles("ada", "globex", ["admin", "compliance"], reason="x")
    assert more.tenants == {"acme": {"approver"}, "globex": {"admin", "compliance"}}
    less = await accounts.set_roles("ada", "acme", [], reason="x")
    assert less.tenants == {"globex": {"admin", "compliance"}}
    with pytest.raises(RegistryError, match="at least one tenant"):
        await accounts.set_roles("ada", "globex", [], reason="x")
    with pytest.raises(RegistryError, match="must be a list of strings"):
        await accounts.set_roles("ada", "globex", "admin", reason="x")


async def test_role_or_key_of_a_tenant_that_looks_like_another_is_refused(accounts, ada, password):
    changes = (
        accounts.add("bob", password, {"acme corp": ["viewer"]}, reason="x"),
        accounts.set_roles("ada", "acme\u200b", ["viewer"], reason="x"),
    )
    for change in changes:
        with pytest.raises(RegistryError, match=r"^tenant must not contain .*; use letters"):
            await change
    await accounts.set_roles("ada", "*", ["viewer"], reason="x")
    with pytest.raises(RegistryError, match=r"^tenant must not contain a space"):
        await accounts.issue_key("ada", "acme ", reason="x")


async def test_key_is_for_the_only_tenant_or_the_one_that_is_named(accounts, ada):
    text, key = await accounts.issue_key("ada", reason="a script")
    assert read_person_key(text).key_id == key.key_id
    assert key.tenant == "acme"
    await accounts.set_roles("ada", "globex", ["viewer"], reason="x")
    with pytest.raises(RegistryError, match="works in several"):
        await accounts.issue_key("ada", reason="x")
    assert (await accounts.issue_key("ada", "globex", reason="x"))[1].tenant == "globex"
    with pytest.raises(RegistryError, match="no role in 'initech'"):
        await accounts.issue_key("ada", "initech", reason="x")


async def test_key_that_is_over_or_gone_can_not_be_issued_or_revoked(accounts, ada, clock):
    now = datetime.fromtimestamp(clock(), UTC)
    with pytest.raises(RegistryError, match="in the past"):
        await accounts.issue_key("ada", until=now, reason="x")
    _, key = await accounts.issue_key("ada", until=now + timedelta(1), reason="x")
    await accounts.revoke_key(f"cs_person_{key.key_id}_secret", reason="x")
    with pytest.raises(RegistryError, match="no user holds"):
        await accounts.revoke_key(key.key_id, reason="x")


@pytest.mark.parametrize("name", ["bob", "", "a" * 500])
async def test_a_user_that_does_not_exist_can_not_be_changed(accounts, ada, registry, name):
    before = registry.stored
    for change in (
        accounts.set_password(name, "another password", reason="x"),
        accounts.set_roles(name, "acme", ["viewer"], reason="x"),
        accounts.remove(name, reason="x"),
        accounts.issue_key(name, reason="x"),
    ):
        with pytest.raises(RegistryError, match="there is no user"):
            await change
    assert registry.stored == before


async def test_changes_of_one_user_at_the_same_time_all_hold(runtime, ada, passwords):
    workers = [
        Accounts(Operator(runtime.store, Registry(), by=f"root{n}"), passwords) for n in range(3)
    ]
    await asyncio.gather(
        *(one.set_roles("ada", f"t{n}", ["viewer"], reason="x") for n, one in enumerate(workers)),
    )
    await catch_up(runtime.store, runtime.registry)
    assert runtime.registry.user("ada").tenants.keys() == {"acme", "t0", "t1", "t2"}


async def test_who_changed_whom_is_on_record_without_any_hash(runtime, accounts, ada):
    text, key = await accounts.issue_key("ada", reason="a script")
    await accounts.set_password("ada", "another password", reason="it leaked")
    await accounts.remove("ada", reason="left")
    events = [event for _, event in await runtime.store.events(ALL_TENANTS)]
    told = [(one.decision, one.body.get("did"), one.body["reason"]) for one in events]
    assert told == [
        ("user", "added", "the desk"),
        ("user", "key", "a script"),
        ("user", "password", "it leaked"),
        ("unuser", None, "left"),
    ]
    changes = [change.export() for change in runtime.registry.changes]
    shown = json.dumps([one.record("evt_1") for one in events] + changes, default=dict)
    shown += repr(runtime.registry.changes)
    assert key.key_id in shown
    assert "argon2" not in shown
    assert key.hash not in shown
    assert text not in shown
