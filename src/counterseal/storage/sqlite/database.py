"""One SQLite file: opened, read, and written a transaction at a time.

Nothing here awaits. One thread at a time may use a `Database`; while a
commit runs in another thread (`busy`), reads go through a second connection.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from counterseal.audit import Head
from counterseal.errors import StoreError
from counterseal.ledger.rows import RowKeys, Rows, TenantKey
from counterseal.storage.backend import Transaction
from counterseal.storage.encoding import DbRow
from counterseal.storage.segments import SegmentWriter
from counterseal.storage.sqlite.file import LockedError, connect, explained, is_own, open_file
from counterseal.storage.sqlite.rows import ReadCache, load, write

T = TypeVar("T")
_log = logging.getLogger("counterseal")
_PAGES: Final = 12
"""Pages that a commit writes, however little it changes: the ends of tables and of indexes."""
_ROWS: Final = 2
"""Rows that share a page beyond these: nearly one where 32 commit together, three where 512 do."""


@dataclass(slots=True, eq=False)
class WriteJob:
    """A transaction or a scan in the queue, and its outcome."""

    transaction: Transaction[Any] | None = None
    scan: Callable[[sqlite3.Cursor, Rows], Any] | None = None
    """Statements of its own; what it adds to the rows (events) is written afterwards."""
    result: Any = None
    error: Exception | None = None
    future: asyncio.Future[Any] | None = None
    """The future that a caller awaits; None when no caller waits."""
    since: float = 0.0
    """When it came, by the event loop's clock."""

    @property
    def durable(self) -> bool:
        return self.transaction is None or self.transaction.durable

    @property
    def abandonable(self) -> bool:
        """True when it need not be run once its caller was cancelled."""
        return self.transaction is not None and self.transaction.abandonable


