"""Sessions: sealed against every change, ended by time, by sign-out, and by what is changed."""

import logging
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterseal.accounts import Accounts, LocalUsers, Sessions, check_csrf
from counterseal.accounts.sessions import Session
from counterseal.keys import KeyRing, Purpose, new_key
from counterseal.testing import FakeClock

HOUR = 3600.0


@pytest.fixture(scope="module")
def ring(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys") / "keys"
    new_key(folder, Purpose.VAULT, datetime(2026, 1, 1, tzinfo=UTC))
    return KeyRing.load(folder)


@pytest.fixture
def sessions(ring, clock):
    return Sessions(ring, clock=clock)


@pytest.fixture
def read(sessions, directory):
    async def read(cookie):
        return await sessions.read(cookie, directory)

    return read


# --- what it says ---------------------------------------------------------------------------------


async def test_cookie_leads_back_to_its_person(sessions, read, ada):
    cookie, made = sessions.issue(ada)
    found = await read(cookie)
    assert found == made
    assert (found.person.name, found.person.tenant) == ("ada", "acme")
    assert found.person.roles == {"approver"}
    assert found.cookie is None, "it is new enough"


async def test_cookie_tells_nothing_and_no_two_are_alike(sessions, ada):
    (first, one), (second, two) = sessions.issue(ada), sessions.issue(ada)
    assert first != second
    assert one.session_id != two.session_id
    assert one.csrf != two.csrf
    assert "ada" not in first
    assert len(first) < 1000
    shown = repr(one)
    assert not [part for part in (first, one.csrf, one.sealed.secret, ada.hash) if part in shown]


async def test_session_is_for_a_tenant_where_the_user_has_a_role(sessions, accounts, ada):
    with pytest.raises(ValueError, match="no role in 'globex'"):
        sessions.issue(ada, "globex")
    root = await accounts.add("root", "correct horse battery", {"*": ["admin"]}, reason="x")
    with pytest.raises(ValueError, match="say in which"):
        sessions.issue(root)
    assert sessions.issue(root, "globex")[1].person.everywhere == {"admin"}
    for tenant in ("*", "x" * 5000):
        with pytest.raises(ValueError, match="no role"):
            sessions.issue(root, tenant)


async def test_tenant_is_switched_within_a_session_and_forms_of_the_first_are_void(
    sessions, read, accounts, ada
):
    user = await accounts.set_roles("ada", "globex", ["viewer"], reason="x")
    _, before = sessions.issue(user, "acme")
    cookie, after = sessions.switch(before, "globex")
    assert (await read(cookie)).person.tenant == "globex"
    assert after.session_id == before.session_id
    assert not check_csrf(after, before.csrf)
    with pytest.raises(ValueError, match="no role in 'initech'"):
        sessions.switch(after, "initech")
    sessions.end(before)
    assert await read(cookie) is None


# --- nobody can make one --------------------------------------------------------------------------


async def test_cookie_with_any_byte_changed_is_refused(sessions, directory, ada):
    cookie, _ = sessions.issue(ada)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for place, there in enumerate(cookie):
        for other in alphabet:
            if other != there:
                changed = cookie[:place] + other + cookie[place + 1 :]
                assert sessions._opened(changed) is None
    assert await sessions.read(cookie, directory) is not None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_cookie_that_is_cut_lengthened_or_mixed_is_refused(sessions, ada, directory, data):
    cookie, _ = sessions.issue(ada)
    other, _ = sessions.issue(ada)
    at = data.draw(st.integers(0, len(cookie)))
    extra = data.draw(st.text(min_size=1, max_size=5))
    changed = data.draw(
        st.sampled_from(
            [cookie[:at] + extra + cookie[at:], cookie[:at], cookie[:at] + other[at:], extra]
        )
    )
    if changed not in (cookie, other):
        assert await sessions.read(changed, directory) is None


@pytest.mark.parametrize("text", ["", "=", "AA", "AGFkYQ", "\ud800", "é", "A" * 100_000, "AQ" * 99])
async def test_what_was_never_sealed_is_refused(read, text):
    assert await read(text) is None


async def test_cookie_of_another_key_is_refused_and_of_the_same_key_is_not(ring, directory, ada):
    clock = FakeClock()
    cookie, _ = Sessions(ring, clock=clock).issue(ada)
    assert await Sessions(ring, clock=clock).read(cookie, directory) is not None
    assert await Sessions(None, clock=clock).read(cookie, directory) is None


async def test_without_a_vault_key_the_operator_is_told(ring, directory, ada, caplog):
    with caplog.at_level(logging.WARNING):
        Sessions(ring)
        assert not caplog.records
        one, other = Sessions(KeyRing()), Sessions(None)
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "there is no vault key",
        "there is no vault key",
    ]
    cookie, _ = one.issue(ada)
    assert await one.read(cookie, directory) is not None
    assert await other.read(cookie, directory) is None


