"""How the Postgres store finds what bears on a call: by its key, and for many calls at once."""

import asyncio
import re

import asyncpg
import pytest

from counterseal.errors import StoreError
from counterseal.storage.postgres import PostgresStore
from counterseal.storage.postgres.connections import DatabaseAddress
from tests.postgres_server import drop_database, fresh_database
from tests.waiting import turns, until

pytestmark = pytest.mark.slow
"""A server has to start for them."""


@pytest.fixture
def url():
    # A new one: of one that was lent before, the server may have learned what its tables held.
    url = fresh_database()
    yield url
    drop_database(url)


@pytest.fixture
async def store(url):
    store = PostgresStore(DatabaseAddress.of(url), writers=1, readers=1)
    yield store
    await store.close()


@pytest.fixture
def connections(monkeypatch):
    """All that are made from here on."""
    made, connect = [], asyncpg.connect

    async def kept(*words, **more):
        made.append(await connect(*words, **more))
        return made[-1]

    monkeypatch.setattr(asyncpg, "connect", kept)
    return made


async def plans(connection):
    """How each statement that was prepared is carried out from now on, by its first words."""
    said = await connection.fetch(
        "SELECT name, statement, cardinality(parameter_types) AS takes FROM pg_prepared_statements"
    )
    found = {}
    for name, statement, takes in said:
        nothing = f"({', '.join(['NULL'] * takes)})" if takes else ""
        lines = await connection.fetch(f"EXPLAIN EXECUTE {name}{nothing}")
        found[statement] = "\n".join(line for (line,) in lines)
    return found


async def call(store, make, key):
    entry = make.entry(key)
    await store.recall("acme", "run_1", key)
    await store.admit(make.admit(entry=entry))
    await store.settle(make.settle(entry=make.done(entry)))


async def test_what_was_planned_for_an_empty_ledger_finds_calls_by_their_keys(
    store, make, connections
):
    await store.open_run(make.run())
    for number in range(3):  # a fresh database: nothing is known of what its tables will hold
        await call(store, make, f"key_{number}")
    told = {}
    for connection in connections:
        told |= await plans(connection)
    found = [text for text in told.values() if re.search(r" on ledger\b", text)]
    assert len(found) >= 3, "what is recalled, what is looked at, and what is written"
    for text in found:
        scans = re.findall(r"(?:using (\w+))? on ledger\b.*\n\s*(.*)", text)
        for index, condition in scans:
            if index:
                assert index == "ledger_pkey", text
                assert re.search(r"tenant = .* AND \(key = ", condition), text


async def test_a_call_is_found_by_its_id_among_its_tenants_alone(store, make):
    for tenant in ("acme", "globex"):
        entry = make.entry("k", tenant=tenant, call_id="call_same")
        await store.admit(make.admit(tenant=tenant, entry=entry))
    for tenant in ("acme", "globex"):
        (kept,) = await store.look_up_call(tenant, "call_same")
        assert kept.entry.tenant == tenant
    assert not await store.look_up_call("initech", "call_same")


async def test_runs_are_found_many_at_once(store, make, connections):
    for number in range(20):
        await store.open_run(make.run(f"run_{number}", objective=f"objective {number}"))
    first = await store.implicit_run("acme", "agent", None, 1000.0)
    asked = []
    for connection in connections:
        connection.add_query_logger(asked.append)
    found = await asyncio.gather(
        *(store.find_run("acme", f"run_{number}") for number in range(20)),
        store.find_run("acme", "unknown"),
        store.find_run("globex", "run_1"),
        store.find_implicit_run("acme", "agent", None, 1001.0),
        store.find_implicit_run("acme", "agent", None, 10_000_000.0),
        store.find_implicit_run("acme", "another", None, 1001.0),
    )
    await until(lambda: asked)  # loggers are called a little later
    await turns()
    assert [run.objective for run in found[:20]] == [f"objective {n}" for n in range(20)]
    assert found[20:] == [None, None, first, None, None]
    assert len(asked) <= 4, [one.query for one in asked]


async def test_a_request_for_an_invalid_run_id_locks_nothing(store, make):
    run = await store.open_run(make.run())
    asked = [store.find_run("acme", name) for name in ("run_1", "run\0", "run_1", "none")]
    asked.append(store.recall("acme", "run\0", "k"))
    asked.append(store.recall("acme", "run_1", "k"))
    one, wrong, two, none, lost, recalled = await asyncio.gather(*asked, return_exceptions=True)
    assert (one, two, none) == (run, run, None)
    assert isinstance(wrong, StoreError)
    assert isinstance(lost, StoreError)
    assert recalled.entry is None
