"""The Postgres store's address, what its errors mean, and how it writes what waits together."""

import asyncio
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from counterseal.errors import CountersealError, StoreError
from counterseal.storage import open_store
from counterseal.storage.postgres import PostgresStore
from counterseal.storage.postgres.connections import ChangeListener, DatabaseAddress
from counterseal.storage.postgres.faults import MEANINGS, explained, is_again, is_lost
from tests.postgres_server import STUCK, borrowed_database, execute, seen
from tests.store.kept import keep
from tests.waiting import caller, turns

pytestmark = pytest.mark.slow
"""A server has to start for them."""

WORKER = Path(__file__).with_name("postgres_worker.py")


@pytest.fixture
def url():
    with borrowed_database() as url:
        yield url


@pytest.fixture
async def store(url):
    store = PostgresStore(DatabaseAddress.of(url), writers=1)
    yield store
    await store.close()


def changed(url, **parts):
    return urlsplit(url)._replace(**parts).geturl()


def keys_in(url):
    return {key for (key,) in execute(url, "SELECT key FROM ledger")}


def events_in(url):
    return execute(url, "SELECT count(*) FROM events")[0][0]


# --- the address ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_both_names_of_the_scheme_lead_to_the_store(scheme):
    store = open_store(f"{scheme}://somebody:hunter2@db.example:5433/cases")
    assert isinstance(store, PostgresStore), "and nothing was connected to"


@pytest.mark.parametrize(
    "url", ["postgresql:", "postgresql:cases", "postgres:/cases", "postgresql://[half:hunter2"]
)
def test_an_address_that_names_no_database_is_refused_without_being_told(url):
    with pytest.raises(CountersealError, match="write postgresql://") as refused:
        open_store(url)
    assert "hunter2" not in str(refused.value)


def test_a_password_is_in_no_message():
    address = DatabaseAddress.of("postgresql://somebody:hunter2@db.example/cases?password=hunter3")
    assert address.where == "postgresql://db.example/cases"
    assert "hunter" not in repr(address)


async def test_a_server_that_is_not_there_is_told_with_what_to_do(url, make, unused_port):
    password = urlsplit(url).password
    away = url.replace(f":{urlsplit(url).port}/", f":{unused_port}/")
    store = open_store(away)
    with pytest.raises(StoreError, match="can't be reached; start the server") as failed:
        await store.ready()
    with pytest.raises(StoreError, match="can't be reached"):
        await store.admit(make.admit())
    told = f"{failed.value!r} {failed.value.__cause__!r} {failed.value.__context__!r}"
    assert password not in told
    await store.close()


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"path": "/nowhere"}, "is no database of this server; create it"),
        ({"query": "sslmode=perhaps"}, "check its host and its options"),
        ({"query": "colour=red"}, "does not know an option in its URL; take it out"),
        ({"netloc": "counterseal:wrong@{host}"}, "refuses this user; check user, password"),
    ],
)
async def test_what_is_wrong_with_an_address_is_told(url, change, told):
    host = urlsplit(url).netloc.rpartition("@")[2]
    change = {part: value.format(host=host) for part, value in change.items()}
    store = open_store(changed(url, **change))
    with pytest.raises(StoreError, match=told):
        await store.ready()
    await store.close()


async def test_who_gives_up_while_a_connection_is_made_leaves_none_behind(url):
    for number in range(40):
        listener = ChangeListener(DatabaseAddress.of(url))
        listening = asyncio.create_task(listener.listen())
        await turns(5 * number)  # a different moment each time
        listening.cancel()
        await asyncio.wait([listening])
        await listener.close()
    ours = "application_name = 'counterseal' AND datname = current_database()"
    await seen(url, f"SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE {ours})")


# --- errors ---------------------------------------------------------------------------------------


def test_every_error_of_postgres_has_a_meaning_or_is_a_fault_of_this_program():
    kinds = [
        kind
        for kind in vars(asyncpg.exceptions).values()
        if isinstance(kind, type) and issubclass(kind, asyncpg.PostgresError) and kind.sqlstate
    ]
    assert len(kinds) > 200
    told = {kind.sqlstate: str(explained(kind("said, with hunter2"), "there")) for kind in kinds}
    assert not [code for code, text in told.items() if "hunter2" in text]
    for code, meaning in MEANINGS.items():
        beginning = [text for known, text in told.items() if known.startswith(code)]
        assert beginning, code
        assert any(meaning in text for text in beginning), code


