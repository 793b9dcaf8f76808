"""Several workers on one Postgres database: stores side by side, and real processes."""

import asyncio
import json
import subprocess
from collections import Counter
from pathlib import Path

import asyncpg
import pytest

from counterseal.ledger.records import DueKind, HeldStatus
from counterseal.ledger.requests import AdmissionRefusal
from counterseal.storage import open_store
from tests.postgres_server import (
    AWAITED,
    STUCK,
    bare_database,
    borrowed_database,
    drop_database,
    execute,
    seen,
)
from tests.store.chains import check_chain, log_of
from tests.waiting import caller
from tests.warm import warm

pytestmark = pytest.mark.slow
"""A server has to start for them."""

WORKER = Path(__file__).with_name("postgres_worker.py")
WORKERS = 4
KEYS = 60
ROUNDS = 40


@pytest.fixture
def url():
    with borrowed_database() as url:
        yield url


@pytest.fixture
async def stores(url):
    """Two workers' stores on one database."""
    stores = [open_store(url), open_store(url)]
    yield stores
    for store in stores:
        await store.close()


@pytest.fixture
def worker():
    """Starts a process on a database. None outlives the test."""
    started = []

    def start(url, what, *arguments):
        command = warm(WORKER, url, what, *map(str, arguments))
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
    """Let them begin when all are there. What each tells at the end."""
    for process in processes:
        assert told(process) == ["ready"]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    said = [told(process)[0] for process in processes]
    assert [process.wait(60) for process in processes] == [0] * len(processes)
    return said


# --- two stores -----------------------------------------------------------------------------------


async def test_another_worker_is_seen_at_once(stores, make):
    ours, theirs = stores
    await theirs.open_run(make.run(objective="theirs"))
    assert (await ours.open_run(make.run(objective="ours"))).objective == "theirs"
    entry = (await theirs.admit(make.admit(entry=make.entry(), charges=[make.charge(1)]))).entry
    assert (await ours.recall("acme", "run_1", "k")).entry == entry
    assert (await ours.admit(make.admit(entry=make.entry()))).refused is AdmissionRefusal.DUPLICATE
    assert (
        await ours.admit(make.admit(charges=[make.charge(1)]))
    ).refused is AdmissionRefusal.BUDGET
    assert await theirs.change(1, {"kill": "save"}, [])
    assert (await ours.admit(make.admit())).refused is AdmissionRefusal.EPOCH


async def test_of_two_who_want_the_same_new_keys_in_any_order_each_key_goes_to_one(stores, make):
    keys = [f"k{n}" for n in range(40)]

    async def want(store, name, keys):
        wanted = [
            make.admit(
                entry=make.entry(key, call_id=name),
                charges=[make.charge(1e9, f"c{key}"), make.charge(1e9, "all", of_run=False)],
                rates=[make.rate(f"r{key}", interval=1e-9, burst=1000)],
            )
            for key in keys
        ]
        return [one.refused for one in await asyncio.gather(*map(store.admit, wanted))]

    answers = await asyncio.gather(
        want(stores[0], "ours", keys),
        want(stores[1], "theirs", keys[::-1]),
        want(stores[0], "ours", keys[20:] + keys[:20]),
    )
    assert Counter(one for some in answers for one in some) == {
        None: len(keys),
        AdmissionRefusal.DUPLICATE: 2 * len(keys),
    }
    memory = await stores[0].recall("acme", "run_1", None)
    assert memory.tenant_counters == {"all": len(keys)}
    assert memory.run_counters == {f"c{key}": 1 for key in keys}


async def test_the_same_question_is_asked_once_by_two_workers(stores, make):
    asked = [
        store.hold(make.held(f"appr_{number}_{n}"), [make.event()])
        for number in range(10)
        for n, store in enumerate(stores)
    ]
    held = await asyncio.gather(*asked)
    assert len({one.approval_id for one in held}) == 1
    assert len(await stores[0].events("acme")) == 1


