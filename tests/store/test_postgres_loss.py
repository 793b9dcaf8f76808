"""A Postgres server that goes away: what is told meanwhile, and that nobody has to restart."""

import asyncio
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from counterseal.audit import EventType
from counterseal.errors import StoreError
from counterseal.ledger.entry import EntryStatus
from counterseal.storage import open_store
from counterseal.storage.postgres import PostgresStore
from counterseal.storage.postgres.connections import DatabaseAddress
from counterseal.storage.postgres.faults import UncertainError
from tests.postgres_server import (
    AWAITED,
    STUCK,
    borrowed_database,
    execute,
    fresh_database,
    private_server,
    seen,
)
from tests.store.chains import check_chain, log_of
from tests.waiting import caller

pytestmark = pytest.mark.slow
"""A server has to start for them."""


@pytest.fixture(scope="module")
def server():
    """One that may be stopped, and is there again for the next test."""
    with private_server() as server:
        yield server


@pytest.fixture
def url(server):
    yield fresh_database(server.url)
    server.start()


@pytest.fixture
async def store(url):
    store = open_store(url)
    yield store
    await store.close()


def disconnect(url):
    """End everybody else's connection to this database, as an administrator can."""
    mine = "datname = current_database() AND pid <> pg_backend_pid()"
    return execute(url, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {mine}")


async def call(store, make, key):
    entry = (await store.admit(make.admit(entry=make.entry(key)))).entry
    return await store.settle(make.settle(entry=make.done(entry)))


async def test_connections_that_were_ended_while_idle_are_not_noticed(url, store, make):
    assert await call(store, make, "a")
    assert len(disconnect(url)) >= 1
    assert await call(store, make, "b")
    disconnect(url)
    assert (await store.recall("acme", "run_1", "b")).entry.status is EntryStatus.COMPLETED
    heads = check_chain(await log_of(store))
    assert len(heads) >= 2, "after a loss a new segment begins"
    assert len(await store.events("acme")) == 4


async def test_who_is_disconnected_in_the_middle_of_a_transaction_does_it_anew(url, store, make):
    assert await call(store, make, "a")
    somebody = await asyncpg.connect(url)
    await somebody.execute("BEGIN; LOCK TABLE ledger")
    admitting = [
        asyncio.create_task(
            caller(store.admit, make.admit(entry=make.entry(key), charges=[make.charge()]))
        )
        for key in "bcd"
    ]
    await seen(url, STUCK)
    disconnect(url)  # somebody else as well, who held the lock
    answers = await asyncio.gather(*admitting)
    somebody.terminate()
    assert [one.refused for one in answers] == [None] * 3
    assert (await store.recall("acme", "run_1", None)).run_counters == {"writes": 3}
    check_chain(await log_of(store))


@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_while_the_server_is_away_all_is_refused_and_afterwards_it_goes_on(
    server, url, store, make, end
):
    assert await call(store, make, "before")
    entry = (await store.admit(make.admit(entry=make.entry("during")))).entry
    getattr(server, end)()
    store.note(make.event(EventType.FAILED))
    asked = [
        store.admit(make.admit(entry=make.entry("away"))),
        store.settle(make.settle(entry=make.done(entry))),
        store.recall("acme", "run_1", "before"),
        store.claim_orphans(make.claim()),
        store.events("acme"),
    ]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(one) for one in answers] == [StoreError] * len(asked)
    assert {urlsplit(url).password in str(one) for one in answers} == {False}
    server.start()
    assert await store.settle(make.settle(entry=make.done(entry)))
    assert await call(store, make, "after")
    assert (await store.recall("acme", "run_1", "away")).entry is None
    # The event that nobody waited for was not forgotten meanwhile.
    kinds = [event.type for _, event in await store.events("acme")]
    assert kinds.count(EventType.FAILED) == 1
    check_chain(await log_of(store))


