"""On a slow disk commits leave the event loop: streams and pages go on meanwhile."""

import asyncio
import threading

import pytest

from counterseal.errors import StoreError
from counterseal.ledger.entry import EntryStatus
from counterseal.ledger.requests import AdmissionRefusal, Charge
from counterseal.storage.sqlite import SqliteStore
from counterseal.storage.sqlite.database import DiskSpeed
from tests.store.chains import check_chain, log_of
from tests.waiting import caller


class Disk:
    """Holds every commit until it is let go, if it is slow; a commit that waits in vain fails."""

    def __init__(self, database):
        self._database, self._commit = database, database.commit
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.threads = set()
        self.error = None
        self.one_by_one = False
        """Whether each commit must be let go by itself."""
        database.disk.slow = True
        database.disk.note = lambda seconds: None
        database.commit = self.commit

    def commit(self):
        self.threads.add(threading.current_thread())
        if not self._database._synchronous:
            self._commit()  # it does not wait for the disk
            return
        self.reached.set()
        if not self.go_on.wait(60):
            raise TimeoutError("the event loop stood still")
        if self.one_by_one:
            self.go_on.clear()
        if self.error is not None:
            raise self.error
        self._commit()


@pytest.fixture
async def store(tmp_path):
    store = SqliteStore(tmp_path / "store.db")
    yield store
    await store.close()


@pytest.fixture
def disk(store):
    disk = Disk(store._backend.database)
    yield disk
    disk.error = None
    disk.go_on.set()


async def reached(disk):
    assert await asyncio.to_thread(disk.reached.wait, 60)
    disk.reached.clear()


async def test_the_loop_goes_round_while_a_commit_waits_for_the_disk(store, disk, make):
    admitting = asyncio.create_task(caller(store.admit, make.admit(entry=make.entry())))
    await reached(disk)
    assert not admitting.done()
    assert (await store.recall("acme", "run_1", "k")).entry is None, "it is not committed yet"
    assert await store.find_run("acme", "run_1") is None
    assert (await store.recall("acme", "run_1", "k", spent=False)).entry is None
    disk.go_on.set()
    assert (await admitting).refused is None
    assert (await store.recall("acme", "run_1", "k")).entry.status is EntryStatus.PENDING
    assert threading.main_thread() not in disk.threads


async def test_what_comes_during_a_commit_is_gathered_into_the_next_one(store, disk, make):
    first = asyncio.create_task(caller(store.admit, make.admit(entry=make.entry("first"))))
    await reached(disk)
    commits = store._backend.database.commits
    others = [
        asyncio.create_task(caller(store.admit, make.admit(entry=make.entry(f"k{n}"))))
        for n in range(8)
    ]
    store.note(make.event())
    await asyncio.sleep(0)
    assert not any(task.done() for task in others)
    disk.go_on.set()
    answers = await asyncio.gather(first, *others)
    assert [one.refused for one in answers] == [None] * 9
    assert store._backend.database.commits - commits == 2
    check_chain(await log_of(store))


async def test_a_read_is_admitted_before_the_next_commit_of_others(store, disk, make):
    disk.one_by_one = True
    first = asyncio.create_task(caller(store.admit, make.admit(entry=make.entry("first"))))
    await reached(disk)
    second = asyncio.create_task(caller(store.admit, make.admit(entry=make.entry("second"))))
    reads = [asyncio.create_task(caller(store.admit, read_of(make))) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in reads), "the connection is in use"
    disk.go_on.set()
    await reached(disk)
    answers = await asyncio.wait_for(asyncio.gather(*reads), 60)
    refused = [one.refused for one in answers]
    assert refused == [None, None, AdmissionRefusal.BUDGET], "each is counted"
    assert first.done()
    assert not second.done(), "its commit waits for the disk"
    disk.one_by_one = False
    disk.go_on.set()
    assert (await second).refused is None
    counters = (await store.recall("acme", "run_1", None)).run_counters
    assert counters["reads"] == 2


def read_of(make):
    charge = Charge("run.reads", "reads", 1, 2, of_run=True)
    return make.admit(charges=[charge], events=())


