"""Users as the registry keeps them: what one may be, what is shown of them, and replaying them."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.errors import RegistryError, StoreError
from counterseal.proposal import folded
from counterseal.registry import Registry, RegistryChange
from counterseal.registry.identities import (
    MARK,
    MOST_KEYS,
    PersonalKey,
    User,
    new_key,
    new_stamp,
    person_key_text,
    read_person_key,
    without_hashes,
)

HASH = "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHRzb21lc2FsdA$aGFzaGhhc2hoYXNo"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def key_of(tenant="acme", **more):
    made = new_key()
    return PersonalKey(key_id=made.key_id, hash=made.hash, tenant=tenant, at=NOW, **more)


def user(**more):
    fields = {"name": "ada", "hash": HASH, "tenants": {"acme": ["viewer"]}, "stamp": new_stamp()}
    return User(**{**fields, **more})


def change(op="user", **what):
    return {"op": op, "reason": "the desk", "by": "root", "at": NOW.isoformat(), **what}


# --- what one may be ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ada", "a", "Ada.Lovelace@example.org", "u+7", "0x", "a" * 100])
def test_name_that_people_use_is_taken(name):
    assert user(name=name).name == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ada",
        "ada ",
        "a b",
        "ad\u0430",
        "ada\n",
        "@ada",
        "a" * 101,
        "a\0",
        "ada\u200b",
        None,
        7,
    ],
)
def test_name_that_could_be_mistaken_is_refused(name):
    with pytest.raises(RegistryError, match="name: must be 1 to 100"):
        user(name=name)


@pytest.mark.parametrize("name", ["counterseal", "Counterseal.reconciler"])
def test_name_of_counterseal_itself_is_refused(name):
    with pytest.raises(RegistryError, match="reserved"):
        user(name=name)


@pytest.mark.parametrize(
    ("tenants", "said"),
    [
        ({}, "at least one tenant"),
        ({"acme": []}, "tenant 'acme' has no role"),
        ({"acme": "admin"}, "must be a list of strings"),
        ({"": ["viewer"]}, "must not contain an empty string"),
        ({"acme": [" "]}, "must not contain an empty string"),
        ({"acme": [7]}, "must contain strings only"),
        ({"a\0": ["viewer"]}, "NUL"),
    ],
)
def test_roles_that_make_no_sense_are_refused(tenants, said):
    with pytest.raises(RegistryError, match=said):
        user(tenants=tenants)


@pytest.mark.parametrize("wrong", ["", "plain text", "$argon2i$v=19$" + "x" * 40, HASH + "\n", 3])
def test_what_is_no_hash_is_refused_and_not_repeated(wrong):
    with pytest.raises(RegistryError, match="password") as refused:
        user(hash=wrong)
    assert "plain text" not in str(refused.value)


def test_user_has_only_so_many_keys():
    full = user(keys=tuple(key_of() for _ in range(MOST_KEYS)))
    with pytest.raises(RegistryError, match="at most 20"):
        full.with_key(key_of(), NOW)


@pytest.mark.parametrize("tenant", ["globex", "*", ""])
def test_key_for_a_tenant_without_a_role_is_refused(tenant):
    with pytest.raises(RegistryError, match="ada has no role in"):
        user().with_key(key_of(tenant), NOW)


def test_key_of_a_user_of_all_tenants_is_for_one_of_them():
    root = user(tenants={"*": ["admin"]})
    assert [one.tenant for one in root.with_key(key_of("globex"), NOW).keys] == ["globex"]
    with pytest.raises(RegistryError, match="has no role"):
        root.with_key(key_of("*"), NOW)


# --- what is shown --------------------------------------------------------------------------------


def test_hashes_are_in_the_stored_form_and_in_no_other():
    one = user().with_key(key_of(), NOW)
    secret = (HASH, one.keys[0].hash, one.stamp)
    stored = json.dumps(one.stored())
    assert all(part in stored for part in secret)
    said = RegistryChange.of(1, change(did="added", user=one.stored()))
    shown = f"{one!r} {one.keys[0]!r} {one.export()} {said.export()} {said.what}"
    shown += str(without_hashes(change(did="added", user=one.stored())))
    assert one.keys[0].key_id in shown
    assert not [part for part in secret[:2] if part in shown]


def test_other_changes_are_shown_as_they_are():
    kill = change("kill", tool="look", effect=None)
    assert without_hashes(kill) == kill


def test_stored_user_comes_back_as_it_was():
    one = user(active=False, tenants={"acme": ["viewer", "desk"], "*": ["admin"]})
    one = one.with_key(key_of(expires_at=datetime(2027, 1, 1, tzinfo=UTC)), NOW)
    again = User.of(json.loads(json.dumps(one.stored())), by="root", at=NOW, reason="r")
    assert again.stored() == one.stored()
    assert again.keys == one.keys
    assert (again.by, again.at, again.reason) == ("root", NOW, "r")


# --- personal keys --------------------------------------------------------------------------------


def test_personal_key_is_no_api_key_and_the_other_way_round():
    made = new_key()
    text = person_key_text(made)
    assert text.startswith("cs_person_")
    assert read_person_key(text) == made
    assert read_person_key(made.text) is None
    assert read_person_key(f"cs_person_{made.text}") is None
    assert not text.startswith(MARK)


@given(st.text(max_size=90))
def test_any_other_text_is_no_personal_key(text):
    assert read_person_key(text) is None


# --- replaying ------------------------------------------------------------------------------------


def replayed(*changes):
    registry = Registry()
    for number, what in enumerate(changes, 1):
        registry.apply(number, what)
    return registry


def test_last_word_on_a_user_holds_and_names_are_the_same_in_any_case():
    first, second = user(name="Ada"), user(name="Ada", active=False)
    registry = replayed(
        change(did="added", user=first.stored()), change(did="disabled", user=second.stored())
    )
    (found,) = registry.users
    assert (found.name, found.active) == ("Ada", False)
    assert registry.user("ADA") is registry.user(" ada ") is found
    assert registry.user("bob") is None


def test_keys_lead_to_their_holder_until_they_or_the_holder_are_gone():
    kept, dropped = key_of(), key_of()
    before = user(keys=(kept, dropped))
    after = before.without_key(dropped.key_id)
    added, less = (change(did="added", user=one.stored()) for one in (before, after))
    registry = replayed(added, less)
    assert registry.key_holder(kept.key_id).name == "ada"
    assert registry.key_holder(dropped.key_id) is None
    registry.apply(3, change("unuser", name="ada"))
    assert registry.key_holder(kept.key_id) is None
    assert registry.users == ()


def test_changes_of_users_that_make_no_sense_are_refused():
    registry = replayed(change(did="added", user=user(name="Ada").stored()))
    for what, said in (
        (change(did="added", user=user(name="aDA").stored()), "Ada already exists"),
        (change(did="password", user=user(name="bob").stored()), "no user 'bob'"),
        (change("unuser", name="bob"), "no user 'bob'"),
    ):
        with pytest.raises(RegistryError, match=said):
            registry.check(what)
    with pytest.raises(RegistryError, match="ada has no key"):
        user().without_key("0" * 16)


@pytest.mark.parametrize(
    "damage",
    [
        {"hash": "plain"},
        {"name": "../../x"},
        {"tenants": {}},
        {"active": "yes"},
        {"stamp": 7},
        {"keys": [{}]},
        {"unheard_of": 1},
    ],
)
def test_stored_user_that_can_not_be_understood_stops_the_worker_and_shows_no_hash(damage):
    what = change(did="added", user={**user().stored(), **damage})
    with pytest.raises(StoreError, match="change 1 ") as stopped:
        Registry().apply(1, what)
    assert HASH not in str(stopped.value)


@given(st.text(max_size=300))
def test_folding_is_done_once(text):
    assert folded(folded(text)) == folded(text)


def test_user_of_a_tenant_whose_name_was_allowed_once_can_still_be_read():
    registry = Registry()
    registry.apply(1, change(did="added", user=user(tenants={"acme corp": ["viewer"]}).stored()))
    assert registry.user("ada").tenants == {"acme corp": {"viewer"}}
