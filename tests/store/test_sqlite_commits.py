"""How the SQLite store writes: together, waiting for others, and what happens when it can't."""

import asyncio
from functools import partial

import pytest

from counterseal.errors import StoreError
from counterseal.ledger.requests import AdmissionRefusal, Charge, RateLimit
from counterseal.storage.sqlite import SqliteStore
from counterseal.storage.sqlite.file import LockedError
from tests.store.kept import keep
from tests.waiting import caller, turns, until


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture
async def store(path):
    store = SqliteStore(path)
    yield store
    await store.close()


@pytest.fixture
def keys_in(somebody_else):
    """The keys that somebody else would find in a file."""

    def keys_in(path):
        with somebody_else(path) as other:
            return {key for (key,) in other.execute("SELECT key FROM ledger")}

    return keys_in


@pytest.fixture
def events_in(somebody_else):
    def events_in(path):
        with somebody_else(path) as other:
            return other.execute("SELECT count(*) FROM events").fetchone()[0]

    return events_in


def statements_of(store):
    """Everything that the store says to SQLite from now on."""
    said = []
    store._backend.database.connection.set_trace_callback(said.append)
    return said


# --- many in one commit ---------------------------------------------------------------------------


async def test_what_many_spend_together_is_read_once_and_written_once(store, make):
    await store.open_run(make.run())
    charge, rate = (
        Charge("run.reads", "reads", 1, 20, of_run=True),
        RateLimit("tool/save", 0.001, 64),
    )
    asked = make.admit(charges=[charge], rates=[rate])
    await store.admit(asked)  # pins the version
    said = statements_of(store)
    answers = await asyncio.gather(*(caller(store.admit, asked) for _ in range(32)))
    assert [one.refused for one in answers] == [None] * 19 + [AdmissionRefusal.BUDGET] * 13
    assert (await store.recall("acme", "run_1", None)).run_counters == {"reads": 20}
    commits = said.count("COMMIT")
    for once in ("SELECT spent", "INSERT INTO counters", "SELECT arrival", "INSERT INTO rates"):
        assert sum(one.startswith(once) for one in said) <= commits < 32


async def test_an_admission_sees_what_came_before_it_in_the_same_commit(store, make):
    await store.open_run(make.run())
    answers = await asyncio.gather(
        caller(store.admit, make.admit(entry=make.entry("a"), version="1.0.0")),
        caller(store.admit, make.admit(entry=make.entry("b"), version="2.0.0")),
        caller(store.settle, make.settle(state=[("case", "replace", 1)])),
        caller(store.admit, make.admit(entry=make.entry("c"), reads={"case": 0})),
        store.change(1, {"op": "kill"}, ()),
        caller(store.admit, make.admit(entry=make.entry("d"))),
    )
    pinned, stale, outdated = (answers[n].refused for n in (1, 3, 5))
    assert (pinned, stale, outdated) == (
        AdmissionRefusal.PIN,
        AdmissionRefusal.STATE,
        AdmissionRefusal.EPOCH,
    )


# --- somebody else writes -------------------------------------------------------------------------


async def test_who_finds_the_file_locked_waits_without_holding_up_the_loop(
    path, store, make, somebody_else
):
    with somebody_else(path, "BEGIN IMMEDIATE") as other:
        admitting = [
            asyncio.create_task(caller(store.admit, make.admit(entry=make.entry(key))))
            for key in "abc"
        ]
        for _ in range(20):  # the loop goes round, and readers read
            await turns(5)
            assert (await store.recall("acme", "run_1", "a")).entry is None
        assert not any(task.done() for task in admitting)
        other.execute("COMMIT")
        answers = await asyncio.gather(*admitting)
    assert [one.refused for one in answers] == [None] * 3


async def test_a_claim_that_finds_nothing_waits_for_no_lock(path, store, make, somebody_else):
    await store.admit(make.admit(entry=make.entry(tool="send"), lease=0))
    await store.schedule(0, make.due(tool="send"), [])
    with somebody_else(path, "BEGIN IMMEDIATE"):
        claim = make.claim(tools={"save"})
        asked = asyncio.gather(store.claim_orphans(claim), store.claim_due(claim))
        assert await asyncio.wait_for(asked, 60) == [[], []], "there is some, but for another tool"


