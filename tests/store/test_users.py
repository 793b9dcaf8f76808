"""Users on every store: one worker adds and removes them, the others know."""

from counterseal.accounts import Accounts, People, SignInRefused
from counterseal.accounts.users import Passwords
from counterseal.operations.operator import ALL_TENANTS, Operator, catch_up
from counterseal.registry import Registry
from counterseal.runtime import Runtime

PASSWORD = "correct horse battery"
CHEAP = Passwords(time_cost=1, memory_kib=8)


async def test_user_is_added_changed_and_removed_for_every_process_on_the_store(store):
    here, there = Registry(), Registry()
    accounts = Accounts(Operator(store, here, by="root"), CHEAP)
    added = await accounts.add("ada", PASSWORD, {"äcme": ["viewer", "prüfung"]}, reason="new")
    await catch_up(store, there)
    assert there.users == (added,)
    await accounts.set_roles("ada", "*", ["admin"], reason="trusted")
    _, key = await accounts.issue_key("ada", "äcme", reason="a script")
    await catch_up(store, there)
    assert there.key_holder(key.key_id) == there.user("ada") == here.user("ada")
    assert there.user("ada").tenants == {"äcme": {"viewer", "prüfung"}, "*": {"admin"}}
    await accounts.remove("ada", reason="left")
    await catch_up(store, there)
    assert there.users == ()
    assert there.key_holder(key.key_id) is None


async def test_who_signs_in_and_who_tries_is_on_record_on_every_store(store):
    runtime = Runtime(store)
    accounts = Accounts(runtime.operator("root"), CHEAP)
    await accounts.add("ada", PASSWORD, {"acme": ["viewer"]}, reason="new")
    door = People(runtime, passwords=CHEAP)
    assert not isinstance(await door.attempt("ada", PASSWORD, source="127.0.0.1"), SignInRefused)
    await door.attempt("ada", "wrong", source="127.0.0.1")
    await door.attempt("bob", "wrong", source="127.0.0.1")
    told = [(event.type, event.caller.user) for _, event in await store.events("acme")]
    assert told == [("person.signed_in", "ada"), ("person.refused", "ada")]
    told = [(event.type, event.caller.user) for _, event in await store.events(ALL_TENANTS)]
    assert told == [("registry.changed", "root"), ("person.refused", None)]
