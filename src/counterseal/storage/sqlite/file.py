"""One SQLite file: its URL, how it is opened and migrated, and its errors in words."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from counterseal.errors import CountersealError, StoreError
from counterseal.storage.scripts import Migration, migrations_in, missing_migrations, sql_folder

_APPLICATION: Final = 0x43_53_45_41
"""Marks a file as this program's, in the place that SQLite has for it: `CSEA`."""
_FORMS: Final = (
    "write sqlite:///file.db for a file in the working directory, sqlite:////folder/file.db for any"
)
_OLDEST: Final = (3, 24, 0)
"""The first SQLite that can insert or update in one statement."""
_SETTINGS: Final = (
    "PRAGMA wal_autocheckpoint = 0",
    "PRAGMA journal_size_limit = 67108864",
    "PRAGMA cache_size = -16384",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA synchronous = FULL",
)
_OTHERWISE: Final = "can't be used; nothing was changed"
MEANINGS: Final = {
    sqlite3.SQLITE_BUSY: "is locked by another program; end that program, or try again",
    sqlite3.SQLITE_LOCKED: "is locked by another program; end that program, or try again",
    sqlite3.SQLITE_FULL: "has no room left on its disk; free some, and it goes on by itself",
    sqlite3.SQLITE_READONLY: (
        "can't be written; allow this user to write the file and the folder that it is in"
    ),
    sqlite3.SQLITE_PERM: "may not be used by this user; change the file's permissions",
    sqlite3.SQLITE_AUTH: "may not be used by this user; change the file's permissions",
    sqlite3.SQLITE_CANTOPEN: (
        "can't be opened; check that it is a file, and that this user may write its folder"
    ),
    sqlite3.SQLITE_NOTADB: "is no database; name another file, or move this one away",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore it from a backup",
    sqlite3.SQLITE_IOERR: "could not be read or written; check its disk, and the room left on it",
    sqlite3.SQLITE_NOMEM: "could not be used for want of memory",
    sqlite3.SQLITE_TOOBIG: "can't keep a value as large as this one",
    sqlite3.SQLITE_PROTOCOL: "is being opened by too many at once; try again",
    sqlite3.SQLITE_NOLFS: "is too large for its file system; put it on another",
}
"""By primary error code. Any other code is a fault of this program."""
_OF_ONE: Final = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)


def path_of(url: str) -> Path:
    """Return the file that a URL names: three slashes and a relative path, or four slashes."""
    scheme, _, rest = url.partition(":")
    if scheme != "sqlite" or not rest.startswith("//"):
        raise CountersealError(f"{url!r} names no file; {_FORMS}")
    if not rest.startswith("///") and rest != "//":
        raise CountersealError(f"{url!r} names a host, but the store is a file; {_FORMS}")
    name = rest[3:]
    if name in ("", ":memory:"):
        raise CountersealError(
            f"{url!r} names no file; {_FORMS}. A store that forgets at the end is memory:"
        )
    if "?" in name:
        raise CountersealError(f"{url!r} has options after its '?', and there are none to set")
    if "\0" in name or name.endswith("/"):
        raise CountersealError(f"{url!r} names no file; {_FORMS}")
    return Path(name).absolute()


# --- opening --------------------------------------------------------------------------------------


def open_file(path: Path, patience: float) -> sqlite3.Connection:
    """Open a file and bring its schema up to date; a new file is made where there is none."""
    if sqlite3.sqlite_version_info < _OLDEST:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old; 3.24 is the least")
    if not path.parent.is_dir():
        raise StoreError(f"{path}: there is no folder {path.parent}; make it, or name another file")
    with suppress(OSError):  # a store's content is for its owner; an operator may share it
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        connection = connect(path, patience)
    except sqlite3.Error as error:
        raise explained(error, path) from error
    try:
        refuse_foreign(connection, path)
        _use_write_ahead_log(connection, path, patience)
        migrate(connection, path)
        # From here on no call blocks while another process writes: callers wait in their own way.
        connection.execute("PRAGMA busy_timeout = 0")
    except sqlite3.Error as error:
        connection.close()
        raise explained(error, path) from error
    except BaseException:
        connection.close()
        raise
    return connection


def connect(path: Path, patience: float) -> sqlite3.Connection:
    """Return a connection in autocommit: its user says where transactions begin and end."""
    connection = sqlite3.connect(
        path, timeout=patience, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        for setting in _SETTINGS:
            connection.execute(setting)
    except BaseException:
        connection.close()
        raise
    return connection


def _use_write_ahead_log(connection: sqlite3.Connection, path: Path, patience: float) -> None:
    """Let readers read while a process writes. SQLite itself does not wait for its turn here."""
    until = time.monotonic() + patience
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            locked = isinstance(explained(error, path), LockedError)
            if not locked or time.monotonic() > until:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise StoreError(f"{path} can't be shared between processes; put it on a local disk")
        return


# --- the schema -----------------------------------------------------------------------------------


def known_migrations() -> tuple[Migration, ...]:
    """Return the migrations of this program, in their order."""
    return migrations_in(sql_folder("sqlite"))


def refuse_foreign(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StoreError for a database that another program has made."""
    # Tables first: a process that makes ours meanwhile marks the file in the same transaction.
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    mark = connection.execute("PRAGMA application_id").fetchone()[0]
    if mark != _APPLICATION and tables:
        raise StoreError(f"{path} is another program's database; name another file")


def migrate(
    connection: sqlite3.Connection, path: Path, known: Sequence[Migration] | None = None
) -> None:
    """Apply what is missing, under the write lock: of two processes that start, one does it."""
    known = known_migrations() if known is None else known
    if not missing_migrations(_applied(connection), known, str(path), "file"):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        refuse_foreign(connection, path)
        for migration in missing_migrations(_applied(connection), known, str(path), "file"):
            for statement in _statements(migration.text):
                connection.execute(statement)
            connection.execute(
                "INSERT INTO migrations (number, name, checksum, applied_at) VALUES (?, ?, ?, ?)",
                (migration.number, migration.name, migration.checksum, time.time()),
            )
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _statements(text: str) -> Iterator[str]:
    """Yield the statements of a script. Run as a whole, it would end the transaction."""
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _applied(connection: sqlite3.Connection) -> dict[int, str]:
    """Return the checksums of the applied migrations by number."""
    there = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'migrations'"
    if not connection.execute(there).fetchone()[0]:
        return {}
    return dict(connection.execute("SELECT number, checksum FROM migrations"))


# --- errors ---------------------------------------------------------------------------------------


class LockedError(StoreError):
    """Another program holds the file for the moment."""


def explained(error: sqlite3.Error, path: Path) -> StoreError:
    """Return an error that an operator can act on."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    meaning = MEANINGS.get(code, _OTHERWISE)
    locked = code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    kind = LockedError if locked else StoreError
    return kind(f"{path} {meaning} (SQLite: {error})")


def is_own(error: Exception) -> bool:
    """Return True when one request is at fault, so that others of its batch can succeed."""
    return not isinstance(error, sqlite3.Error) or isinstance(error, _OF_ONE)