async def test_patience_ends_and_nothing_is_written_afterwards(path, make, somebody_else, keys_in):
    store = SqliteStore(path, patience=0.1)
    with somebody_else(path, "BEGIN IMMEDIATE"):
        answers = await asyncio.gather(
            *(caller(store.admit, make.admit(entry=make.entry(key))) for key in "abc"),
            return_exceptions=True,
        )
        assert [type(one) for one in answers] == [LockedError] * 3
        assert "held by another program for more than 0.1 seconds" in str(answers[0])
    assert (await store.admit(make.admit(entry=make.entry("d")))).refused is None
    await store.close()
    assert keys_in(path) == {"d"}


def test_a_file_that_is_locked_as_a_whole_is_not_opened(path, somebody_else):
    with somebody_else(path, "PRAGMA locking_mode = EXCLUSIVE") as other:
        other.execute("CREATE TABLE songs (name TEXT)")
        with pytest.raises(LockedError, match="is locked by another program"):
            SqliteStore(path, patience=0.1)


async def test_another_process_is_seen_at_once(path, store, make):
    other = SqliteStore(path)
    await other.open_run(make.run(objective="theirs"))
    assert (await store.open_run(make.run(objective="ours"))).objective == "theirs"
    entry = (await other.admit(make.admit(entry=make.entry(), charges=[make.charge(1)]))).entry
    assert (await store.recall("acme", "run_1", "k")).entry == entry
    assert (await store.admit(make.admit(entry=make.entry()))).refused is AdmissionRefusal.DUPLICATE
    assert (
        await store.admit(make.admit(charges=[make.charge(1)]))
    ).refused is AdmissionRefusal.BUDGET
    await other.close()


# --- group commit ---------------------------------------------------------------------------------


async def test_who_is_alone_is_committed_at_once_without_a_turn_of_the_loop(store, make):
    turns = []
    asyncio.get_running_loop().call_soon(turns.append, 1)
    entry = (await store.admit(make.admit(entry=make.entry()))).entry
    await store.settle(make.settle(entry=make.done(entry)))
    assert turns == []


async def test_what_waits_together_is_committed_together(store, make):
    async def call(number):
        entry = make.entry(f"k{number}")
        admitted = (await store.admit(make.admit(entry=entry))).entry
        await asyncio.sleep(0)
        return await store.settle(make.settle(entry=make.done(admitted)))

    said = statements_of(store)
    assert all(await asyncio.gather(*map(call, range(64))))
    assert said.count("COMMIT") <= 8, "not 128"
    assert said.count("COMMIT") == said.count("BEGIN IMMEDIATE")


async def test_a_crowd_looks_at_the_file_once_in_a_turn(store, make):
    runs = [make.run(f"run_{n}") for n in range(32)]
    await asyncio.gather(*map(store.open_run, runs))

    async def call(run, key):
        await store.find_run(run.tenant, run.run_id)
        await store.recall(run.tenant, run.run_id, key, spent=False)
        await store.admit(make.admit(run_id=run.run_id, entry=make.entry(key)))

    for time in range(3):  # by the third time they are a crowd, and their runs are known
        said = statements_of(store)
        await asyncio.gather(*(call(run, f"{run.run_id}/{time}") for run in runs))
    assert said.count("PRAGMA data_version") <= 3


async def test_a_batch_sees_what_another_process_committed_before_it(path, store, make):
    other, names = SqliteStore(path), [f"run_{n}" for n in range(8)]
    await asyncio.gather(*(store.open_run(make.run(name)) for name in names))

    async def look(name):
        run = await store.find_run("acme", name)
        found = await store.recall("acme", name, f"theirs_{run.turn}", spent=False)
        await store.admit(make.admit(run_id=name))
        return run.turn, found.entry is not None

    for turn in range(2, 7):
        await asyncio.gather(*map(look, names))
        assert store._backend.writer.crowded
        for name in names:
            await other.new_turn("acme", name, ())
        await other.admit(make.admit(entry=make.entry(f"theirs_{turn}")))
        assert await asyncio.gather(*map(look, names)) == [(turn, True)] * 8
    await other.close()


