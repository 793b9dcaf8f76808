"""The SQLite store's file: how it is named, and what is refused with what to do about it."""

import os
import sqlite3
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from counterseal.errors import CountersealError, StoreError
from counterseal.storage import open_store
from counterseal.storage.sqlite import SqliteStore
from counterseal.storage.sqlite.file import (
    MEANINGS,
    LockedError,
    explained,
    migrate,
    path_of,
    refuse_foreign,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture
async def store(path):
    store = SqliteStore(path)
    yield store
    await store.close()


# --- the address ----------------------------------------------------------------------------------


def test_three_slashes_are_a_relative_path_and_four_an_absolute_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert path_of("sqlite:///store.db") == tmp_path / "store.db"
    assert path_of("sqlite:///a/b.db") == tmp_path / "a" / "b.db"
    assert path_of("sqlite:////var/store.db") == Path("/var/store.db")


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:",
        "sqlite:store.db",
        "sqlite:/store.db",
        "sqlite://",
        "sqlite://host/store.db",
        "sqlite://store.db",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///store.db?mode=ro",
        "sqlite:///folder/",
        "sqlite:///a\0b",
    ],
)
def test_an_address_that_names_no_file_is_refused(url):
    with pytest.raises(CountersealError, match="sqlite:") as refused:
        open_store(url)
    assert not isinstance(refused.value, StoreError), "no file was looked at"


# --- the file -------------------------------------------------------------------------------------


async def test_a_new_file_is_for_its_owner_alone(path, store):
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(StoreError, match=r"there is no folder .*nowhere; make it"):
        SqliteStore(tmp_path / "nowhere" / "store.db")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(StoreError, match="can't be opened; check that it is a file"):
        SqliteStore(tmp_path)


def test_a_file_that_is_no_database_is_left_alone(path):
    path.write_text("Dear diary, this is not a database, and it is long enough to be one.\n" * 99)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="is no database; name another file"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_another_programs_database_is_left_alone(path, somebody_else):
    with somebody_else(path, "CREATE TABLE songs (name TEXT)"):
        pass
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program's database"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_a_file_that_becomes_ours_while_we_look_is_not_called_foreign(path):
    class Interrupted:
        """A connection: after its first question, somebody else makes the schema."""

        def __init__(self, connection):
            self._connection = connection
            self._asked = 0

        def execute(self, statement):
            if self._asked == 1:
                with closing(sqlite3.connect(path, isolation_level=None)) as other:
                    migrate(other, path)
            self._asked += 1
            return self._connection.execute(statement)

    with closing(sqlite3.connect(path)) as connection:
        looking = Interrupted(connection)
        refuse_foreign(looking, path)
        refuse_foreign(looking, path)
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


@pytest.fixture
def unprivileged():
    """As somebody whom permissions bind: root is nobody for a while."""
    was_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)

        @contextmanager
        def drop():
            if was_root:
                os.seteuid(65534)
            try:
                yield
            finally:
                if was_root:
                    os.seteuid(0)

        yield Path(folder), drop
        Path(folder).chmod(0o755)


async def test_a_file_that_may_not_be_written_is_refused_with_what_to_do(unprivileged, make):
    folder, drop = unprivileged
    store = SqliteStore(folder / "store.db")
    await store.open_run(make.run())
    await store.close()
    (folder / "store.db").chmod(0o444)
    folder.chmod(0o555)
    with (
        drop(),
        pytest.raises(StoreError, match="allow this user to write the file and the folder"),
    ):
        SqliteStore(folder / "store.db")


async def test_a_file_that_becomes_read_only_is_told_and_can_be_read_on(store, make):
    entry = (await store.admit(make.admit(entry=make.entry()))).entry
    store._backend.database.connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreError, match="can't be written; allow"):
        await store.settle(make.settle(entry=make.done(entry)))
    assert (await store.recall("acme", "run_1", "k")).entry == entry
    store._backend.database.connection.execute("PRAGMA query_only = OFF")
    assert await store.settle(make.settle(entry=make.done(entry))) is True


async def test_a_closed_store_says_so_whatever_it_is_asked(path, make):
    store = SqliteStore(path)
    await store.close()
    await store.close()
    with pytest.raises(StoreError, match="was closed"):
        await store.admit(make.admit())
    with pytest.raises(StoreError, match="was closed"):
        await store.recall("acme", "run_1", None)
    with pytest.raises(StoreError, match="was closed"):
        await store.events("acme")
    with pytest.raises(StoreError, match="was closed"):
        store.note(make.event())


def test_every_error_has_a_meaning_that_does_not_stop_at_the_word_error(path):
    for code, meaning in MEANINGS.items():
        error = sqlite3.OperationalError("said by SQLite")
        error.sqlite_errorcode = code | 3 << 8  # an extended code: the kind is in the low byte
        told = explained(error, path)
        assert str(path) in str(told)
        assert meaning in str(told)
        locked = code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        assert isinstance(told, LockedError) == locked
    assert "nothing was changed" in str(explained(sqlite3.OperationalError("?"), path))