class DiskSpeed:
    """Measures how long commits wait for the disk.

    A slow disk would stall the event loop, so that its commits belong in a thread. A thread costs
    a fast disk more than it saves.
    """

    SLOW: Final = 0.002
    """Seconds of a typical commit above which a disk is slow."""
    FAST: Final = 0.001
    """Seconds below which it counts as fast again."""
    _SAMPLES: Final = 9

    def __init__(self, timer: Callable[[], float] = time.perf_counter) -> None:
        self.timer = timer
        self.slow = False
        self._seconds: deque[float] = deque(maxlen=self._SAMPLES)

    def note(self, seconds: float) -> None:
        """Take the time of one commit into account. The median decides, so one hiccup does not."""
        self._seconds.append(seconds)
        if (self.slow or seconds > self.SLOW) and len(self._seconds) >= self._SAMPLES // 2:
            median = sorted(self._seconds)[len(self._seconds) // 2]
            self.slow = median > (self.FAST if self.slow else self.SLOW)


class Database:
    """StoreError when the file can't be used, and why not; LockedError while another does."""

    def __init__(self, path: Path, *, patience: float, clock: Callable[[], float]) -> None:
        self.path = path
        self.clock = clock
        self._patience = patience
        self._segment = SegmentWriter()
        self.connection = open_file(path, patience)
        self._cursor = self.connection.cursor()
        self.cache = ReadCache(self._cursor)
        self._reader: sqlite3.Connection | None = None
        """For reads while a thread uses the main connection."""
        self._checkpointer: sqlite3.Connection | None = None
        self.busy = False
        """True while a thread uses the main connection."""
        self.closed = False
        self.disk = DiskSpeed()
        self._synchronous = True
        """How SQLite is set to commit: waiting for the disk, or not."""
        self._heads: dict[str, Head] = {}
        self._changes = 0
        self.logged = 0
        """About how many pages the write-ahead log has grown by since the last checkpoint."""
        self.commits = 0
        self.unsynced = False
        """True when a power loss could still undo something that was committed."""

    # --- reading ----------------------------------------------------------------------------------

    def ask(self, query: str, values: DbRow) -> DbRow:
        """Return the only row of a query, as a transaction by itself."""
        cursor = self._reading_cursor()
        try:
            row: DbRow = cursor.execute(query, values).fetchone()
        except sqlite3.Error as error:
            raise explained(error, self.path) from error
        return row

    def read(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        """Return what is read in one transaction that changes nothing."""
        cursor = self._reading_cursor()
        try:
            cursor.execute("BEGIN")
            result = work(cursor)
            cursor.execute("COMMIT")
        except BaseException as error:
            if cursor.connection.in_transaction:
                with suppress(sqlite3.Error):
                    cursor.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise explained(error, self.path) from error
            raise
        return result

    def _reading_cursor(self) -> sqlite3.Cursor:
        self.refuse_closed()
        if not self.busy:
            return self._cursor
        if self._reader is None:
            try:
                self._reader = connect(self.path, 0)
                self._reader.execute("PRAGMA query_only = ON")
            except sqlite3.Error as error:
                raise explained(error, self.path) from error
        return self._reader.cursor()

    def read_aside(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        """Return what is read on a connection of its own, for a thread of its own."""
        self.refuse_closed()
        try:
            with closing(connect(self.path, self._patience)) as connection:
                cursor = connection.cursor()
                cursor.execute("PRAGMA query_only = ON")
                cursor.execute("BEGIN")
                return work(cursor)
        except sqlite3.Error as error:
            raise explained(error, self.path) from error

    def version(self) -> tuple[int, int]:
        """Return numbers that change when anything was committed, by whichever process."""
        self.refuse_closed()
        try:
            theirs = self.connection.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error as error:
            raise explained(error, self.path) from error
        return theirs, self.commits

    # --- committing -------------------------------------------------------------------------------

    def run(self, jobs: Sequence[WriteJob], *, durable: bool) -> list[TenantKey]:
        """Run jobs in a new transaction that `commit` ends. Returns the rows to announce.

        Each job has its result afterwards, or an error of its own. When this raises, nothing was
        written. A durable commit survives a power loss at once, another one after the next durable
        commit or checkpoint.
        """
        self.refuse_closed()
        cursor = self._cursor
        self._heads = {}
        self._changes = self.connection.total_changes
        try:
            if durable is not self._synchronous:
                cursor.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._synchronous = durable
            cursor.execute("BEGIN IMMEDIATE")
            self.cache.is_current()
            now = self.clock()
            woken = self._run_together(jobs, now)
            if woken is None:
                cursor.execute("ROLLBACK")
                self.cache.clear()
                cursor.execute("BEGIN IMMEDIATE")
                self._heads = {}
                woken = self._run_each(jobs, now)
        except BaseException as error:
            self._roll_back()
            if isinstance(error, sqlite3.Error):
                raise explained(error, self.path) from error
            raise
        return woken

    def commit(self) -> None:
        """Commit what `run` has written. This waits for the disk, and may run in a thread."""
        segment = self._segment.name
        try:
            started = self.disk.timer()
            self._cursor.execute("COMMIT")
            if self._synchronous:
                self.disk.note(self.disk.timer() - started)
            self._segment.adopt(segment, self._heads)
        except BaseException as error:
            self._roll_back()
            # After a crash, a failed commit may turn out to have been written.
            self._segment.begin()
            if isinstance(error, sqlite3.Error):
                raise explained(error, self.path) from error
            raise
        self.commits += 1
        changes = self.connection.total_changes - self._changes
        if changes:
            self.unsynced = not self._synchronous
            self.logged += _PAGES + changes // _ROWS

    def _run_together(self, jobs: Sequence[WriteJob], now: float) -> list[TenantKey] | None:
        """Run jobs on the same rows. Returns None when one has an error of its own."""
        woken: list[TenantKey] = []
        begin = 0
        try:
            for number, job in enumerate(jobs):
                if job.scan is not None:  # it goes alone, between those before and after it
                    self._run_group(jobs[begin:number], now, woken)
                    self._run_group([job], now, woken)
                    begin = number + 1
            self._run_group(jobs[begin:] if begin else jobs, now, woken)
        except Exception as error:
            if not is_own(error):
                raise
            return None
        return woken

    def _run_group(self, jobs: Sequence[WriteJob], now: float, woken: list[TenantKey]) -> None:
        """Load rows, let each job decide, write what they changed."""
        if not jobs:
            return
        keys = RowKeys()
        for job in jobs:
            if job.transaction is not None:
                job.transaction.need(keys)
        rows = load(self._cursor, self.cache, keys, now)
        for job in jobs:
            if job.transaction is not None:
                job.result = job.transaction.decide(rows)
            elif job.scan is not None:
                job.result = job.scan(self._cursor, rows)
                self.cache.clear()
        links = self._segment.chain(rows.events, now, self._heads) if rows.events else ()
        write(self._cursor, self.cache, rows, links)
        woken.extend(rows.woken)

    def _run_each(self, jobs: Sequence[WriteJob], now: float) -> list[TenantKey]:
        """Run each job within a savepoint, so that one that fails leaves the others."""
        cursor = self._cursor
        woken: list[TenantKey] = []
        for job in jobs:
            cursor.execute("SAVEPOINT job")
            heads = dict(self._heads)
            announced: list[TenantKey] = []
            try:
                self._run_group([job], now, announced)
                woken += announced
            except Exception as error:
                if not is_own(error):
                    raise
                cursor.execute("ROLLBACK TO job")
                self.cache.clear()
                self._heads = heads
                job.error = error
                if isinstance(error, sqlite3.Error):
                    job.error = explained(error, self.path)
            cursor.execute("RELEASE job")
        return woken

    def _roll_back(self) -> None:
        self.cache.clear()
        if self.connection.in_transaction:
            with suppress(sqlite3.Error):
                self._cursor.execute("ROLLBACK")

    # --- the write-ahead log ----------------------------------------------------------------------

    def checkpoint(self) -> bool:
        """Make everything safe from a power loss, and copy the write-ahead log into the file.

        No process writes meanwhile: SQLite before 3.51.3 can lose what is committed during a
        checkpoint, so it is never left to do one by itself.
        """
        try:
            if self._checkpointer is None:
                self._checkpointer = connect(self.path, 0)
            self._cursor.execute("BEGIN IMMEDIATE")
            try:
                result = self._checkpointer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            finally:
                self._cursor.execute("ROLLBACK")
        except sqlite3.Error as error:
            if not isinstance(explained(error, self.path), LockedError):
                _log.warning("%s: the log could not be copied into the file: %s", self.path, error)
            return False
        is_busy, frames, copied = result
        if is_busy:
            return False
        self.logged = 0  # what a reader keeps from being copied is tried again with later pages
        if copied != frames:  # a reader was in the way, and perhaps nothing reached the disk
            return False
        self.unsynced = False
        return True

    def refuse_closed(self) -> None:
        """Raise StoreError after `close`."""
        if self.closed:
            raise StoreError(f"{self.path} was closed; open it again")

    def close(self) -> None:
        self.closed = True
        for connection in (self._reader, self._checkpointer, self.connection):
            if connection is not None:
                connection.close()
