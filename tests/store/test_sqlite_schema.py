"""The SQLite store's schema: made by migrations alone, each applied once, none ever changed."""

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from counterseal.errors import StoreError
from counterseal.storage import sqlite
from counterseal.storage.scripts import Migration, named, sql_folder, statements
from counterseal.storage.sqlite import SqliteStore
from counterseal.storage.sqlite.file import known_migrations, migrate
from counterseal.storage.sqlite.rows import NULL, blob

KNOWN = known_migrations()
NEXT = len(KNOWN) + 1
MORE = Migration(NEXT, "more", "CREATE TABLE more (tenant TEXT PRIMARY KEY);\n")
OF_THE_FILE = {"migrations", "changes", "contracts", "sessions"}
"""Tables that are nobody's in particular."""
BY_TIME = {
    "counters_by_day",
    "due_by_time",
    "due_failed",
    "held_kept",
    "held_of_all",
    "ledger_by_expiry",
    "ledger_by_lease",
    "ledger_escalated",
    "sessions_by_expiry",
    "sessions_by_user",
    "vault_by_age",
    "vault_by_end",
}
"""Indexes of what is looked for by its time, whoever's it is."""
WHOLE = re.compile(r"SCAN (CONSTANT ROW|\(sub|each|\w+ USING INDEX (due_failed|ledger_escalated))")
"""What may be read whole: what the statement itself has made, and the operator's list."""
SORTED = re.compile(r"USE TEMP B-TREE FOR (RIGHT PART|LAST .*TERMS?) OF ORDER BY")
"""What may be sorted: those that have the same time. And `heads` groups by segment."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture
def closed(path):
    """A file that a store has made and left."""
    asyncio.run(SqliteStore(path).close())
    return path


@pytest.fixture
def made(path):
    """A connection to a database with today's schema."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, path)
        yield connection


def schema(connection):
    """Everything that a database consists of, without comments and layout."""
    rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name")
    return [(*row[:3], " ".join(re.sub(r"--.*", "", row[3] or "").split())) for row in rows]


def test_the_schema_that_is_read_is_the_one_that_the_migrations_make(made):
    with closing(sqlite3.connect(":memory:")) as read:
        read.executescript((sql_folder("sqlite") / "schema.sql").read_text(encoding="utf-8"))
        assert schema(read) == schema(made)


def test_migrations_are_numbered_without_a_gap():
    assert [one.number for one in KNOWN] == list(range(1, NEXT))


def test_every_table_and_every_index_begins_with_the_tenant_or_a_time(made):
    tables = {name for (name,) in made.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    assert tables > OF_THE_FILE
    for table in tables - OF_THE_FILE:
        columns = made.execute(f"PRAGMA table_info({table})").fetchall()
        assert [column[1] for column in columns if column[5] == 1] == ["tenant"], table
        for index in made.execute(f"PRAGMA index_list({table})").fetchall():
            first = made.execute(f"PRAGMA index_info({index[1]})").fetchone()
            assert (first[2] != "tenant") == (index[1] in BY_TIME), index[1]


def complete():
    """The statements; those that a search narrows down, without that."""
    for name, query in statements("sqlite").items():
        yield name, query.format(index="", narrow="", order="")


def test_every_query_is_sound_and_asked_somewhere(made):
    for name, query in complete():
        made.execute(f"EXPLAIN {query}", [None] * query.count("?"))
        assert ";" not in query, name
    package = Path(sqlite.__file__).parent
    files = [*package.glob("*.py"), package.parent / "encoding.py"]
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    asked = set(re.findall(r'(?:_Q\[|_statement\(\s*|_rows?\()"(\w+)"', source))
    assert asked <= set(statements("sqlite")) <= set(re.findall(r'"(\w+)"', source))


def test_no_query_looks_at_more_than_it_needs(made):
    for name, query in complete():
        plan = made.execute(f"EXPLAIN QUERY PLAN {query}", [None] * query.count("?"))
        steps = [row[3] for row in plan]
        scans = [step for step in steps if step.startswith("SCAN")]
        assert not [step for step in scans if not WHOLE.match(step)], name
        sorts = [step for step in steps if "TEMP B-TREE" in step]
        assert name == "heads" or not [step for step in sorts if not SORTED.match(step)], name


def test_two_queries_of_one_name_are_a_mistake():
    with pytest.raises(ValueError, match="two statements"):
        named("-- name: a\nSELECT 1;\n-- name: a\nSELECT 2;\n")


def test_a_file_that_is_up_to_date_is_left_as_it_is(closed):
    before = closed.read_bytes()
    with closing(sqlite3.connect(closed, isolation_level=None)) as connection:
        migrate(connection, closed)
    assert closed.read_bytes() == before


def test_what_is_missing_is_applied_and_an_older_program_is_refused_then(closed):
    with closing(sqlite3.connect(closed, isolation_level=None)) as connection:
        migrate(connection, closed, [*KNOWN, MORE])
        applied = connection.execute("SELECT number, name, checksum FROM migrations").fetchall()
        assert applied[-1] == (NEXT, "more", MORE.checksum)
        assert "more" in {row[1] for row in schema(connection)}
    with pytest.raises(StoreError, match=rf"has schema {NEXT}, .* knows schema {NEXT - 1} at most"):
        SqliteStore(closed)


def test_a_migration_that_was_changed_afterwards_is_refused(closed):
    first, *others = KNOWN
    changed = [first._replace(text=first.text + "-- a word more\n"), *others]
    with closing(sqlite3.connect(closed, isolation_level=None)) as connection:
        before = schema(connection)
        with pytest.raises(StoreError, match=r"another migration 1 \(tables\)"):
            migrate(connection, closed, [*changed, MORE])
        assert schema(connection) == before


def test_a_migration_that_fails_leaves_nothing_behind(closed):
    broken = Migration(NEXT, "broken", "CREATE TABLE more (a);\nCREATE TABLE more (a);\n")
    with closing(sqlite3.connect(closed, isolation_level=None)) as connection:
        before = schema(connection)
        with pytest.raises(sqlite3.OperationalError, match="already exists"):
            migrate(connection, closed, [*KNOWN, broken])
        assert schema(connection) == before
        migrate(connection, closed, [*KNOWN, MORE])


def test_line_endings_do_not_change_a_migration():
    assert all("\r" not in one.text for one in KNOWN)


def test_what_stands_for_nothing_and_for_bytes_is_kept_as_such():
    with closing(sqlite3.connect(":memory:")) as db, db:
        row = (NULL, blob(None), blob(b""), blob(b"\0x"))
        found = db.execute("SELECT ?1, ?2, ?3, ?4, typeof(?3), typeof(?4)", row).fetchone()
    assert found == (None, None, b"", b"\0x", "blob", "blob")
