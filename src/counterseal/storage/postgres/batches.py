"""Gathers what waits, and runs it many at a time.

A `Batcher` is a queue with a few connections. A caller that is alone is served at once on an idle
connection. When all are busy, what comes meanwhile is gathered, so that batches grow with the load.
Transactions that no caller waits for ride along; a timer takes them when nothing else comes.

A batch of transactions commits as a whole or not at all. Where one of them fails by itself, or
other workers got in the way twice, each is run alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import uniform
from typing import Any, Final

from counterseal.audit import Head, Link
from counterseal.errors import StoreError
from counterseal.ledger.rows import RowKeys, Rows
from counterseal.storage.backend import Transaction
from counterseal.storage.postgres.connections import LOCKS, REGISTRY_LOCK, Connection
from counterseal.storage.postgres.faults import (
    UncertainError,
    UnfitError,
    explained,
    is_again,
    is_lost,
    is_mistake,
    is_own,
)
from counterseal.storage.postgres.rows import load, write
from counterseal.storage.scripts import statements

_Q: Final = statements("postgres")
_log = logging.getLogger("counterseal")
_SOON: Final = 0.05
"""Seconds that a transaction without a waiting caller may stay unwritten."""
_LATEST: Final = 5.0
"""Seconds between two attempts while the server can't be reached."""
_MOST: Final = 256
"""Jobs of one batch."""
_TRIES: Final = 8
"""How often other workers may get in the way of one job."""


@dataclass(slots=True, eq=False)
class QueuedJob:
    """Something in the queue, and its outcome."""

    result: Any = field(default=None, init=False)
    error: BaseException | None = field(default=None, init=False)
    future: asyncio.Future[Any] | None = field(default=None, init=False)
    """The future that a caller awaits; None when no caller waits."""

    @property
    def abandonable(self) -> bool:
        """True when it need not be run once its caller was cancelled."""
        return True


@dataclass(slots=True, eq=False)
class TransactionJob(QueuedJob):
    """A transaction, run together with others of its batch."""

    transaction: Transaction[Any]

    @property
    def abandonable(self) -> bool:
        return self.transaction.abandonable


@dataclass(slots=True, eq=False)
class ScanJob(QueuedJob):
    """A job with statements of its own, in a transaction of its own."""

    run: Callable[[Any, Rows], Awaitable[Any]]
    """Gets the connection, and rows whose events and wake-ups are written afterwards."""
    lock: int | None = None
    """The advisory lock that it holds meanwhile."""

    @property
    def abandonable(self) -> bool:
        return False


# --- one batch ------------------------------------------------------------------------------------


async def commit_batch(connection: Connection, jobs: Sequence[QueuedJob]) -> None:
    """Run jobs and commit. Each job has its result afterwards, or its error."""
    for _ in range(2 if len(jobs) > 1 else 0):
        error = await _attempt(connection, jobs)
        if error is None:
            return
        if not is_again(error):
            if is_own(error):
                break
            _fail(jobs, explained(error, connection.where))
            return
    for job in jobs:
        await _run_alone(connection, job)


async def _run_alone(connection: Connection, job: QueuedJob) -> None:
    for number in range(_TRIES):
        job.error = await _attempt(connection, [job])
        if job.error is None or not is_again(job.error):
            break
        await asyncio.sleep(uniform(0, 0.01 * number))  # noqa: S311 - so that they spread out
    if job.error is not None and not is_mistake(job.error):
        job.error = explained(job.error, connection.where)


def _fail(jobs: Sequence[QueuedJob], error: StoreError) -> None:
    for job in jobs:
        # One exception for each, because each is raised by itself and gets a traceback.
        job.error = type(error)(*error.args)
        job.error.__cause__ = error.__cause__


async def _attempt(connection: Connection, jobs: Sequence[QueuedJob]) -> BaseException | None:
    """Run jobs once, on a new connection if the old one is lost. Returns the error, if any."""
    for is_new in (False, True):
        try:
            await _transact(connection, jobs)
        except UncertainError as error:
            return error
        except Exception as error:  # noqa: BLE001 - every error goes to the waiting callers
            if not is_lost(error):
                return error
            connection.lose()  # nothing was committed, so it can be tried again
            if is_new:
                return error
        else:
            return None
    return None