async def test_a_reader_of_the_record_waits_for_the_commit_under_way_and_no_other(
    store, disk, make
):
    disk.one_by_one = True
    first = asyncio.create_task(caller(store.admit, make.admit(entry=make.entry("first"))))
    await reached(disk)
    reading = asyncio.create_task(caller(store.tenants))
    await asyncio.sleep(0)
    second = asyncio.create_task(caller(store.admit, make.admit(entry=make.entry("second"))))
    await asyncio.sleep(0)
    disk.go_on.set()
    await reached(disk)
    assert await asyncio.wait_for(reading, 60) == ["acme"]
    assert first.done()
    assert not second.done()
    disk.one_by_one = False
    disk.go_on.set()
    assert (await second).refused is None


async def test_an_outcome_wakes_callers_after_its_commit(store, disk, make):
    disk.go_on.set()
    entry = (await store.admit(make.admit(entry=make.entry()))).entry
    disk.reached.clear()
    disk.go_on.clear()
    waiting = asyncio.create_task(store.wait("acme", "k", 1e6))
    settling = asyncio.create_task(caller(store.settle, make.settle(entry=make.done(entry))))
    await reached(disk)
    assert not waiting.done()
    disk.go_on.set()
    assert await settling is True
    assert await asyncio.wait_for(waiting, 60) is True


async def test_a_caller_that_goes_during_the_commit_loses_nothing(store, disk, make):
    admitting = asyncio.create_task(caller(store.admit, make.admit(entry=make.entry(), lease=0)))
    await reached(disk)
    admitting.cancel()
    await asyncio.wait([admitting])
    disk.go_on.set()
    await store.open_run(make.run())  # comes after the commit
    (orphan,) = await store.claim_orphans(make.claim())
    assert orphan.entry.key == "k", "it was reserved, and is found by the reconciler"


async def test_a_commit_that_fails_in_the_thread_fails_its_callers_alone(store, disk, make):
    disk.error = OSError("input/output error")
    failing = asyncio.create_task(caller(store.admit, make.admit(entry=make.entry("a"))))
    await reached(disk)
    disk.go_on.set()
    with pytest.raises(StoreError, match="input/output error"):
        await failing
    disk.error = None
    store._backend.database._roll_back()
    assert (await store.admit(make.admit(entry=make.entry("b")))).refused is None
    assert (await store.recall("acme", "run_1", "a")).entry is None


async def test_what_does_not_wait_for_the_disk_is_committed_at_once(store, disk, make):
    disk.go_on.set()
    await store.open_run(make.run())
    assert disk.threads == {threading.main_thread()}


async def test_a_store_is_closed_after_the_commit_under_way(tmp_path, make):
    store = SqliteStore(tmp_path / "closing.db")
    disk = Disk(store._backend.database)
    admitting = asyncio.create_task(caller(store.admit, make.admit(entry=make.entry())))
    await reached(disk)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    disk.go_on.set()
    await closing
    assert (await admitting).refused is None
    again = SqliteStore(tmp_path / "closing.db")
    assert (await again.look_up("acme", "k")).entry.status is EntryStatus.PENDING
    await again.close()


def test_a_disk_is_slow_when_most_of_its_commits_are():
    disk = DiskSpeed()
    disk.note(0.5)
    for _ in range(8):
        disk.note(0.0001)
    assert not disk.slow, "one hiccup is none"
    for _ in range(5):
        disk.note(0.01)
    assert disk.slow
    for _ in range(4):
        disk.note(0.0015)
    assert disk.slow, "it must become clearly faster"
    for _ in range(9):
        disk.note(0.0005)
    assert not disk.slow


async def test_commit_times_are_measured(tmp_path, make):
    store = SqliteStore(tmp_path / "measured.db")
    ticks = iter(range(1000))
    store._backend.database.disk.timer = lambda: next(ticks) * 0.005
    for number in range(6):
        await store.admit(make.admit(entry=make.entry(f"k{number}")))
    assert store._backend.database.disk.slow
    await store.admit(make.admit(entry=make.entry("in the thread")))
    assert store._backend.writer._thread is not None
    await store.close()
