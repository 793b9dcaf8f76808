"""A store that fails denies: nothing runs without a reservation, and it is got over by itself."""

import sqlite3
from contextlib import contextmanager
from typing import Annotated

import pytest
from pydantic import Field

from counterseal import Context, Grant, Proposal, tool
from counterseal.codes import Code
from counterseal.ledger.entry import destination_key
from counterseal.reconcile import Reconciler
from counterseal.runtime import Runtime
from counterseal.storage.sqlite import SqliteStore
from counterseal.testing import someone
from tests.postgres_server import fresh_database, private_server
from tests.postgres_server import seen as seen_by

done = []
Note = Annotated[str, Field(max_length=50_000, description="Anything.")]


@tool(effect="draft", version="1.0.0", owner="tests", on_unknown="retry_same_key")
async def write(note: Note, ctx: Context) -> dict[str, str]:
    """Write a note."""
    if ctx.key not in done:
        done.append(ctx.key)
    return {"note": note[:20]}


@tool(effect="read_only", version="1.0.0", owner="tests", observability={"audit_required": True})
async def look() -> dict[str, int]:
    """Look, on record."""
    return {"done": len(done)}


async def no_pause(_seconds):
    pass


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture
async def runtime(path):
    done.clear()
    store = SqliteStore(path, patience=0.2)
    runtime = Runtime(store, lease=0.05, pause=no_pause)
    grants = [Grant(agent="agent", tool=name, max_calls_per_run=50) for name in ("write", "look")]
    runtime.register(write, look, grants=grants)
    async with runtime:
        yield runtime


def sent(key):
    """A caller's key as the destination gets it."""
    return destination_key("acme", f"call:write:{key}")


def ask(key="k", note="x" * 20_000):
    return Proposal(tool="write", arguments={"note": note}, run_id="run_1", key=key)


@contextmanager
def full(runtime, path):
    """No more room for this file."""
    connection = runtime.store._backend.database.connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    try:
        yield
    finally:
        connection.execute("PRAGMA max_page_count = 1073741823")


@contextmanager
def locked(runtime, path):
    """Another program holds the file."""
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield
    finally:
        other.close()


@contextmanager
def read_only(runtime, path):
    """The file can't be written."""
    connection = runtime.store._backend.database.connection
    connection.execute("PRAGMA query_only = 1")
    try:
        yield
    finally:
        connection.execute("PRAGMA query_only = 0")


FAILURES = pytest.mark.parametrize("fails", [full, locked, read_only])


@FAILURES
async def test_nothing_runs_while_it_can_not_be_put_on_record(runtime, path, fails):
    assert (await runtime.submit(ask("first"), someone())).ok
    with fails(runtime, path):
        seen = await runtime.submit(ask(), someone())
        assert (seen.code, seen.ok) == (Code.DEPENDENCY_UNAVAILABLE, False)
        assert seen.response.retryable
        assert "store.db" not in seen.for_model()
        assert sent("k") not in done
    again = await runtime.submit(ask(), someone())
    assert (again.ok, again.idempotency_hit) == (True, False)
    assert done == [sent("first"), sent("k")]


@FAILURES
async def test_a_read_that_must_be_on_record_gives_no_answer_without(runtime, path, fails):
    await runtime.submit(ask("first"), someone())
    big = Proposal(tool="look", arguments={}, run_id="r" * 100, call_id="c" * 100)
    with fails(runtime, path):
        answers = [await runtime.submit(big, someone()) for _ in range(40 if fails is full else 1)]
        assert answers[-1].code is Code.DEPENDENCY_UNAVAILABLE
        assert answers[-1].data is None
    assert (await runtime.submit(big, someone())).ok


@FAILURES
async def test_what_ran_and_could_not_be_settled_is_found_again(runtime, path, fails):
    settle = runtime.store.settle
    broken = []

    async def fails_now(request):
        if not broken:
            with fails(runtime, path):
                broken.append(request)
                return await settle(request)
        with fails(runtime, path):
            return await settle(request)

    runtime.store.settle = fails_now
    seen = await runtime.submit(ask(), someone())
    del runtime.store.settle
    assert broken
    assert (seen.ok, seen.code) == (False, Code.DEPENDENCY_UNAVAILABLE)
    assert seen.next_action == "retry_same_key"
    tally = {}
    while not tally:
        tally = await Reconciler(runtime).once()
    assert tally == {"retried": 1}
    assert (await runtime.submit(ask(), someone())).idempotency_hit
    assert done == [sent("k")]


# --- Postgres -------------------------------------------------------------------------------------


@pytest.fixture
def server():
    with private_server() as server:
        yield server


@pytest.mark.slow
async def test_nothing_runs_while_the_database_is_away(server):
    done.clear()
    runtime = Runtime.open(fresh_database(server.url), lease=5.0, pause=no_pause)
    runtime.register(write, grants=[Grant(agent="agent", tool="write", max_calls_per_run=50)])
    async with runtime:
        assert (await runtime.submit(ask("first", "x"), someone())).ok
        server.kill()
        seen = await runtime.submit(ask(note="x"), someone())
        assert (seen.code, seen.ok) == (Code.DEPENDENCY_UNAVAILABLE, False)
        assert seen.response.retryable
        assert sent("k") not in done
        server.start()
        again = await runtime.submit(ask(note="x"), someone())
        assert (again.ok, again.idempotency_hit) == (True, False)
        assert done == [sent("first"), sent("k")]


@pytest.mark.slow
async def test_who_loses_every_connection_goes_on_with_new_ones(server):
    done.clear()
    url = fresh_database(server.url)
    runtime = Runtime.open(url, lease=5.0, pause=no_pause)
    runtime.register(write, grants=[Grant(agent="agent", tool="write", max_calls_per_run=50)])
    async with runtime:
        assert (await runtime.submit(ask("first", "x"), someone())).ok
        others = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        await seen_by(url, others)
        answers = [await runtime.submit(ask(note="x"), someone()) for _ in range(3)]
        assert answers[-1].ok
        assert done.count(sent("k")) == 1
