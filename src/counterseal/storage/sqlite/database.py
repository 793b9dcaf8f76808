"""One SQLite file: opened, read, and written a transaction at a time. Knows nothing of agents.

Nothing here awaits, or knows of an event loop: the calls could be made on a thread of their own.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, TypeVar

from counterseal.audit import Head
from counterseal.errors import StoreError
from counterseal.storage.rows import Row
from counterseal.storage.sqlite.chain import Chain
from counterseal.storage.sqlite.faults import LockedError, explained, is_own
from counterseal.storage.sqlite.known import Known
from counterseal.storage.sqlite.migrations import migrate, refuse_foreign
from counterseal.storage.sqlite.transaction import Job, Transaction

__all__ = ["Database"]

_T = TypeVar("_T")
_log = logging.getLogger("counterseal")
_OLDEST: Final = (3, 24, 0)
"""The first SQLite that can insert or update in one statement."""
_PAGES: Final = 12
"""That a commit writes, however little it changes: the ends of tables and of their indexes."""
_ROWS: Final = 2
"""That share a page beyond these: nearly one where 32 commit together, three where 512 do."""
_SETTINGS: Final = (
    "PRAGMA wal_autocheckpoint = 0",
    "PRAGMA journal_size_limit = 67108864",
    "PRAGMA cache_size = -16384",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA synchronous = FULL",
)


class Database:
    """StoreError when the file can't be used, and why not; LockedError while somebody else does."""

    def __init__(self, path: Path, *, patience: float, clock: Callable[[], float]) -> None:
        self.path = path
        self._patience = patience
        self._chain = Chain(clock)
        self._connection = _opened(path, patience)
        self._cursor = self._connection.cursor()
        self.known = Known(self._cursor)
        """What the file says, as far as `is_current` says so."""
        self._transaction = Transaction(self._cursor, self._chain, self.known)
        self._keeper: sqlite3.Connection | None = None
        self._looking = False
        self.closed = False
        self._synced = True
        """How SQLite is set to commit: waiting for the disk, or not."""
        self.logged = 0
        """About how many pages the log has grown by since the last checkpoint."""
        self.commits = 0
        self.unsynced = False
        """Whether something was committed that a loss of power could still undo."""

    def ask(self, query: str, values: Row) -> Row:
        """What a query finds that always finds one row: a transaction by itself."""
        if self.closed:
            self.refuse_closed()
        try:
            self._cursor.execute(query, values)
            row: Row = self._cursor.fetchone()
        except sqlite3.Error as error:
            raise explained(error, self.path) from error
        return row

    def look(self) -> bool:
        """See the file as it is now until `look_away`, for all that is asked meanwhile.

        Whether what is known still held when it was looked at.
        """
        if self._looking:
            return True
        if self.closed:
            self.refuse_closed()
        self._cursor.execute("BEGIN")
        self._looking = True
        try:
            return self.known.hold()
        except BaseException:
            self.look_away()
            raise

    def look_away(self) -> None:
        """Whoever looks from now on sees what there is by then."""
        if self._looking:
            self._looking = False
            self.known.let_go()
            with suppress(sqlite3.Error):  # nothing was changed that could be lost
                self._cursor.execute("COMMIT")

    def read(self, work: Callable[[Transaction], _T]) -> _T:
        """What a job finds, in one transaction that changes nothing."""
        self.refuse_closed()
        self.look_away()
        cursor, transaction = self._cursor, self._transaction
        transaction.begin({})
        try:
            cursor.execute("BEGIN")
            found = work(transaction)
            cursor.execute("COMMIT")
        except sqlite3.Error as error:
            self._abandon()
            raise explained(error, self.path) from error
        except BaseException:
            self._abandon()
            raise
        return found

    def read_aside(self, work: Callable[[Transaction], _T]) -> _T:
        """The same on a connection of its own, for a thread of its own."""
        self.refuse_closed()
        try:
            with closing(_connection(self.path, self._patience)) as connection:
                cursor = connection.cursor()
                cursor.execute("PRAGMA query_only = ON")
                cursor.execute("BEGIN")
                return work(Transaction(cursor, self._chain, Known(cursor)))
        except sqlite3.Error as error:
            raise explained(error, self.path) from error

    def commit(self, jobs: Sequence[Job], *, durable: bool) -> None:
        """Carry out all jobs in one transaction; each has its answer, or an error of its own.

        When this raises, nothing was written. What is durable survives a loss of power from now on;
        the rest does so with the next commit that is, or after a checkpoint.
        """
        if self.closed:
            self.refuse_closed()
        self.look_away()
        cursor, connection = self._cursor, self._connection
        before = connection.total_changes
        heads: dict[str, Head] = {}
        decided = False
        try:
            if durable is not self._synced:
                cursor.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._synced = durable
            cursor.execute("BEGIN IMMEDIATE")
            if not self._all(jobs, heads):
                cursor.execute("ROLLBACK")
                self.known.forget()
                cursor.execute("BEGIN IMMEDIATE")
                heads.clear()
                self._each(jobs, heads)
            decided = True
            cursor.execute("COMMIT")
            self._chain.advance(heads)
        except BaseException as error:
            self._abandon()
            if decided:  # what could not be committed may turn out to be, after a crash
                self._chain.begin()
            if isinstance(error, sqlite3.Error):
                raise explained(error, self.path) from error
            raise
        self.commits += 1
        changes = connection.total_changes - before
        if changes:
            self.unsynced = not durable
            self.logged += _PAGES + changes // _ROWS

    def _all(self, jobs: Sequence[Job], heads: dict[str, Head]) -> bool:
        """Whether all could be done. Where one has an error of its own, they must be done apart."""
        transaction = self._transaction
        transaction.begin(heads)
        try:
            for job in jobs:
                job.answer = job.work(transaction)
            transaction.finish()
        except Exception as error:
            if not is_own(error):
                raise
            return False
        return True

    def _each(self, jobs: Sequence[Job], heads: dict[str, Head]) -> None:
        """The same with a savepoint for each, so that one that fails leaves the others."""
        cursor, transaction = self._cursor, self._transaction
        for job in jobs:
            cursor.execute("SAVEPOINT job")
            told = dict(heads)
            transaction.begin(told)
            try:
                job.answer = job.work(transaction)
                transaction.finish()
                heads.update(told)
            except Exception as error:
                if not is_own(error):
                    raise
                cursor.execute("ROLLBACK TO job")
                self.known.forget()
                job.error = error
                if isinstance(error, sqlite3.Error):
                    job.error = explained(error, self.path)
            cursor.execute("RELEASE job")

    def version(self) -> tuple[int, int]:
        """Another one when anything was committed, by whomever."""
        self.refuse_closed()
        self.look_away()
        try:
            theirs = self._connection.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error as error:
            raise explained(error, self.path) from error
        return theirs, self.commits

    def _abandon(self) -> None:
        self.known.forget()
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._cursor.execute("ROLLBACK")

    def checkpoint(self) -> bool:
        """Make everything safe from a loss of power, and copy the log into the file.

        Nobody writes meanwhile: SQLite before 3.51.3 can lose what is committed during a
        checkpoint, so it is never left to do one by itself.
        """
        self.look_away()
        try:
            if self._keeper is None:
                self._keeper = _connection(self.path, 0)
            self._cursor.execute("BEGIN IMMEDIATE")
            try:
                busy, _, _ = self._keeper.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            finally:
                self._cursor.execute("ROLLBACK")
        except sqlite3.Error as error:
            if not isinstance(explained(error, self.path), LockedError):
                _log.warning("%s: the log could not be copied into the file: %s", self.path, error)
            return False
        if not busy:
            self.logged = 0
            self.unsynced = False
        return not busy

    def refuse_closed(self) -> None:
        if self.closed:
            raise StoreError(f"{self.path} was closed; open it again")

    def close(self) -> None:
        self.closed = True
        if self._keeper is not None:
            self._keeper.close()
        self._connection.close()


def _opened(path: Path, patience: float) -> sqlite3.Connection:
    if sqlite3.sqlite_version_info < _OLDEST:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old; 3.24 is the least")
    if not path.parent.is_dir():
        raise StoreError(f"{path}: there is no folder {path.parent}; make it, or name another file")
    with suppress(OSError):  # what a store holds is for its owner; who shares it says so
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        connection = _connection(path, patience)
    except sqlite3.Error as error:
        raise explained(error, path) from error
    try:
        refuse_foreign(connection, path)
        _write_ahead(connection, path, patience)
        migrate(connection, path)
        # From here on nobody blocks while somebody else writes: who calls waits in their own way.
        connection.execute("PRAGMA busy_timeout = 0")
    except sqlite3.Error as error:
        connection.close()
        raise explained(error, path) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _connection(path: Path, patience: float) -> sqlite3.Connection:
    # Autocommit: transactions begin and end where this module says so.
    connection = sqlite3.connect(
        path,
        timeout=patience,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    for setting in _SETTINGS:
        connection.execute(setting)
    return connection


def _write_ahead(connection: sqlite3.Connection, path: Path, patience: float) -> None:
    """Let readers read while somebody writes. SQLite itself does not wait for its turn here."""
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
