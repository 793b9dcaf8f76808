"""The Postgres store's schema: made by migrations alone, each applied once, none ever changed."""

import asyncio
import re
from pathlib import Path

import asyncpg
import pytest

from counterseal.errors import StoreError
from counterseal.storage import open_store, postgres
from counterseal.storage.postgres.connections import _SETTINGS, known_migrations, migrate
from counterseal.storage.scripts import Migration, sql_folder, statements
from tests.postgres_server import bare_database, drop_database

pytestmark = pytest.mark.slow
"""A server has to start for them."""

KNOWN = known_migrations()
NEXT = len(KNOWN) + 1
MORE = Migration(NEXT, "more", "CREATE TABLE more (tenant TEXT PRIMARY KEY);\n")
OF_THE_DATABASE = {"migrations", "registry_changes", "contracts", "sessions"}
"""Tables that are nobody's in particular."""
FOR_ALL_TENANTS = {
    "counters_of_days",
    "due_next",
    "held_kept",
    "held_of_all",
    "ledger_adrift",
    "ledger_by_call",
    "ledger_over",
    "vault_by_age",
    "vault_by_end",
}
"""Indexes in which workers look for what is to be done, whosever it is; and one by hash."""


@pytest.fixture
def url():
    url = bare_database()
    yield url
    drop_database(url)


@pytest.fixture
async def connection(url):
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


@pytest.fixture
async def made(connection, url):
    await migrate(connection, url)
    return connection


async def schema(connection):
    """Everything that a database consists of, as Postgres itself describes it."""
    columns = await connection.fetch(
        "SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,"
        " co.collname, pg_get_expr(d.adbin, d.adrelid), c.reloptions"
        " FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0"
        " LEFT JOIN pg_collation AS co ON co.oid = a.attcollation"
        " LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum"
        " WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' ORDER BY 1, 2"
    )
    indexes = await connection.fetch(
        "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"
        " ORDER BY 1, 2"
    )
    constraints = await connection.fetch(
        "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2"
    )
    return [list(map(tuple, rows)) for rows in (columns, indexes, constraints)]


async def test_the_schema_that_is_read_is_the_one_that_the_migrations_make(made):
    url = bare_database()
    other = await asyncpg.connect(url)
    await other.execute((sql_folder("postgres") / "schema.sql").read_text(encoding="utf-8"))
    assert await schema(other) == await schema(made)
    await other.close()
    drop_database(url)


def test_migrations_are_numbered_without_a_gap():
    assert [one.number for one in KNOWN] == list(range(1, NEXT))
    assert all("\r" not in one.text for one in KNOWN)


async def test_every_key_begins_with_the_tenant(made):
    _, indexes, _ = await schema(made)
    first = {name: (table, re.search(r"\((\w+)", text)[1]) for table, name, text in indexes}
    assert {table for table, _ in first.values()} > OF_THE_DATABASE
    for name, (table, column) in first.items():
        if table not in OF_THE_DATABASE and name not in FOR_ALL_TENANTS:
            assert column == "tenant", name
    assert set(first) > FOR_ALL_TENANTS


async def test_every_query_is_sound_and_asked_somewhere(made):
    for name, query in statements("postgres").items():
        assert ";" not in query, name
        await made.prepare(query)
    package = Path(postgres.__file__).parent
    files = [*package.glob("*.py"), package.parent / "encoding.py"]
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    asked = set(re.findall(r'(?:_Q\[|_rows?\()"(\w+)"', source))
    assert asked <= set(statements("postgres")) <= set(re.findall(r'"(\w+)"', source))


async def test_no_query_looks_at_more_than_it_needs(made):
    await made.execute(_SETTINGS)
    for name, query in statements("postgres").items():
        nothing = ", ".join(
            ["NULL"] * max((int(n) for n in re.findall(r"\$(\d+)", query)), default=0)
        )
        await made.execute(f"PREPARE q_{name} AS {query}")
        plan = await made.fetch(f"EXPLAIN EXECUTE q_{name}" + (f"({nothing})" if nothing else ""))
        steps = [row[0] for row in plan]
        assert not [step for step in steps if "Seq Scan" in step], name


# --- starting -------------------------------------------------------------------------------------


async def test_a_new_database_is_made_ready_and_one_that_is_ready_is_left_as_it_is(url, connection):
    store = open_store(url)
    await store.ready()
    await store.close()
    before = await schema(connection)
    applied = await connection.fetch("SELECT * FROM migrations")
    assert [row["number"] for row in applied] == list(range(1, NEXT))
    store = open_store(url)
    await store.ready()
    await store.close()
    assert await schema(connection) == before
    assert await connection.fetch("SELECT * FROM migrations") == applied


async def test_of_many_that_start_at_once_one_makes_the_schema(url, connection):
    stores = [open_store(url) for _ in range(6)]
    await asyncio.gather(*(store.ready() for store in stores))
    for store in stores:
        await store.close()
    assert await connection.fetchval("SELECT count(*) FROM migrations") == len(KNOWN)


async def test_what_is_missing_is_applied_and_an_older_program_is_refused_then(url, made, make):
    await migrate(made, url, [*KNOWN, MORE])
    last = await made.fetchrow("SELECT number, name, checksum FROM migrations ORDER BY 1 DESC")
    assert tuple(last) == (NEXT, "more", MORE.checksum)
    store = open_store(url)
    for asked in (store.ready(), store.admit(make.admit()), store.recall("acme", "r", None)):
        told = rf"has schema {NEXT}, .* knows schema {NEXT - 1} at most; use a newer Counterseal"
        with pytest.raises(StoreError, match=told):
            await asked
    await store.close()


async def test_a_migration_that_was_changed_afterwards_is_refused(made):
    first, *others = KNOWN
    changed = [first._replace(text=first.text + "-- a word more\n"), *others]
    before = await schema(made)
    with pytest.raises(StoreError, match=r"another migration 1 \(tables\)"):
        await migrate(made, "there", [*changed, MORE])
    assert await schema(made) == before


async def test_a_migration_that_fails_leaves_nothing_behind(made):
    broken = Migration(NEXT, "broken", "CREATE TABLE more (a INT);\nSELECT 1 / 0;\n")
    before = await schema(made)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(made, "there", [*KNOWN, broken])
    assert await schema(made) == before
    await migrate(made, "there", [*KNOWN, MORE])


@pytest.mark.parametrize("table", ["runs (song TEXT)", "migrations (song TEXT)"])
async def test_another_programs_database_is_left_alone(url, connection, table):
    await connection.execute(f"CREATE TABLE {table}")
    before = await schema(connection)
    store = open_store(url)
    with pytest.raises(StoreError, match="give Counterseal a database of its own"):
        await store.ready()
    await store.close()
    assert await schema(connection) == before