async def _transact(connection: Connection, jobs: Sequence[QueuedJob]) -> None:
    database = await connection.get()
    keys = RowKeys()
    for job in jobs:
        if isinstance(job, TransactionJob):
            job.transaction.need(keys)
    heads: dict[str, Head] = {}
    scans = False
    try:
        await database.execute(_opening(jobs, keys))
        rows = await load(database, keys)
        for job in jobs:
            if isinstance(job, TransactionJob):
                job.result = job.transaction.decide(rows)
            elif isinstance(job, ScanJob):
                scans = True
                job.result = await job.run(database, rows)
        segment = connection.segment.name
        links = connection.segment.chain(rows.events, rows.now, heads)
        await write(database, rows, links)
    except BaseException as error:
        await _roll_back(connection, database, error)
        raise
    if not rows.changed and not scans:
        await database.execute("ROLLBACK")  # nothing was changed: no need to wait for the disk
        return
    await _commit(connection, database, rows, links)
    connection.segment.adopt(segment, heads)
    for where in rows.woken:
        connection.released(where)


def _opening(jobs: Sequence[QueuedJob], keys: RowKeys) -> str:
    """Return the statements that begin the transaction and take its advisory locks."""
    opening = ["BEGIN"]
    if not any(not isinstance(job, TransactionJob) or job.transaction.durable for job in jobs):
        opening.append("SET LOCAL synchronous_commit = off")
    if keys.registry_change:
        opening.append(f"SELECT pg_advisory_xact_lock({LOCKS}, {REGISTRY_LOCK})")
    elif keys.registry:
        opening.append(f"SELECT pg_advisory_xact_lock_shared({LOCKS}, {REGISTRY_LOCK})")
    locks = [job.lock for job in jobs if isinstance(job, ScanJob) and job.lock is not None]
    opening += [f"SELECT pg_advisory_xact_lock({LOCKS}, {lock})" for lock in locks]
    return "; ".join(opening)


async def _roll_back(connection: Connection, database: Any, error: BaseException) -> None:
    if is_lost(error) or not isinstance(error, Exception):
        connection.lose()
        return
    try:
        await database.execute("ROLLBACK")
    except Exception:  # noqa: BLE001 - the first error is the one to report
        connection.lose()


async def _commit(connection: Connection, database: Any, rows: Rows, links: Sequence[Link]) -> None:
    """Commit. UncertainError when the connection is lost meanwhile and the outcome is not known."""
    try:
        await database.execute("COMMIT")
    except Exception as error:
        if not is_lost(error):
            await _roll_back(connection, database, error)
            raise
        connection.lose()
        if not await _took_place(connection, rows, links):
            raise UncertainError(
                f"{connection.where} was lost during a commit; whether it took place is not known"
            ) from error
    except BaseException:
        connection.lose()
        raise


async def _took_place(connection: Connection, rows: Rows, links: Sequence[Link]) -> bool:
    """Return True when the last event of a transaction is on record: then all of it is."""
    if not links:
        return False
    with suppress(Exception):
        database = await connection.get()
        tenant, link = rows.events[-1][1], links[-1]
        event = await database.fetchval(_Q["is_recorded"], tenant, link.number, link.segment)
        return event is not None
    return False


# --- the queue ------------------------------------------------------------------------------------

Serve = Callable[[Connection, Sequence[QueuedJob]], Awaitable[None]]