@pytest.mark.parametrize(
    ("error", "lost", "again"),
    [
        (asyncpg.exceptions.AdminShutdownError("x"), True, False),
        (asyncpg.ConnectionDoesNotExistError("x"), True, False),
        (asyncpg.InterfaceError("connection is closed"), True, False),
        (ConnectionResetError(), True, False),
        (TimeoutError(), True, False),
        (asyncpg.DeadlockDetectedError("x"), False, True),
        (asyncpg.SerializationError("x"), False, True),
        (asyncpg.exceptions.DiskFullError("x"), False, False),
        (asyncpg.NotNullViolationError("x"), False, False),
    ],
)
def test_an_error_says_whether_to_connect_anew_or_to_try_again(error, lost, again):
    assert (is_lost(error), is_again(error)) == (lost, again)


async def test_a_closed_store_says_so_whatever_it_is_asked(url, make):
    store = open_store(url)
    await store.admit(make.admit())
    await store.close()
    await store.close()
    with pytest.raises(StoreError, match="was closed"):
        await store.admit(make.admit())
    for asked in (store.recall("acme", "r", None), store.events("a")):
        with pytest.raises(StoreError, match="was closed"):
            await asked
    with pytest.raises(StoreError, match="was closed"):
        store.note(make.event())


# --- together -------------------------------------------------------------------------------------


async def said_by(store):
    """Everything that the store's only writer says to the server from now on."""
    await store.settle(make_nothing())
    said = []
    connection = await store._backend.writing.connections[0].get()
    connection.add_query_logger(lambda query: said.append(query.query))
    return said


def make_nothing():
    from counterseal.ledger.requests import SettlementRequest

    return SettlementRequest("acme", "run_0", 0.0, None, {}, (), ())


async def test_what_waits_together_is_committed_together(store, make):
    async def call(number):
        admitted = (await store.admit(make.admit(entry=make.entry(f"k{number}")))).entry
        return await store.settle(make.settle(entry=make.done(admitted)))

    said = await said_by(store)
    assert all(await asyncio.gather(*map(call, range(64))))
    assert said.count("COMMIT") <= 8, "not 128"
    assert len(said) <= 8 * said.count("COMMIT"), "a few statements for all"


async def test_what_is_refused_costs_no_commit(store, make):
    await store.admit(make.admit(entry=make.entry()))
    said = await said_by(store)
    answers = await asyncio.gather(
        *(caller(store.admit, make.admit(entry=make.entry())) for _ in "abc")
    )
    assert {one.refused for one in answers} == {"duplicate"}
    assert "COMMIT" not in said
    assert "ROLLBACK" in said


async def test_only_commits_that_a_caller_relies_on_wait_for_the_disk(store, make):
    said = await said_by(store)

    async def waits(doing):
        said.clear()
        await doing
        assert "COMMIT" in said
        return not any("synchronous_commit = off" in one for one in said)

    assert not await waits(store.open_run(make.run()))
    assert not await waits(store.admit(make.admit(charges=[make.charge()], events=())))
    assert await waits(store.admit(make.admit()))
    entry = make.entry()
    assert await waits(store.admit(make.admit(entry=entry, events=())))
    assert not await waits(store.renew([entry], 60))
    assert await waits(store.settle(make.settle()))
    assert not await waits(store.new_turn("acme", "run_1", ()))
    assert await waits(store.hold(make.held(), []))
    assert await waits(store.claim_orphans(make.claim()))


async def test_one_that_fails_leaves_the_others_and_nothing_of_itself(url, store, make):
    unfit = make.entry("unfit", request_hash=None)
    nul = make.entry("nul\0")
    wanted = [make.admit(entry=make.entry(f"k{n}"), charges=[make.charge(9)]) for n in range(4)]
    wanted.insert(2, make.admit(entry=unfit, charges=[make.charge(9)]))
    wanted.insert(4, make.admit(entry=nul, charges=[make.charge(9)]))
    answers = await asyncio.gather(*map(store.admit, wanted), return_exceptions=True)
    failed = [n for n, answer in enumerate(answers) if isinstance(answer, StoreError)]
    assert failed == [2, 4]
    assert "can't keep such a value" in str(answers[2])
    assert keys_in(url) == {"k0", "k1", "k2", "k3"}
    assert (await store.recall("acme", "run_1", None)).run_counters == {"writes": 4}
    assert len(await store.events("acme")) == 4