def test_one_who_ends_the_program_does_not_keep_others_from_their_answers(path, make):
    store, told = SqliteStore(path), []

    async def main():
        async def call(n):
            await store.admit(make.admit(entry=make.entry(f"k{n}")))
            if n == 1:
                raise SystemExit(3)
            told.append(n)

        tasks = [asyncio.create_task(call(n)) for n in range(4)]
        await asyncio.sleep(0)
        await asyncio.wait(tasks)

    loop = asyncio.new_event_loop()
    with pytest.raises(SystemExit):
        loop.run_until_complete(main())
    loop.run_until_complete(asyncio.sleep(0))
    assert told == [0, 2, 3]
    loop.run_until_complete(store.close())
    loop.close()


async def test_no_caller_is_answered_before_the_commit(path, store, make, keys_in):
    async def admit(number):
        await store.admit(make.admit(entry=make.entry(f"k{number}")))
        return f"k{number}" in keys_in(path)

    assert all(await asyncio.gather(*map(admit, range(16))))


async def test_one_that_fails_leaves_the_others_and_nothing_of_itself(path, store, make, keys_in):
    unfit = make.entry("unfit", request_hash=None)
    unspoken = make.event()._replace(body={"what": object()})
    wanted = [make.admit(entry=make.entry(f"k{n}"), charges=[make.charge(9)]) for n in range(4)]
    wanted.insert(2, make.admit(entry=unfit, charges=[make.charge(9)]))
    wanted.insert(4, make.admit(entry=make.entry("x"), events=[make.event(), unspoken]))
    admitting = [caller(store.admit, one) for one in wanted]
    answers = await asyncio.gather(*admitting, return_exceptions=True)
    failed = [n for n, answer in enumerate(answers) if isinstance(answer, Exception)]
    assert failed == [2, 4]
    assert isinstance(answers[2], StoreError)
    assert keys_in(path) == {"k0", "k1", "k2", "k3"}
    assert (await store.recall("acme", "run_1", None)).run_counters == {"writes": 4}
    assert len(await store.events("acme")) == 4


async def test_an_admission_is_dropped_when_its_caller_has_gone_but_an_outcome_is_not(
    path, store, make, somebody_else
):
    entry = (await store.admit(make.admit(entry=make.entry()))).entry
    with somebody_else(path, "BEGIN IMMEDIATE"):
        admitting = asyncio.create_task(caller(store.admit, make.admit(entry=make.entry("gone"))))
        settling = asyncio.create_task(caller(store.settle, make.settle(entry=make.done(entry))))
        await turns()
        admitting.cancel()
        settling.cancel()
        await asyncio.wait([admitting, settling])
    await store.open_run(make.run())
    assert (await store.recall("acme", "run_1", "gone")).entry is None
    assert (await store.recall("acme", "run_1", "k")).entry == make.done(entry)


async def test_an_event_without_a_waiter_is_written_soon_by_itself(path, store, make, events_in):
    store.note(make.event())
    assert events_in(path) == 0
    await until(lambda: events_in(path) == 1)


async def test_events_without_a_waiter_are_written_on_close(path, make, somebody_else, events_in):
    store = SqliteStore(path)
    store.note(make.event())
    pointer = keep(store, "acme", b"raw \x00 bytes")
    await store.close()
    assert events_in(path) == 1
    with somebody_else(path) as other:
        kept = other.execute("SELECT raw FROM vault WHERE pointer = ?", (pointer,)).fetchone()[0]
    assert kept == b"raw \x00 bytes"


def test_a_store_outlives_the_event_loop_that_it_was_used_in(path, make, events_in):
    store = SqliteStore(path)

    async def use(key):
        store.note(make.event())
        wanted = [make.admit(entry=make.entry(f"{key}{n}")) for n in range(3)]
        answers = await asyncio.gather(*map(partial(caller, store.admit), wanted))
        return [one.refused for one in answers]

    assert asyncio.run(use("a")) == [None] * 3
    store.note(make.event())
    assert asyncio.run(use("b")) == [None] * 3
    asyncio.run(store.close())
    assert events_in(path) == 9
