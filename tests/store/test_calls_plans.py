"""Searches and numbers over many events go by index: what they look at, and in which order."""

import random
import sqlite3
import time
from contextlib import closing

import pytest

from counterseal.audit import CallFields, Event, EventType, columns_of
from counterseal.audit.chain import GENESIS, extend
from counterseal.ledger.requests import CallFilter
from counterseal.storage import open_store
from counterseal.storage.scripts import statements
from counterseal.storage.sqlite.queries import _CALL_INDEXES, _statement
from tests.postgres_server import borrowed_database

MANY = 200_000
CALLS = MANY // 2
BY_TALLY = ("count_tally", "tallies")
IDS = {
    "caller_call_id": "events_by_caller_call",
    "workflow_id": "events_by_workflow",
    "conversation_id": "events_by_conversation",
    "session_id": "events_by_session",
}
SEARCHES = {
    "rare tool": (CallFilter(tool="rare"), 2),
    "no tool": (CallFilter(tool="none"), 0),
    "agent and code": (CallFilter(agent="agent_1", code="TIMEOUT"), 50),
    "user": (CallFilter(user="u_7"), 50),
    "run": (CallFilter(run_id="run_77"), 10),
    "version": (CallFilter(version="2.0.0"), 2),
    "tool and version": (CallFilter(tool="rare", version="1.0.0"), 0),
    "reference": (CallFilter(external_ref="re_77"), 1),
    **{name: (CallFilter(**{name: f"{name}_7"}), 50) for name in IDS},
    "workflow and session": (CallFilter(workflow_id="workflow_id_7", session_id="none"), 0),
    "all": (CallFilter(), 50),
}


def rows():
    """Two events a call, a day's worth of them; two calls are of a tool that is hardly used."""
    chance, start, head = random.Random(7), time.time() - 86_400, GENESIS
    for number in range(CALLS):
        moment = start + 86_000 * number / CALLS
        tool = "rare" if number % (CALLS // 2) == 5 else f"tool_{chance.randrange(20)}"
        who = (f"agent_{chance.randrange(5)}", f"u_{chance.randrange(100)}")
        version = "2.0.0" if tool == "rare" else "1.0.0"
        place = ("acme", f"run_{number // 10}", f"call_{number:09x}", tool, version)
        own = [f"{name}_{number % 1000}" for name in IDS]
        caller = CallFields(*place, *who, "t", *own)
        failed = number % 9 == 0
        kind, code = (EventType.FAILED, "TIMEOUT") if failed else (EventType.SUCCEEDED, "SUCCESS")
        begun = Event(EventType.STARTED, caller, moment, "allow")
        ended = Event(kind, caller, moment, code, None, f"re_{number}", body={"announced": True})
        for event in (begun, ended):
            columns = columns_of(event)
            link = extend("acme", "s", head, columns, int(moment * 1e6), b"0" * 16)
            head = link.head
            yield link, columns


async def check(store):
    for name, (search, count) in SEARCHES.items():
        assert len(await store.calls("acme", search)) == count, name
    now = time.time()
    sums = await store.tallies("acme", now - 2 * 86_400, now)
    assert sum(one.times for one in sums) == MANY


@pytest.mark.slow
async def test_sqlite_finds_calls_and_counts_them_by_index(tmp_path):
    path = tmp_path / "store.db"
    store = open_store(f"sqlite:///{path}")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = OFF")
        db.execute("BEGIN")
        db.executemany(
            statements("sqlite")["record"], ((*link, *columns) for link, columns in rows())
        )
        db.execute("COMMIT")
        queries = {name: (statements("sqlite")[name], "events_by_tally") for name in BY_TALLY}
        for column, index in _CALL_INDEXES.items():
            queries[column] = (_statement("calls", [column], index), index)
        for name, (query, index) in queries.items():
            plan = db.execute(f"EXPLAIN QUERY PLAN {query}", [None] * query.count("?"))
            steps = [row[3] for row in plan]
            assert any(f"INDEX {index}" in step for step in steps), (name, steps)
            assert not [step for step in steps if "TEMP B-TREE" in step], (name, steps)
        query = _statement("calls", [])
        steps = [
            row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {query}", [None] * query.count("?"))
        ]
        assert steps[0].startswith("SEARCH e USING PRIMARY KEY (tenant=?"), steps
        assert not [step for step in steps if "TEMP B-TREE" in step], steps
    try:
        await check(store)
    finally:
        await store.close()


@pytest.mark.slow
async def test_postgres_finds_calls_and_counts_them_by_index():
    import asyncpg

    fields = [
        "type",
        "tenant",
        "run_id",
        "call_id",
        "tool",
        "version",
        "agent",
        "user_id",
        "trace_id",
        "occurred_at",
        "decision",
        "policy_version",
        "external_ref",
        "body",
        "code",
        "tally",
        "cost",
        *IDS,
        "number",
        "segment",
        "seq",
        "salt",
        "digest",
        "hash",
    ]
    with borrowed_database() as url:
        store = open_store(url)
        await store.ready()
        db = await asyncpg.connect(url)
        try:
            records = [(*columns, *link) for link, columns in rows()]
            await db.copy_records_to_table("events", records=records, columns=fields)
            await db.execute("ANALYZE events")
            await check(store)
            await db.execute("SET plan_cache_mode = force_custom_plan")
            ways = {
                "events_by_tool": CallFilter(tool="rare"),
                "events_by_version": CallFilter(version="2.0.0"),
                "events_by_user": CallFilter(user="u_7"),
                "events_by_run": CallFilter(run_id="run_77"),
                "events_by_code": CallFilter(code="OUT_OF_BOUNDS"),
                "events_by_external_ref": CallFilter(external_ref="re_77"),
                **{index: CallFilter(**{name: f"{name}_7"}) for name, index in IDS.items()},
            }
            edges = (-(2**62), 2**62, None, None, 50)
            for index, search in ways.items():
                values = ("acme", *search[:-4], *edges)
                plan = await explained(db, statements("postgres")["calls"], *values)
                assert index in plan, plan
                assert "Seq Scan" not in plan, plan
            day = int((time.time() - 86_400) * 1e6), int(time.time() * 1e6)
            plan = await explained(
                db, statements("postgres")["tallies"], "acme", [0], [day[0]], [day[1]]
            )
            assert "events_by_tally" in plan, plan
            assert "Seq Scan" not in plan, plan
        finally:
            await db.close()
            await store.close()


async def explained(db, query, *values):
    return "\n".join(row[0] for row in await db.fetch(f"EXPLAIN {query}", *values))
