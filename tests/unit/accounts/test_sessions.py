"""Sessions: found by a secret, ended by time, by sign-out, and by changes of their user."""

import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterseal.accounts import Accounts, Directory, Sessions, check_csrf
from counterseal.accounts.sessions import Session

HOUR = 3600.0


@pytest.fixture
def sessions(runtime, directory, clock):
    return Sessions(runtime.store, directory, clock=clock)


@pytest.fixture
def read(sessions):
    async def read(cookie):
        return await sessions.read(cookie)

    return read


# --- what it says ---------------------------------------------------------------------------------


async def test_secret_leads_back_to_its_person(sessions, read, ada):
    secret, session = await sessions.issue(ada, "acme")
    found = await read(secret)
    assert found == session
    assert (found.person.name, found.person.tenant) == ("ada", "acme")
    assert found.person.roles == {"approver"}


async def test_secret_is_stored_nowhere_and_no_two_are_alike(sessions, runtime, ada):
    (first, one), (second, two) = [await sessions.issue(ada, "acme") for _ in range(2)]
    assert first != second
    assert one.session_id != two.session_id
    assert one.csrf != two.csrf
    row = await runtime.store.find_session(one.session_id)
    shown = repr(one) + repr(row)
    assert not [part for part in (first, one.csrf, ada.hash) if part in shown]
    assert await runtime.store.find_session(first) is None


async def test_session_is_for_a_tenant_where_the_user_has_a_role(sessions, accounts, ada):
    with pytest.raises(ValueError, match="no role in 'globex'"):
        await sessions.issue(ada, "globex")
    root = await accounts.add("root", "correct horse battery", {"*": ["admin"]}, reason="x")
    assert (await sessions.issue(root, "globex"))[1].person.everywhere == {"admin"}
    with pytest.raises(ValueError, match="no role"):
        await sessions.issue(root, "*")


async def test_tenant_is_switched_and_forms_of_the_first_are_void(
    sessions, read, accounts, ada, clock
):
    user = await accounts.set_roles("ada", "globex", ["viewer"], reason="x")
    first, before = await sessions.issue(user, "acme")
    clock.advance(1.5 * HOUR / 2)
    secret, after = await sessions.switch(before, "globex")
    assert (await read(secret)).person.tenant == "globex"
    assert await read(first) is None
    assert not check_csrf(after, before.csrf)
    with pytest.raises(ValueError, match="no role in 'initech'"):
        await sessions.switch(after, "initech")
    for _ in range(15):
        clock.advance(HOUR / 2)
        last = await read(secret)
    assert last is None, "it ends when the first would have ended"
    await sessions.end(after)
    assert await read(secret) is None


# --- nobody can make one --------------------------------------------------------------------------


async def test_secret_with_any_character_changed_is_refused(sessions, ada):
    secret, _ = await sessions.issue(ada, "acme")
    for place, there in enumerate(secret):
        for other in set(string.ascii_letters + string.digits + "-_") - {there}:
            changed = secret[:place] + other + secret[place + 1 :]
            assert await sessions.read(changed) is None
    assert await sessions.read(secret) is not None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_secret_that_is_cut_lengthened_or_mixed_is_refused(sessions, ada, data):
    secret, _ = await sessions.issue(ada, "acme")
    other, _ = await sessions.issue(ada, "acme")
    at = data.draw(st.integers(0, len(secret)))
    extra = data.draw(st.text(min_size=1, max_size=5))
    changed = data.draw(
        st.sampled_from(
            [secret[:at] + extra + secret[at:], secret[:at], secret[:at] + other[at:], extra]
        )
    )
    if changed not in (secret, other):
        assert await sessions.read(changed) is None


@pytest.mark.parametrize("text", ["", "=", "AA", "\ud800", "é" * 43, "A" * 100_000, "A" * 43])
async def test_what_was_never_issued_is_refused(read, text):
    assert await read(text) is None


async def test_digest_from_a_copy_of_the_store_opens_nothing(sessions, read, ada):
    _, session = await sessions.issue(ada, "acme")
    assert await read(session.session_id) is None


# --- how it ends ----------------------------------------------------------------------------------


async def test_session_ends_after_an_hour_of_nothing(sessions, read, ada, clock):
    secret, session = await sessions.issue(ada, "acme")
    assert session.ends_at == clock() + HOUR
    clock.advance(HOUR - 1)
    assert await read(secret) is not None
    clock.advance(HOUR)
    assert await read(secret) is None