# --- how it ends ----------------------------------------------------------------------------------


async def test_session_ends_after_an_hour_of_nothing(sessions, read, ada, clock):
    cookie, made = sessions.issue(ada)
    assert made.ends_at == clock() + HOUR
    clock.advance(HOUR - 1)
    assert await read(cookie) is not None
    clock.advance(1)
    assert await read(cookie) is None


async def test_who_is_at_work_stays_for_eight_hours_and_no_longer(sessions, read, ada, clock):
    cookie, made = sessions.issue(ada)
    for _ in range(15):
        clock.advance(HOUR / 2)
        found = await read(cookie)
        assert found.cookie is not None
        cookie = found.cookie
        assert found.session_id == made.session_id
        assert found.csrf == made.csrf, "or else an open form could not be sent"
        assert (await read(cookie)).cookie is None
    assert found.ends_at == made.issued_at + 8 * HOUR
    clock.advance(HOUR / 2)
    assert await read(cookie) is None


async def test_signed_out_session_ends_with_all_its_cookies_and_others_go_on(
    sessions, read, ada, clock
):
    cookie, made = sessions.issue(ada)
    other, _ = sessions.issue(ada)
    clock.advance(120)
    renewed = (await read(cookie)).cookie
    sessions.end(made)
    assert await read(cookie) is None
    assert await read(renewed) is None
    assert await read(other) is not None


async def test_sign_outs_are_remembered_no_longer_than_the_sessions_would_last(
    sessions, ada, clock
):
    for _ in range(10):
        sessions.end(sessions.issue(ada)[1])
    clock.advance(8 * HOUR)
    sessions.end(sessions.issue(ada)[1])
    assert len(sessions._ended) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda users: users.set_password("ada", "another password", reason="x"),
        lambda users: users.set_roles("ada", "acme", ["approver", "viewer"], reason="x"),
        lambda users: users.set_active("ada", active=False, reason="x"),
        lambda users: users.sign_out("ada", reason="x"),
        lambda users: users.remove("ada", reason="x"),
    ],
    ids=["password", "roles", "disabled", "signed_out", "removed"],
)
async def test_change_of_the_user_ends_every_session(sessions, read, accounts, ada, change):
    cookies = [sessions.issue(ada)[0] for _ in range(2)]
    await change(accounts)
    assert [await read(cookie) for cookie in cookies] == [None, None]


async def test_namesake_does_not_inherit_a_session(sessions, read, accounts, ada, password):
    cookie, _ = sessions.issue(ada)
    await accounts.remove("ada", reason="left")
    await accounts.add("ada", password, {"acme": ["admin"]}, reason="another one")
    assert await read(cookie) is None


async def test_what_outlasts_a_request_is_asked_again(sessions, accounts, directory, ada, clock):
    _, made = sessions.issue(ada)
    assert await sessions.still(made, directory) == made
    clock.advance(HOUR)
    assert await sessions.still(made, directory) is None
    _, made = sessions.issue(ada)
    sessions.end(made)
    assert await sessions.still(made, directory) is None
    _, made = sessions.issue(ada)
    await accounts.sign_out("ada", reason="x")
    assert await sessions.still(made, directory) is None


async def test_process_that_is_late_asks_before_it_refuses(
    sessions, runtime, accounts, ada, passwords, steady
):
    """A new password was set elsewhere, and its session comes here before the news does."""
    late = LocalUsers(runtime, steady=steady)
    assert await late.user("ada") == ada
    from counterseal.operations.operator import Operator, catch_up
    from counterseal.registry import Registry

    elsewhere = Registry()
    await catch_up(runtime.store, elsewhere)
    there = Accounts(Operator(runtime.store, elsewhere, by="root"), passwords)
    cookie, _ = sessions.issue(await there.set_password("ada", "another password", reason="x"))
    assert await late.user("ada") == ada, "it has not heard yet"
    assert isinstance(await sessions.read(cookie, late), Session)


# --- forms ----------------------------------------------------------------------------------------


async def test_only_the_token_of_this_session_is_taken(sessions, ada):
    (_, one), (_, other) = sessions.issue(ada), sessions.issue(ada)
    assert check_csrf(one, one.csrf)
    for wrong in (other.csrf, one.csrf[:-1], one.csrf + "0", one.csrf.upper(), "", None, "\ud800é"):
        assert not check_csrf(one, wrong)
