"""What the SQLite store waits for the disk with, and what happens when the disk fails it."""

import asyncio
import sqlite3
from contextlib import contextmanager

import pytest

from counterseal.audit import EventType
from counterseal.errors import StoreError
from counterseal.storage.sqlite import SqliteStore, writer
from tests.waiting import caller, until


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture
async def store(path):
    store = SqliteStore(path)
    yield store
    await store.close()


def keys_in(path, somebody_else):
    with somebody_else(path) as other:
        return {key for (key,) in other.execute("SELECT key FROM ledger")}


async def test_only_commits_that_a_caller_relies_on_wait_for_the_disk(store, make):
    async def waits(doing):
        await doing
        (level,) = store._backend.database.connection.execute("PRAGMA synchronous").fetchone()
        return level == 2

    assert not await waits(store.open_run(make.run()))
    assert not await waits(store.admit(make.admit(charges=[make.charge()], events=())))
    assert await waits(store.admit(make.admit()))
    assert await waits(store.admit(make.admit(entry=make.entry(), events=())))
    assert await waits(store.settle(make.settle()))
    assert not await waits(store.new_turn("acme", "run_1", ()))
    assert await waits(store.hold(make.held(), []))


async def test_what_did_not_wait_for_the_disk_is_safe_soon(store, make):
    await store.open_run(make.run())
    assert store._backend.database.unsynced
    await until(lambda: not store._backend.database.unsynced)


async def test_a_reader_that_keeps_the_log_from_being_copied_keeps_nothing_from_the_disk(
    path, store, make, somebody_else
):
    database = store._backend.database
    await store.open_run(make.run())
    assert database.checkpoint()
    with somebody_else(path) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM runs").fetchone()
        await store.open_run(make.run("run_2"))
        assert not database.checkpoint()
        assert database.unsynced, "SQLite has copied nothing, and has not waited for the disk"
    assert database.checkpoint()
    assert not database.unsynced


async def test_the_log_is_copied_into_the_file_while_writers_are_locked_out(
    path, store, make, somebody_else
):
    database = store._backend.database
    assert database.connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)
    await store.open_run(make.run())
    assert database.checkpoint()
    seen = []

    def meanwhile(said):
        if "wal_checkpoint" in said:
            with somebody_else(path) as other:
                try:
                    other.execute("BEGIN IMMEDIATE")
                    seen.append("wrote")
                except sqlite3.OperationalError:
                    seen.append("locked out")

    database._checkpointer.set_trace_callback(meanwhile)
    await store.settle(make.settle(events=[make.event()] * 16_000))
    assert seen == ["locked out"]
    assert database.logged == 0
    size = path.with_name("store.db-wal").stat().st_size
    for _ in range(5):
        await store.settle(make.settle(events=[make.event()] * 16_000))
    assert path.with_name("store.db-wal").stat().st_size < 2 * size


async def test_the_log_is_not_copied_during_a_write_unless_it_is_long(store, make, monkeypatch):
    monkeypatch.setattr(writer, "_MANY", 20)
    monkeypatch.setattr(writer, "_TOO_MANY", 200)
    database, soon = store._backend.database, store._backend.writer._on_timer

    async def write():
        await store.settle(make.settle(events=[make.event()]))

    await write()
    soon()
    await write()
    assert database.logged > 20
    soon()
    assert database.logged > 20, "somebody has written since the last time"
    soon()
    assert database.logged == 0
    for _ in range(30):
        before = database.logged
        await write()
        if database.logged < before:
            return
    pytest.fail("it grew and grew")


@contextmanager
def full(store):
    """No more pages for this file."""
    connection = store._backend.database.connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    try:
        yield
    finally:
        connection.execute("PRAGMA max_page_count = 1073741823")


async def test_a_full_disk_refuses_everything_and_is_got_over_without_a_restart(
    path, store, make, snapshot, somebody_else
):
    big = {"text": "x" * 20_000}
    large = make.event()._replace(body=big)
    first = (await store.admit(make.admit(entry=make.entry("k")))).entry
    before = await snapshot(store, keys="kabc")
    with full(store):
        store.note(make.event(EventType.FAILED)._replace(body=big))
        answers = await asyncio.gather(
            caller(store.settle, make.settle(entry=make.done(first, observation=big))),
            *(
                caller(store.admit, make.admit(entry=make.entry(key), events=[large]))
                for key in "abc"
            ),
            return_exceptions=True,
        )
        assert [type(one) for one in answers] == [StoreError] * 4
        assert "no room left" in str(answers[0])
        assert await snapshot(store, keys="kabc") == before
    assert await store.settle(make.settle(entry=make.done(first, observation=big))) is True
    # The event that nobody waited for was not forgotten meanwhile.
    kinds = [event.type for _, event in await store.events("acme")]
    assert kinds.count(EventType.FAILED) == 1
    with somebody_else(path) as other:
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_what_can_not_be_kept_does_not_get_in_the_way_of_what_can(store, make):
    with full(store):
        store.note(make.event()._replace(body={"text": "x" * 50_000}))
        with pytest.raises(StoreError, match="no room left"):
            await store.admit(make.admit(entry=make.entry(), events=()))
        assert (await store.admit(make.admit(charges=[make.charge()], events=()))).refused is None


async def test_what_is_left_at_the_end_is_told(path, make):
    store = SqliteStore(path)
    store._backend.database.connection.execute("PRAGMA max_page_count = 1")  # it has more already
    store.note(make.event()._replace(body={"text": "x" * 50_000}))
    with pytest.raises(StoreError, match=r"1 records were not kept: .* no room left"):
        await store.close()


async def test_a_commit_that_fails_fails_all_of_it_and_the_next_one_succeeds(
    path, store, make, somebody_else
):
    resource = pytest.importorskip("resource")
    await store.open_run(make.run())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = path.with_name("store.db-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (log, limits[1]))  # the log can't grow any more
    try:
        said = []
        store._backend.database.connection.set_trace_callback(said.append)
        answers = await asyncio.gather(
            *(caller(store.admit, make.admit(entry=make.entry(f"k{n}"))) for n in range(4)),
            return_exceptions=True,
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [type(one) for one in answers] == [StoreError] * 4
    assert said.count("COMMIT") == 2, "it was the commit that failed"
    assert keys_in(path, somebody_else) == set()
    answers = await asyncio.gather(
        *(caller(store.admit, make.admit(entry=make.entry(f"k{n}"))) for n in range(4))
    )
    assert [one.refused for one in answers] == [None] * 4
    assert keys_in(path, somebody_else) == {"k0", "k1", "k2", "k3"}
