"""The people of a runtime, as the console and the API ask for them; at two workers of one store."""

from dataclasses import replace

import pytest

from counterseal.accounts import Directory, People, RefusalReason, Session, SignInRefused
from counterseal.runtime import Runtime
from counterseal.testing import FakeClock

HERE = "127.0.0.1"


@pytest.fixture
def people(runtime, passwords, steady):
    return People(runtime, passwords=passwords, steady=steady)


async def test_sign_in_gives_a_session_and_each_time_another_one(people, ada, password):
    (cookie, first), (_, second) = [
        await people.sign_in("ada", password, source=HERE) for _ in range(2)
    ]
    assert await people.sessions.read(cookie) == first
    assert first.session_id != second.session_id
    assert await people.sign_in("ada", "wrong", source=HERE) == SignInRefused(RefusalReason.WRONG)


async def test_users_of_another_directory_are_known_by_their_sessions(runtime, ada):
    class Elsewhere(Directory):
        async def user(self, name):
            return replace(ada, name="ida") if name == "ida" else None

        user_now = user

    people = People(runtime, directory=Elsewhere(runtime))
    cookie, session = await people.sessions.issue(replace(ada, name="ida"), "acme")
    assert await people.sessions.read(cookie) == session
    assert session.person.name == "ida"


@pytest.mark.parametrize("cookie", [None, "", "made up"])
async def test_without_a_valid_cookie_there_is_no_person(people, cookie):
    assert await people.sessions.read(cookie) is None


async def test_sign_out_ends_one_session_and_everywhere_ends_all(people, ada, password, runtime):
    made = [await people.sign_in("ada", password, source=HERE) for _ in range(3)]
    await people.sessions.end(made[0][1])
    assert [await people.sessions.read(one) is None for one, _ in made] == [True, False, False]
    assert await people.sessions.still_valid(made[1][1])
    await people.sign_out_everywhere(made[1][1])
    assert [await people.sessions.read(one) is None for one, _ in made] == [True, True, True]
    assert not await people.sessions.still_valid(made[1][1])
    assert (runtime.registry.changes[-1].by, runtime.registry.changes[-1].user_change) == (
        "ada",
        "signed_out",
    )


async def test_key_is_known_here_too(people, ada):
    text, _ = await people.accounts("root").issue_key("ada", reason="a script")
    assert (await people.by_key(text)).name == "ada"


async def test_user_works_in_own_tenants_and_who_is_everywhere_in_all_that_there_are(
    people, ada, runtime, password
):
    accounts = people.accounts("root")
    root = await accounts.add("root", password, {"*": ["admin"]}, reason="x")
    assert await people.tenants(ada) == ["acme"]
    assert await people.tenants(root) == ["acme"]
    both = await accounts.set_roles("root", "globex", ["viewer"], reason="x")
    await people.sign_in("ada", password, source=HERE)
    assert await people.tenants(both) == ["globex", "acme"]


async def test_first_user_of_an_empty_store_can_sign_in(people, password):
    await people.accounts("root").add("root", password, {"*": ["admin"]}, reason="x")
    _, session = await people.sign_in("root", password, source=HERE)
    assert isinstance(session, Session)
    assert session.person.tenant == "default"


# --- two workers on one file ----------------------------------------------------------------------


@pytest.fixture
async def workers(tmp_path, passwords):
    url = f"sqlite:///{tmp_path / 'calls.db'}"
    async with Runtime.open(url) as here, Runtime.open(url) as there:
        yield [
            People(one, passwords=passwords, steady=steady)
            for one, steady in ((here, FakeClock(0.0)), (there, FakeClock(0.0)))
        ]


async def test_user_who_is_added_here_can_sign_in_there_at_once(workers, password):
    here, there = workers
    assert await there.sign_in("ada", password, source=HERE) == SignInRefused(RefusalReason.WRONG)
    await here.accounts("root").add("ada", password, {"acme": ["viewer"]}, reason="new")
    _, session = await there.sign_in("ada", password, source=HERE)
    assert session.person.name == "ada"


async def test_user_who_is_removed_here_is_out_there_within_a_second(workers, password):
    here, there = workers
    accounts = here.accounts("root")
    await accounts.add("ada", password, {"acme": ["viewer"]}, reason="new")
    key, _ = await accounts.issue_key("ada", reason="a script")
    cookie, session = await there.sign_in("ada", password, source=HERE)
    assert await there.sessions.read(cookie) == session
    assert await there.by_key(key) == session.person
    await accounts.remove("ada", reason="left")
    there.directory._changes._steady.advance(1)  # both know it as the same clock
    assert await there.sessions.read(cookie) is None
    assert not await there.sessions.still_valid(session)
    assert await there.by_key(key) is None
    assert await there.sign_in("ada", password, source=HERE) == SignInRefused(RefusalReason.WRONG)


async def test_sign_out_here_ends_the_session_there_at_once(workers, password):
    here, there = workers
    await here.accounts("root").add("ada", password, {"acme": ["viewer"]}, reason="new")
    cookie, session = await here.sign_in("ada", password, source=HERE)
    other, _ = await here.sign_in("ada", password, source=HERE)
    assert await there.sessions.read(cookie) == session, "no key has to be shared for that"
    await here.sessions.end(session)
    assert await there.sessions.read(cookie) is None
    assert not await there.sessions.still_valid(session)
    assert await there.sessions.read(other) is not None


async def test_new_password_here_ends_sessions_there_at_once(workers, password):
    here, there = workers
    accounts = here.accounts("root")
    await accounts.add("Ada", password, {"acme": ["viewer"]}, reason="new")
    cookie, _ = await there.sign_in("ada", password, source=HERE)
    assert await there.sessions.read(cookie) is not None
    await accounts.set_password("ADA", "another password", reason="leaked")
    assert await there.sessions.read(cookie) is None


async def test_key_that_is_issued_here_is_good_there_at_once(workers, password):
    here, there = workers
    accounts = here.accounts("root")
    await accounts.add("ada", password, {"acme": ["viewer"]}, reason="new")
    assert await there.by_key("cs_person_" + "0" * 16 + "_" + "x" * 43) is None
    there.directory._misses._steady.advance(1)
    await there.directory.user("ada")
    key, _ = await accounts.issue_key("ada", reason="a script")
    assert (await there.by_key(key)).name == "ada"