class Batcher:
    """A queue, and a few connections that serve it. For one event loop at a time."""

    def __init__(self, connections: Sequence[Connection], serve: Serve, where: str) -> None:
        self.connections = connections
        self._serve = serve
        self._where = where
        self._queue: list[QueuedJob] = []
        """In the order in which they came, with and without waiting callers."""
        self._aside: list[QueuedJob] = []
        """Failed jobs without a waiting caller, kept apart so that they block no others."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reset()
        self.closed = False

    def _reset(self) -> None:
        self._idle = list(self.connections)
        self._starting = False
        """True when a connection will look at the queue in the next turn of the loop."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._batches: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._pause = _SOON

    def run(self, job: QueuedJob) -> asyncio.Future[Any]:
        """Run a job. The future gets its result when it is committed, or its error."""
        loop = self._here()
        job.future = loop.create_future()
        self._queue.append(job)
        self._start(loop)
        return job.future

    def enqueue(self, job: QueuedJob) -> None:
        """Run a job with the next batch; no caller waits for it."""
        try:
            loop: asyncio.AbstractEventLoop | None = self._here()
        except RuntimeError:  # outside of an event loop there is no timer: the next batch takes it
            loop = None
        self._queue.append(job)
        if loop is not None:
            self._tend(loop)

    async def flush(self) -> None:
        """Write every job without a waiting caller; what failed before is tried again."""
        self._here()
        under_way = list(self._batches)
        if any(job.future is None for job in self._queue):
            await self.run(TransactionJob(Transaction(_nothing, _nothing)))
        if under_way:
            await asyncio.wait(under_way)
        if self._aside:
            await self._retry_aside()

    async def close(self) -> None:
        """Write what is left, and take no more. StoreError when something was not written."""
        if self.closed:
            return
        failed: StoreError | None = None
        try:
            await self.flush()
        except StoreError as error:
            failed = error
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for connection in self.connections:
            await connection.close()
        lost = len(self._aside) + sum(job.future is None for job in self._queue)
        if lost:
            raise StoreError(f"{lost} records were not kept: {failed}") from failed

    def _here(self) -> asyncio.AbstractEventLoop:
        if self.closed:
            raise StoreError(f"{self._where} was closed; open it again")
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None:
                self._move()
            self._loop = loop
        return loop

    def _move(self) -> None:
        """Leave an event loop that is gone, with the callers that waited in it."""
        for connection in self.connections:
            connection.lose()
        self._queue = [job for job in self._queue if job.future is None or not job.abandonable]
        for job in self._queue:
            job.future = None
        self._reset()

    # --- batches ----------------------------------------------------------------------------------

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let an idle connection look at the queue, after this turn of the loop."""
        if self._idle and not self._starting:
            self._starting = True
            task = loop.create_task(self._drain(self._idle.pop()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _drain(self, connection: Connection) -> None:
        """Serve batches until the queue is empty."""
        try:
            while jobs := self._next_batch():
                self._starting = False
                await self._serve_batch(connection, jobs)
        finally:
            self._starting = False
            self._idle.append(connection)
            if self._loop is not None and not self._loop.is_closed():
                self._tend(self._loop)

    def _next_batch(self) -> list[QueuedJob]:
        """Return everything that waits, up to a limit; a scan goes alone."""
        batch: list[QueuedJob] = []
        count = 0
        for job in self._queue:
            if isinstance(job, ScanJob) and batch:
                break
            count += 1
            if job.future is not None and job.future.cancelled() and job.abandonable:
                continue
            batch.append(job)
            if isinstance(job, ScanJob) or len(batch) == _MOST:
                break
        self._queue = self._queue[count:]
        return batch

    async def _serve_batch(self, connection: Connection, jobs: list[QueuedJob]) -> None:
        done = asyncio.get_running_loop().create_future()
        self._batches.add(done)
        try:
            await self._serve(connection, jobs)
        except BaseException as error:
            for job in jobs:
                job.error = StoreError(f"{self._where}: {type(error).__name__}")
            raise
        finally:
            for job in jobs:
                self._answer(job)
            self._batches.discard(done)
            done.set_result(None)

    def _answer(self, job: QueuedJob) -> None:
        future, error = job.future, job.error
        if future is None:
            self._note_outcome(job)
        elif not future.done():
            if error is None:
                future.set_result(job.result)
            else:
                future.set_exception(error)

    # --- jobs without a waiting caller ------------------------------------------------------------

    def _note_outcome(self, job: QueuedJob) -> None:
        error, job.error = job.error, None
        if error is None:
            self._pause = _SOON
        elif isinstance(error, StoreError) and not isinstance(error, UnfitError):
            if not self._aside:
                _log.error("records are kept back: %s", error)
            self._aside.append(job)
            self._pause = min(2 * self._pause, _LATEST)
        else:
            _log.error("a record could not be kept: %s", error)

    def _tend(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the timer that writes jobs without a waiting caller."""
        if self._timer is None and not self.closed and (self._queue or self._aside):
            self._timer = loop.call_later(self._pause, self._on_timer, loop)

    def _on_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._queue:
            self._start(loop)
        if self._aside and not self.closed:
            task = loop.create_task(self._retry_quietly())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _retry_quietly(self) -> None:
        with suppress(StoreError):  # it was logged when it first failed
            await self._retry_aside()

    async def _retry_aside(self) -> None:
        """Write what was put aside, in a transaction of its own. StoreError while it fails."""
        aside, self._aside = self._aside, []
        try:
            await self.run(ScanJob(_deciding(aside)))
        except UnfitError as error:
            if len(aside) == 1:
                _log.error("a record could not be kept: %s", error)
                return
            for job in aside:  # one that can't be kept must not keep the others back
                self._aside = [job]
                await self._retry_aside()
        except StoreError:
            self._aside = aside + self._aside
            self._pause = min(2 * self._pause, _LATEST)
            raise
        self._pause = _SOON


def _deciding(jobs: Sequence[QueuedJob]) -> Callable[[Any, Rows], Awaitable[None]]:
    """Return a scan that decides transactions which need no rows."""

    async def run(_connection: Any, rows: Rows) -> None:
        for job in jobs:
            if isinstance(job, TransactionJob):
                job.transaction.decide(rows)

    return run


def _nothing(_: object) -> None:
    """Change nothing: be committed after everything that came before."""
