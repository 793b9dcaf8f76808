"""The chain that an SQLite store writes, whatever happens to its commits."""

import asyncio
from functools import partial

import pytest

from counterseal.errors import StoreError
from counterseal.storage.sqlite import SqliteStore
from tests.store.chains import check_chain, log_of
from tests.waiting import caller, turns, until


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture
async def store(path):
    store = SqliteStore(path)
    yield store
    await store.close()


async def seqs(store):
    """How long each segment is, in the order in which they began; and that they hold."""
    heads = check_chain(await log_of(store))
    return [head[1] for head in heads.values()]


async def test_a_store_that_is_opened_again_begins_a_segment(path, make):
    for many in (2, 3):
        store = SqliteStore(path)
        await store.settle(make.settle(events=[make.event()] * many))
        await store.close()
    store = SqliteStore(path)
    assert await seqs(store) == [2, 3]
    await store.close()


async def test_two_stores_on_one_file_have_a_segment_each(path, store, make):
    other = SqliteStore(path)
    for _ in range(3):
        await store.settle(make.settle())
        await other.settle(make.settle(events=[make.event()] * 2))
    assert await seqs(store) == [3, 6]
    assert await log_of(store) == await log_of(other)
    await other.close()


async def test_what_fails_beside_others_leaves_no_gap(store, make):
    bad = make.admit(entry=make.entry("bad", request_hash=None), events=[make.event()] * 3)
    wanted = [make.admit(entry=make.entry(f"k{n}"), events=[make.event()] * 2) for n in range(4)]
    wanted.insert(2, bad)
    for _ in range(2):
        await asyncio.gather(*map(partial(caller, store.admit), wanted), return_exceptions=True)
        await store.settle(make.settle())
    assert await seqs(store) == [10]


async def test_what_could_not_be_written_leaves_no_gap(path, store, make, somebody_else):
    await store.settle(make.settle())
    connection = store._backend.database.connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    large = make.event()._replace(body={"text": "x" * 50_000})
    with pytest.raises(StoreError, match="no room left"):
        await store.settle(make.settle(events=[large]))
    connection.execute("PRAGMA max_page_count = 1073741823")
    with somebody_else(path, "BEGIN IMMEDIATE") as other:
        waiting = asyncio.create_task(caller(store.settle, make.settle()))
        await turns()
        other.execute("COMMIT")
    await waiting
    assert await seqs(store) == [2]


async def test_after_a_commit_of_unknown_outcome_a_new_segment_begins(path, store, make):
    resource = pytest.importorskip("resource")
    await store.settle(make.settle())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = path.with_name("store.db-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (log, limits[1]))  # the log can't grow any more
    try:
        with pytest.raises(StoreError):
            await store.settle(make.settle())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    for _ in range(2):
        await store.settle(make.settle())
    assert await seqs(store) == [1, 2]


async def test_a_clock_that_goes_back_does_not_turn_the_record_round(path, make):
    moments = iter([1000.0, 990.0, 1000.000001, 0.0, 2000.0])
    store = SqliteStore(path, clock=lambda: next(moments))
    for number in range(5):
        await store.settle(make.settle(events=[make.event(call_id=f"call_{number}")]))
    rows = await log_of(store)
    check_chain(rows)
    micros = 1_000_000_000
    assert [row.link.number - micros for row in rows] == [0, 1, 2, 3, micros]
    assert [row.columns[3] for row in rows] == [f"call_{number}" for number in range(5)]
    await store.close()


# --- waiting --------------------------------------------------------------------------------------


async def test_the_file_is_polled_for_changes_only_while_a_caller_waits(store, make):
    entry = (await store.admit(make.admit(entry=make.entry()))).entry
    said = []
    store._backend.database.connection.set_trace_callback(said.append)

    def looks():
        return said.count("PRAGMA data_version")

    await turns()
    assert looks() == 0
    waiting = [asyncio.create_task(store.wait("acme", "k", 1e6)) for _ in range(3)]
    await until(lambda: looks() >= 3)
    reads = [one for one in said if "lease_until" in one]
    assert len(reads) == 3, "each has read once: nothing has changed since"
    await store.settle(make.settle(entry=make.done(entry)))
    assert await asyncio.gather(*waiting) == [True] * 3
    before = looks()
    await turns()
    assert looks() == before


async def test_an_outcome_whose_caller_has_gone_wakes_the_waiters(path, store, make, somebody_else):
    entry = (await store.admit(make.admit(entry=make.entry()))).entry
    waiting = asyncio.create_task(store.wait("acme", "k", 1e6))
    with somebody_else(path, "BEGIN IMMEDIATE"):
        settling = asyncio.create_task(caller(store.settle, make.settle(entry=make.done(entry))))
        await turns()
        settling.cancel()
        await asyncio.wait([settling])
    assert await asyncio.wait_for(waiting, 60) is True


async def test_who_waits_is_told_when_the_store_is_closed(path, make):
    store = SqliteStore(path)
    await store.admit(make.admit(entry=make.entry()))
    waiting = asyncio.create_task(store.wait("acme", "k", 1e6))
    await turns()
    await store.close()
    with pytest.raises(StoreError, match="was closed"):
        await asyncio.wait_for(waiting, 60)


def test_who_waited_in_another_event_loop_is_forgotten(path, make):
    store = SqliteStore(path)

    async def wait_in_vain():
        await store.admit(make.admit(entry=make.entry(), lease=3600))
        waiting = asyncio.create_task(store.wait("acme", "k", 1e6))
        await turns()
        assert not waiting.done()

    async def wait():
        return await store.wait("acme", "k", 0.05), await store.wait("acme", "none", 1)

    asyncio.run(wait_in_vain())
    assert asyncio.run(wait()) == (False, True)
    asyncio.run(store.close())