async def test_claims_of_two_workers_are_disjoint_and_leave_nothing(stores, make):
    ours, theirs = stores
    keys = {f"k{n}" for n in range(20)}
    for key in keys:
        await ours.admit(make.admit(entry=make.entry(key), lease=0))
        await ours.schedule(0, make.due(key), [])
    for claiming in ("claim_orphans", "claim_due"):
        claims = [make.claim(worker, limit=3) for worker in ("w_2", "w_3")] * 5
        asked = [
            getattr(store, claiming)(claim)
            for store, claim in zip([ours, theirs] * 5, claims, strict=True)
        ]
        claimed = [one for some in await asyncio.gather(*asked) for one in some]
        claimed += await getattr(ours, claiming)(make.claim("w_4"))
        got = [one.key if claiming == "claim_due" else one.entry.key for one in claimed]
        assert Counter(got) == dict.fromkeys(keys, 1)


async def test_who_waits_is_woken_by_another_worker(url, stores, make):
    ours, theirs = stores
    entry = (await theirs.admit(make.admit(entry=make.entry(), lease=3600))).entry
    waiting = [asyncio.create_task(ours.wait("acme", "k", 600)) for _ in range(3)]
    await seen(url, AWAITED)
    assert await theirs.settle(make.settle(entry=make.done(entry)))
    assert await asyncio.wait_for(asyncio.gather(*waiting), 60) == [True] * 3
    assert not execute(url, AWAITED)


async def test_no_notification_is_sent_for_an_entry_without_a_waiter(url, stores, make):
    heard = asyncio.Queue()
    listening = await asyncpg.connect(url)
    await listening.add_listener("counterseal", lambda *what: heard.put_nowait(what))
    for key in ("alone", "awaited"):
        entry = (await stores[0].admit(make.admit(entry=make.entry(key), lease=3600))).entry
        if key == "awaited":
            waiting = asyncio.create_task(stores[1].wait("acme", key, 600))
            await seen(url, AWAITED)
        assert await stores[0].settle(make.settle(entry=make.done(entry)))
    assert await asyncio.wait_for(waiting, 60) is True
    await asyncio.wait_for(heard.get(), 60)
    await listening.execute("NOTIFY counterseal, 'the last'")
    assert (await asyncio.wait_for(heard.get(), 60))[-1] == "the last", "and nobody else was"
    await listening.close()


async def test_no_notification_is_sent_for_a_decision_without_a_waiter(url, stores, make):
    heard = asyncio.Queue()
    listening = await asyncpg.connect(url)
    await listening.add_listener("counterseal", lambda *what: heard.put_nowait(what))
    for name in ("alone", "awaited"):
        await stores[0].hold(make.held(name, key=name, approvers=2), [])
        if name == "awaited":
            waiting = asyncio.create_task(stores[1].wait_held("acme", name, 600))
            await seen(url, "SELECT 1 FROM held WHERE awaited")
        await stores[0].vote(make.ballot("ann", approval_id=name))
        done = make.ballot("ann", "bob", approval_id=name, status=HeldStatus.APPROVED)
        assert await stores[0].vote(done)
    assert await asyncio.wait_for(waiting, 60) is True
    await asyncio.wait_for(heard.get(), 60)
    await listening.execute("NOTIFY counterseal, 'the last'")
    assert (await asyncio.wait_for(heard.get(), 60))[-1] == "the last", "and nobody else was"
    await listening.close()


async def test_a_change_of_the_registry_waits_for_who_rests_on_what_was_before(url, stores, make):
    somebody = await asyncpg.connect(url)
    await somebody.execute("BEGIN; LOCK TABLE rates")
    admitting = asyncio.create_task(
        caller(stores[0].admit, make.admit(entry=make.entry(), rates=[make.rate()]))
    )
    await seen(url, STUCK)
    changing = asyncio.create_task(stores[1].change(1, {"kill": "save"}, []))
    done, _ = await asyncio.wait([changing], timeout=0.2)
    assert not done
    await somebody.execute("COMMIT")
    await somebody.close()
    assert (await admitting).refused is None
    assert await changing is True
    assert (
        await stores[0].admit(make.admit(entry=make.entry("l")))
    ).refused is AdmissionRefusal.EPOCH


