"""Several processes on one SQLite file, and processes that are killed: real ones."""

import asyncio
import json
import random
import signal
import subprocess
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from counterseal.ledger.entry import EntryStatus
from counterseal.ledger.records import DueKind, HeldStatus
from counterseal.storage.sqlite import SqliteStore
from tests.store.chains import check_chain, log_of
from tests.waiting import caller
from tests.warm import warm

WORKER = Path(__file__).with_name("sqlite_worker.py")
WORKERS = 4
KEYS = 120
ROUNDS = 40


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture
def worker(path):
    """Starts a process on the file. None outlives the test."""
    started = []

    def start(what, *arguments):
        command = warm(WORKER, path, what, *map(str, arguments))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        started.append(subprocess.Popen(command, text=True, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def told(process):
    """What a process tells next."""
    line = process.stdout.readline()
    assert line, "the process ended without a word"
    return json.loads(line)


def at_once(processes):
    """Let them begin when all are there."""
    for process in processes:
        assert told(process) == ["ready"]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()


def is_sound(path, somebody_else):
    with somebody_else(path) as other:
        return other.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.slow
async def test_no_two_processes_reserve_the_same_entry(path, worker, make, somebody_else):
    store = SqliteStore(path, patience=60)
    for number in range(KEYS):
        await store.hold(make.held(f"appr_{number}", key=f"held_{number}"), [])
        await store.decide("acme", f"appr_{number}", HeldStatus.APPROVED, [])
    processes = [worker("hammer", KEYS) for _ in range(WORKERS)]
    at_once(processes)
    won = [told(process)[0] for process in processes]
    assert [process.wait(60) for process in processes] == [0] * WORKERS

    keys = Counter(key for one in won for key in one["keys"])
    assert keys == {f"key_{number}": 1 for number in range(KEYS)}
    approvals = Counter(approval for one in won for approval in one["approvals"])
    assert approvals == {f"appr_{number}": 1 for number in range(KEYS)}
    assert sum(one["units"] for one in won) == KEYS, "every unit was spent, and none twice"
    assert sum(one["calls"] for one in won) == 7, "the burst that the rate allows"
    memory = await store.recall("acme", "run_1", None)
    assert memory.tenant_counters["units"] == KEYS
    admitted = 2 * KEYS + KEYS + 7
    assert len(await store.events("acme")) == admitted
    segments = check_chain(await log_of(store))
    assert len(segments) == sum(any(one.values()) for one in won), "each has one of its own"
    await store.close()
    assert is_sound(path, somebody_else)


@pytest.mark.slow
async def test_of_two_processes_that_vote_at_once_one_is_the_first(path, worker, make):
    store = SqliteStore(path, patience=60)
    for number in range(ROUNDS):
        await store.hold(make.held(f"appr_{number}", key=f"held_{number}", approvers=2), [])
    processes = [worker("approve", voter, ROUNDS) for voter in ("ann", "bob")]
    at_once(processes)
    first = [told(process)[0] for process in processes]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert first[0] == [not one for one in first[1]], "never both, and never none"
    for number, anns in enumerate(first[0]):
        voters = ["ann", "bob"] if anns else ["bob", "ann"]
        held = await store.find_held("acme", f"appr_{number}")
        assert [vote["voter"] for vote in held.votes] == voters
        assert (held.status, held.token) == (HeldStatus.APPROVED, voters[1])
        work = await store.find_due("acme", DueKind.EXECUTE, f"appr_{number}")
        assert work.body == {"by": voters[0]}, "it was put down once"
    assert len(await store.events("acme")) == 2 * ROUNDS
    await store.close()


@pytest.mark.slow
def test_of_many_that_start_at_once_one_makes_the_schema(path, worker, somebody_else):
    processes = [worker("start") for _ in range(WORKERS)]
    at_once(processes)
    assert len({told(process)[0] for process in processes}) == 1, "they are all in one run"
    assert [process.wait(60) for process in processes] == [0] * WORKERS
    with somebody_else(path) as other:
        numbers = other.execute("SELECT number FROM migrations").fetchall()
    assert len(numbers) == len(set(numbers)) > 0


async def test_what_was_committed_survives_a_kill_and_what_was_not_is_nowhere(
    path, worker, somebody_else
):
    process = worker("die")
    assert told(process) == ["admitted", ["before"]]
    assert process.wait(60) == -signal.SIGKILL
    store = SqliteStore(path)
    assert (await store.recall("acme", "run_1", "before")).entry.status is EntryStatus.PENDING
    memory = await store.recall("acme", "run_1", "during")
    assert (memory.entry, memory.tenant_counters) == (None, {"writes": 1})
    assert len(await store.events("acme")) == 1
    check_chain(await log_of(store))
    await store.close()
    assert is_sound(path, somebody_else)


@pytest.mark.slow
async def test_whenever_a_process_is_killed_all_acknowledged_writes_are_there(
    path, worker, somebody_else
):
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    promised = {}
    for round_ in range(6):
        process = worker("endless", f"round{round_}")
        lines = [told(process) for _ in range(chance.randrange(1, 60))]
        process.kill()
        rest = process.stdout.read().splitlines(keepends=True)
        lines += [json.loads(line) for line in rest if "\n" in line]
        for status, keys in lines:
            settled = EntryStatus.COMPLETED if status == "settled" else EntryStatus.PENDING
            promised.update(dict.fromkeys(keys, settled))
        process.wait(60)
    assert promised, seed
    store = SqliteStore(path)
    for key, status in promised.items():
        entry = (await store.recall("acme", "run_1", key)).entry
        assert entry is not None, (seed, key)
        assert entry.status in (status, EntryStatus.COMPLETED), (seed, key)
    heads = check_chain(await log_of(store))
    assert len(heads) == 6, "each life has a segment of its own"
    assert heads == await store.heads("acme", 0)
    await store.close()
    assert is_sound(path, somebody_else)


@pytest.mark.slow
async def test_no_two_processes_claim_the_same_orphan(path, worker, make):
    store = SqliteStore(path, patience=60)
    keys = [f"key_{number}" for number in range(60)]
    requests = [make.admit(entry=make.entry(key), lease=0) for key in keys]
    await asyncio.gather(*map(partial(caller, store.admit), requests))
    processes = [worker("orphans", 3) for _ in range(WORKERS)]
    at_once(processes)
    claimed = [one for process in processes for one in told(process)[0]]
    assert [process.wait(60) for process in processes] == [0] * WORKERS
    assert sorted(claimed) == sorted([key, 2] for key in keys)
    await store.close()


@pytest.mark.slow
async def test_who_waits_is_woken_by_another_process(path, worker):
    store = SqliteStore(path)
    process = worker("work", "k")
    assert told(process) == ["holds", "k"]
    waiting = asyncio.create_task(store.wait("acme", "k", 1e6))
    assert await store.wait("acme", "k", 0.05) is False
    assert not waiting.done()
    process.stdin.write("\n")
    process.stdin.flush()
    assert await asyncio.wait_for(waiting, 60) is True
    assert (await store.recall("acme", "run_1", "k")).entry.status is EntryStatus.COMPLETED
    assert told(process) == [True]
    await store.close()