async def test_an_event_that_can_not_be_told_is_refused_before_anything_is_done(url, store, make):
    unspoken = make.event()._replace(body={"what": object()})
    with pytest.raises(Exception, match="object"):
        await store.admit(make.admit(entry=make.entry(), events=[unspoken]))
    assert keys_in(url) == set()


async def test_an_admission_is_dropped_when_its_caller_has_gone_but_an_outcome_is_not(
    url, store, make
):
    entry = (await store.admit(make.admit(entry=make.entry()))).entry
    somebody = await asyncpg.connect(url)
    async with somebody.transaction():
        await somebody.execute("LOCK TABLE runs")  # the store's only writer stops here
        stopped = asyncio.create_task(caller(store.admit, make.admit(entry=make.entry("first"))))
        await seen(url, STUCK)
        gone = asyncio.create_task(caller(store.admit, make.admit(entry=make.entry("gone"))))
        settling = asyncio.create_task(caller(store.settle, make.settle(entry=make.done(entry))))
        await asyncio.sleep(0)
        gone.cancel()
        settling.cancel()
        await asyncio.wait([gone, settling])
    await somebody.close()
    assert (await stopped).refused is None
    await store.open_run(make.run())
    assert (await store.recall("acme", "run_1", "gone")).entry is None
    assert (await store.recall("acme", "run_1", "k")).entry == make.done(entry)


async def test_a_deadlock_with_another_session_is_retried(url, store, make):
    await store.admit(make.admit(entry=make.entry("b"), charges=[make.charge(99)]))
    failed = make.done((await store.admit(make.admit(entry=make.entry("a")))).entry)
    somebody = await asyncpg.connect(url)
    await somebody.execute("SET deadlock_timeout = '60s'; BEGIN")
    await somebody.execute("SELECT * FROM counters FOR UPDATE")
    admitting = make.admit(entry=make.entry("c"), charges=[make.charge()])
    doing = [store.settle(make.settle(entry=failed)), store.admit(admitting)]
    await seen(url, STUCK)
    await somebody.execute("SELECT * FROM ledger WHERE key = 'a' FOR UPDATE")  # now it is a ring
    await somebody.execute("COMMIT")
    await somebody.close()
    settled, admitted = await asyncio.gather(*doing)
    assert (settled, admitted.refused) == (True, None)
    assert (await store.recall("acme", "run_1", None)).run_counters == {"writes": 2}


# --- what nobody waits for ------------------------------------------------------------------------


async def test_an_event_without_a_waiter_is_written_soon_by_itself(url, store, make):
    store.note(make.event())
    assert events_in(url) == 0
    await seen(url, "SELECT 1 FROM events")


async def test_events_without_a_waiter_are_written_on_close(url, make):
    store = open_store(url)
    store.note(make.event())
    pointer = keep(store, "acme", b"raw \x00 bytes")
    await store.close()
    assert events_in(url) == 1
    kept = execute(url, f"SELECT raw FROM vault WHERE pointer = '{pointer}'")
    assert kept == [(b"raw \x00 bytes",)]


async def test_what_can_not_be_kept_does_not_get_in_the_way_of_what_can(url, store, make, caplog):
    store.note(make.event(tenant="nul\0"))
    store.note(make.event())
    assert (await store.admit(make.admit(entry=make.entry()))).refused is None
    assert len(await store.events("acme")) == 2
    assert "a record could not be kept" in caplog.text


def test_a_store_outlives_the_event_loop_that_it_was_used_in(url):
    # In a process of its own: a loop that ends leaves connections that nobody can close any more.
    command = [sys.executable, str(WORKER), url, "two_loops"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout == "[[null, null, null], [null, null, null]]\n"
    assert (events_in(url), len(keys_in(url))) == (10, 6)