async def test_requests_of_a_page_do_not_keep_its_session_alive(sessions, ada, clock):
    secret, _ = await sessions.issue(ada, "acme")
    for _ in range(3):
        clock.advance(HOUR / 4)
        assert await sessions.read(secret, refresh=False) is not None
    clock.advance(HOUR / 4)
    assert await sessions.read(secret, refresh=False) is None


async def test_who_is_at_work_stays_for_eight_hours_and_no_longer(sessions, read, ada, clock):
    secret, session = await sessions.issue(ada, "acme")
    for _ in range(15):
        clock.advance(HOUR / 2)
        found = await read(secret)
        assert found.session_id == session.session_id
        assert found.csrf == session.csrf, "or else an open form could not be sent"
    assert found.ends_at == session.row.created_at + 8 * HOUR
    clock.advance(HOUR / 2)
    assert await read(secret) is None


async def test_signed_out_session_ends_and_others_go_on(sessions, read, ada):
    secret, session = await sessions.issue(ada, "acme")
    other, _ = await sessions.issue(ada, "acme")
    await sessions.end(session)
    assert await read(secret) is None
    assert await read(other) is not None


async def test_sign_out_during_a_request_is_not_undone_by_it(
    sessions, runtime, directory, ada, clock
):
    secret, session = await sessions.issue(ada, "acme")
    clock.advance(120)

    class SignsOut:
        """A directory in whose answer somebody signs out elsewhere."""

        async def user(self, name):
            await sessions.end(session)
            return await directory.user(name)

        user_now = user

    assert await Sessions(runtime.store, SignsOut(), clock=clock).read(secret) is None
    assert await sessions.read(secret) is None


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
@pytest.mark.parametrize("by_store", [True, False])
async def test_change_of_the_user_ends_every_session(
    sessions, read, runtime, passwords, ada, change, by_store
):
    secrets = [(await sessions.issue(ada, "acme"))[0] for _ in range(2)]
    ender = runtime.store if by_store else None
    await change(Accounts(runtime.operator("root"), passwords, sessions=ender))
    assert [await read(secret) for secret in secrets] == [None, None]


async def test_namesake_does_not_inherit_a_session(sessions, read, accounts, ada, password):
    secret, _ = await sessions.issue(ada, "acme")
    await accounts.remove("ada", reason="left")
    await accounts.add("ada", password, {"acme": ["admin"]}, reason="another one")
    assert await read(secret) is None


async def test_what_outlasts_a_request_is_checked_again(sessions, accounts, ada, clock):
    _, session = await sessions.issue(ada, "acme")
    assert await sessions.still_valid(session) == session
    clock.advance(HOUR)
    assert await sessions.still_valid(session) is None
    _, session = await sessions.issue(ada, "acme")
    await sessions.end(session)
    assert await sessions.still_valid(session) is None
    _, session = await sessions.issue(ada, "acme")
    await accounts.sign_out("ada", reason="x")
    assert await sessions.still_valid(session) is None


async def test_worker_that_is_late_asks_before_it_refuses(
    sessions, runtime, accounts, ada, passwords, clock, steady
):
    """A new password was set elsewhere, and its session comes here before the change is known."""
    late = Directory(runtime, steady=steady)
    assert await late.user("ada") == ada
    from counterseal.operations.operator import Operator, catch_up
    from counterseal.registry import Registry

    elsewhere = Registry()
    await catch_up(runtime.store, elsewhere)
    there = Accounts(Operator(runtime.store, elsewhere, by="root"), passwords)
    changed = await there.set_password("ada", "another password", reason="x")
    secret, _ = await sessions.issue(changed, "acme")
    assert await late.user("ada") == ada, "it has not heard yet"
    assert isinstance(await Sessions(runtime.store, late, clock=clock).read(secret), Session)


# --- forms ----------------------------------------------------------------------------------------


async def test_only_the_token_of_this_session_is_taken(sessions, ada):
    (_, one), (_, other) = [await sessions.issue(ada, "acme") for _ in range(2)]
    assert check_csrf(one, one.csrf)
    for wrong in (other.csrf, one.csrf[:-1], one.csrf + "0", one.csrf.upper(), "", None, "\ud800é"):
        assert not check_csrf(one, wrong)