async def test_what_was_answered_is_there_after_a_crash(server, url, store, make):
    calls = [asyncio.create_task(call(store, make, f"k{n}")) for n in range(200)]
    await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    server.kill()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    server.start()
    settled = [n for n, answer in enumerate(answers) if answer is True]
    failed = {type(one) for one in answers if one is not True}
    assert settled
    assert failed <= {StoreError, UncertainError}
    for number in settled:
        entry = (await store.recall("acme", "run_1", f"k{number}")).entry
        assert entry.status is EntryStatus.COMPLETED
    check_chain(await log_of(store))


async def test_what_is_left_at_the_end_is_told(server, url, make):
    store = open_store(url)
    await store.ready()
    server.stop()
    store.note(make.event())
    with pytest.raises(StoreError, match=r"1 records were not kept: .*can't be reached"):
        await store.close()


async def test_who_waits_goes_on_waiting_when_the_server_was_away(server, url, store, make):
    entry = (await store.admit(make.admit(entry=make.entry(), lease=3600))).entry
    waiting = asyncio.create_task(store.wait("acme", "k", 600))
    await seen(url, AWAITED)
    server.restart()
    other = open_store(url)
    assert await other.settle(make.settle(entry=make.done(entry)))
    assert await asyncio.wait_for(waiting, 60) is True
    await other.close()


def test_a_server_for_tests_ends_with_its_last_user():
    program = (
        "from tests.postgres_server import private_server\n"
        "with private_server() as server: print(server.url, flush=True), input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", program], cwd=root, text=True, **pipes) as user:
        port = urlsplit(user.stdout.readline().strip()).port
        with socket.create_connection(("127.0.0.1", port), 60) as connection:
            user.kill()
            connection.settimeout(60)
            assert connection.recv(1) == b"", "the server has hung up"


# --- a commit that nobody heard of ----------------------------------------------------------------


class Way:
    """A way to the server that breaks at the first COMMIT after `cut` was set."""

    def __init__(self, url):
        self._there = urlsplit(url)
        self.cut = None
        """`before`: the server never hears of it. `after`: nobody hears what the server says."""
        self.done = False

    async def serve(self, reader, writer):
        there, back = await asyncio.open_connection(self._there.hostname, self._there.port)
        ways = [self._pass_on(reader, back, self._asked), self._pass_on(there, writer, self._said)]
        tasks = [asyncio.create_task(way) for way in ways]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        writer.close()
        back.close()

    async def _pass_on(self, reader, writer, goes_on):
        while data := await reader.read(65536):
            if not goes_on(data):
                return
            writer.write(data)
            await writer.drain()

    def _asked(self, data):
        if self.cut and b"COMMIT\0" in data:
            self.done = True
            return self.cut == "after"
        return True

    def _said(self, data):
        if self.done and self.cut == "after":
            self.cut = None
            return False
        return True


@asynccontextmanager
async def breaking(url):
    way = Way(url)
    door = await asyncio.start_server(way.serve, "127.0.0.1", 0)
    port = door.sockets[0].getsockname()[1]
    address = DatabaseAddress.of(url.replace(f":{urlsplit(url).port}/", f":{port}/"))
    store = PostgresStore(address, writers=1)
    yield store, way
    await store.close()
    door.close()


@pytest.fixture
def shared_url():
    with borrowed_database() as url:
        yield url


async def test_a_commit_whose_answer_was_lost_is_found_to_have_taken_place(shared_url, make):
    async with breaking(shared_url) as (store, way):
        assert await call(store, make, "a")
        way.cut = "after"
        admission = await store.admit(make.admit(entry=make.entry("b")))
        assert way.done
        assert (admission.refused, admission.entry.fence) == (None, 1)
        assert await store.settle(make.settle(entry=make.done(admission.entry)))
        assert len(check_chain(await log_of(store))) == 2, "a new segment was begun"


async def test_a_commit_that_may_have_taken_place_is_not_done_again(shared_url, make):
    async with breaking(shared_url) as (store, way):
        assert await call(store, make, "a")
        way.cut = "before"
        with pytest.raises(UncertainError, match="whether it took place is not known"):
            await store.admit(make.admit(entry=make.entry("b")))
        way.cut = None
        assert (await store.recall("acme", "run_1", "b")).entry is None
        assert await call(store, make, "b")
        assert len(check_chain(await log_of(store))) == 2