async def test_every_worker_extends_a_chain_of_its_own(stores, make):
    for number in range(6):
        await stores[number % 2].settle(make.settle())
    heads = check_chain(await log_of(stores[0]))
    assert len(heads) >= 2
    assert sum(seq for _, seq, _ in heads.values()) == 6


# --- processes ------------------------------------------------------------------------------------


def test_of_many_processes_that_start_at_once_one_makes_the_schema(worker):
    url = bare_database()
    said = at_once([worker(url, "start") for _ in range(WORKERS)])
    assert len(set(said)) == 1, "they are all in one run"
    numbers = execute(url, "SELECT number FROM migrations")
    assert len(numbers) == len(set(numbers)) > 0
    drop_database(url)


def test_one_key_goes_to_one_of_many_processes(url, worker):
    said = at_once([worker(url, "one_key", 16) for _ in range(WORKERS)])
    assert sorted(said) == [0] * (WORKERS - 1) + [1]
    assert execute(url, "SELECT count(*) FROM ledger") == [(1,)]
    assert execute(url, "SELECT count(*) FROM events") == [(1,)]


@pytest.mark.slow
async def test_no_two_processes_reserve_the_same_entry(url, worker, make):
    store = open_store(url)
    for number in range(KEYS):
        await store.hold(make.held(f"appr_{number}", key=f"held_{number}"), [])
        await store.decide("acme", f"appr_{number}", HeldStatus.APPROVED, [])
    won = at_once([worker(url, "hammer", KEYS) for _ in range(WORKERS)])
    keys = Counter(key for one in won for key in one["keys"])
    assert keys == {f"key_{number}": 1 for number in range(KEYS)}
    approvals = Counter(approval for one in won for approval in one["approvals"])
    assert approvals == {f"appr_{number}": 1 for number in range(KEYS)}
    assert sum(one["units"] for one in won) == KEYS, "every unit was spent, and none twice"
    assert sum(one["calls"] for one in won) == 7, "the burst that the rate allows"
    rows = await log_of(store)
    assert len(rows) == 3 * KEYS + 7
    check_chain(rows)
    await store.close()


async def test_of_two_processes_that_vote_at_once_one_is_the_first(url, worker, make):
    store = open_store(url)
    for number in range(ROUNDS):
        await store.hold(make.held(f"appr_{number}", key=f"held_{number}", approvers=2), [])
    first = at_once([worker(url, "approve", voter, ROUNDS) for voter in ("ann", "bob")])
    assert first[0] == [not one for one in first[1]], "never both, and never none"
    for number, anns in enumerate(first[0]):
        voters = ["ann", "bob"] if anns else ["bob", "ann"]
        held = await store.find_held("acme", f"appr_{number}")
        assert [vote["voter"] for vote in held.votes] == voters
        assert (held.status, held.token) == (HeldStatus.APPROVED, voters[1])
        work = await store.find_due("acme", DueKind.EXECUTE, f"appr_{number}")
        assert work.body == {"by": voters[0]}, "it was put down once"
    assert len(await store.events("acme")) == 2 * ROUNDS
    assert not execute(url, "SELECT 1 FROM held WHERE awaited")
    await store.close()


async def test_no_two_processes_claim_the_same(url, worker, make):
    store = open_store(url)
    names = [f"k{number}" for number in range(KEYS)]
    await asyncio.gather(
        *(caller(store.admit, make.admit(entry=make.entry(key), lease=0)) for key in names),
        *(store.schedule(0, make.due(key), []) for key in names),
    )
    await store.close()
    won = at_once([worker(url, "claim") for _ in range(WORKERS)])
    for what in ("orphans", "due"):
        assert Counter(key for one in won for key in one[what]) == dict.fromkeys(names, 1)
