"""Group commit: everything that waits is written in one transaction.

A caller that is alone is served at once, because a trip through the event loop costs more than it
could save. When several callers write in one turn of the loop, their transactions are gathered
until the turn is over. Transactions without a waiting caller ride along; a timer takes them when
nothing else comes. On a slow disk the commit itself runs in a thread: the loop never stalls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from random import uniform
from typing import Any, Final, NamedTuple

from counterseal.errors import StoreError
from counterseal.ledger.rows import TenantKey
from counterseal.storage.backend import Transaction
from counterseal.storage.sqlite.database import Database, WriteJob
from counterseal.storage.sqlite.file import LockedError

_log = logging.getLogger("counterseal")
_SOON: Final = 0.05
"""Seconds that a transaction without a waiting caller may stay unwritten."""
_LATEST: Final = 5.0
"""Seconds between two attempts while the file can't be written."""
_MANY: Final = 2000
"""Pages of the log from which it is copied into the file when nothing is being written."""
_TOO_MANY: Final = 8000
"""Pages from which it is copied in any case: 32 MB. Pages written twice are copied once."""


class _ThreadWork(NamedTuple):
    """Work of the thread: a commit with its jobs, or a checkpoint."""

    jobs: list[WriteJob]
    woken: list[TenantKey]
    done: Future[Any]


class Writer:
    """Takes jobs, and commits each or reports its error. For one event loop at a time."""

    def __init__(
        self, database: Database, *, patience: float, released: Callable[[TenantKey], None]
    ) -> None:
        self._database = database
        self._patience = patience
        self._released = released
        """Called after a commit for every released entry and decided request."""
        self._queue: list[WriteJob] = []
        """In the order in which they came, with and without waiting callers."""
        self._aside: list[WriteJob] = []
        """Failed jobs without a waiting caller, kept apart so that they block no others."""
        self._thread: ThreadPoolExecutor | None = None
        self._flight: _ThreadWork | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reset()

    def _reset(self) -> None:
        self._turn = False
        """True when the end of this turn of the loop will be noticed."""
        self._task: asyncio.Task[Any] | None = None
        """The first task that wrote in this turn."""
        self._several = self.crowded = False
        """True when several tasks wrote in this turn, or in the last one."""
        self._retry: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pause = _SOON
        self._commits = 0
        """How many commits there were when the timer last came."""

    # --- for the back-end -------------------------------------------------------------------------

    def write(self, job: WriteJob) -> asyncio.Future[Any]:
        """Run a job. The future gets its result when it is committed, or its error."""
        loop = self._here()
        is_alone = self._is_alone(loop)
        job.future, job.since = loop.create_future(), loop.time()
        self._queue.append(job)
        if is_alone and self._commit(loop):
            self._tend(loop)
        return job.future

    def enqueue(self, transaction: Transaction[Any]) -> None:
        """Run a transaction with the next commit; no caller waits for it."""
        try:
            loop: asyncio.AbstractEventLoop | None = self._here()
        except RuntimeError:  # outside of an event loop there is no timer: the next commit takes it
            loop = None
        self._queue.append(WriteJob(transaction))
        if loop is not None:
            self._tend(loop)

    async def flush(self) -> None:
        """Write every job without a waiting caller; what failed before is tried again.

        It waits for the commit under way and its own, and not for those of other callers that
        come after: on a slow disk they would never end.
        """
        self._here()
        if self._queue:
            await self.write(WriteJob(Transaction(_nothing, _nothing)))
        elif self._flight is not None:
            await self._landed(self._flight)
        self._retry_aside()

    async def close(self) -> None:
        """Write what is left, and take no more. StoreError when something was not written."""
        if self._database.closed:
            return
        failed: StoreError | None = None
        try:
            await self.flush()
            while self._flight is not None:
                await self._landed(self._flight)
            if self._database.unsynced:
                self._database.checkpoint()
        except StoreError as error:
            failed = error
        finally:
            for handle in (self._timer, self._retry):
                if handle is not None:
                    handle.cancel()
            if self._thread is not None:
                self._thread.shutdown()
            self._database.close()
            lost = self._dismiss()
        if lost:
            raise StoreError(f"{lost} records were not kept: {failed}") from failed

    def in_crowd(self) -> bool:
        """Return True when many callers are at work; then the end of this turn is noticed."""
        if not (self._several or self.crowded):
            return False
        loop = self._here()
        if not (self._several or self.crowded):
            return False
        self._take_part(loop)
        return True

    def _dismiss(self) -> int:
        """Fail all waiting jobs. Returns how many are left that no caller waited for."""
        queue, self._queue = self._queue, []
        for job in queue:
            if job.future is not None:
                job.error = StoreError(f"{self._database.path} was closed; nothing was written")
                self._answer(job)
        return len(self._aside) + sum(job.future is None for job in queue)

    def _here(self) -> asyncio.AbstractEventLoop:
        self._database.refuse_closed()
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            self._leave_loop()
            self._reset()
        return loop

    def _leave_loop(self) -> None:
        """Forget callers that waited in an event loop that is gone; their outcomes are written."""
        if self._flight is not None:
            self._flight.done.exception()  # waits for the thread
            self._land(self._flight)
        self._queue = [job for job in self._queue if job.future is None or not job.abandonable]
        for job in self._queue:
            job.future = None

    # --- turns of the loop ------------------------------------------------------------------------

    def _is_alone(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return True when no other caller writes, so that there is nothing to wait for."""
        self._take_part(loop)
        if self._several or self.crowded or self._flight is not None:
            return False
        return not self._has_waiting()

    def _has_waiting(self) -> bool:
        return any(job.future is not None for job in self._queue)

    def _take_part(self, loop: asyncio.AbstractEventLoop) -> None:
        """Notice which tasks are at work in this turn, and its end."""
        if not self._turn:
            self._turn, self._task = True, asyncio.current_task(loop)
            loop.call_soon(self._end_turn)
        elif not self._several:
            self._several = asyncio.current_task(loop) is not self._task

    def _end_turn(self) -> None:
        self._database.cache.trusted = False
        count = sum(job.future is not None for job in self._queue)
        self.crowded = self._several or count > 1
        self._turn = self._several = False
        self._task = None
        if count and self._retry is None:
            self._try()

    def _try(self) -> None:
        """Commit everything that waits, as often as patience allows while another writes."""
        self._retry = None
        loop = self._loop
        if loop is None or self._flight is not None or not self._has_waiting():
            return
        self._commit(loop)
        self._tend(loop)

    def _try_later(self, loop: asyncio.AbstractEventLoop) -> None:
        """Try again soon: another process is writing, which takes some milliseconds."""
        self._give_up(loop.time() - self._patience)
        if self._retry is None:
            pause = uniform(0.0005, 0.005)  # noqa: S311 - so that waiting processes spread out
            self._retry = loop.call_later(pause, self._try)

    def _give_up(self, late: float) -> None:
        """Fail the jobs that have waited since then."""
        path, seconds = self._database.path, self._patience
        for job in list(self._queue):
            if job.future is not None and job.since <= late:
                self._queue.remove(job)
                job.error = LockedError(
                    f"{path} was held by another program for more than {seconds:g} seconds;"
                    " end that program, or try again"
                )
                self._answer(job)

    # --- commits ----------------------------------------------------------------------------------

    def _commit(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Write the whole queue. Returns True when it is done.

        While another process writes, the queue stays as it is, and is tried again. On a slow disk
        a thread ends the commit, and callers that can do without the disk are answered before.
        """
        jobs = self._take()
        durable = _is_durable(jobs)
        if durable and self._database.disk.slow:
            hasty = [job for job in jobs if job.future is not None and not job.durable]
            if hasty:
                self._queue = [job for job in jobs if job.future is None or job.durable]
                if not self._write(hasty, loop, durable=False) or self._flight is not None:
                    return False
                jobs = self._take()
        return self._write(jobs, loop, durable=durable)

    def _write(
        self, jobs: list[WriteJob], loop: asyncio.AbstractEventLoop, *, durable: bool
    ) -> bool:
        """Write jobs in one commit. Returns True when it is done."""
        database = self._database
        try:
            woken = database.run(jobs, durable=durable)
            if durable and database.disk.slow:
                self._take_off(loop, jobs, woken, database.commit)
                return False
            database.commit()
        except LockedError:
            self._queue = [*jobs, *self._queue]
            self._try_later(loop)
            return False
        except BaseException as error:
            self._fail(jobs, error)
            if not isinstance(error, Exception):  # the program is being ended
                raise
        else:
            self._committed(jobs, woken)
            if database.logged >= _TOO_MANY:
                self._checkpoint(loop)
        return True

    def _take(self) -> list[WriteJob]:
        """Return the queue without the jobs that need not be run, and empty it."""
        queue, self._queue = self._queue, []
        return [
            job
            for job in queue
            if job.future is None or not (job.future.cancelled() and job.abandonable)
        ]

    def _committed(self, jobs: list[WriteJob], woken: list[TenantKey]) -> None:
        for job in jobs:
            self._answer(job)
        for where in woken:
            self._released(where)

    def _fail(self, jobs: list[WriteJob], error: BaseException) -> None:
        """Report that nothing was written. Jobs without a waiting caller are tried again later."""
        _log.error("nothing could be written: %s", error)
        for job in jobs:
            if job.future is None:
                self._aside.append(job)
            else:
                job.error = StoreError(str(error))
                job.error.__cause__ = error
                self._answer(job)

    def _answer(self, job: WriteJob) -> None:
        future, error = job.future, job.error
        if future is None:
            if error is not None:
                _log.error("a record could not be kept: %s", error)
        elif not future.done():
            if error is None:
                future.set_result(job.result)
            else:
                future.set_exception(error)

    # --- the thread for slow disks ----------------------------------------------------------------

    def _take_off(
        self,
        loop: asyncio.AbstractEventLoop,
        jobs: list[WriteJob],
        woken: list[TenantKey],
        work: Callable[[], Any],
    ) -> None:
        """Let the thread do something with the main connection. Meanwhile reads go elsewhere."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="counterseal-commit")
        self._database.busy = True
        flight = self._flight = _ThreadWork(jobs, woken, self._thread.submit(work))

        def landed(future: asyncio.Future[Any]) -> None:
            future.exception()  # it is reported from `flight.done`
            self._land(flight)

        asyncio.wrap_future(flight.done, loop=loop).add_done_callback(landed)

    def _land(self, flight: _ThreadWork) -> None:
        """Answer the jobs of a flight, and go on with what has come meanwhile."""
        if self._flight is not flight:  # it was waited for when the event loop changed
            return
        self._flight = None
        self._database.busy = False
        error = flight.done.exception()
        if error is None:
            self._committed(flight.jobs, flight.woken)
        else:
            self._fail(flight.jobs, error)
        if self._loop is not None and not self._loop.is_closed() and not self._database.closed:
            if self._database.logged >= _TOO_MANY:
                self._checkpoint(self._loop)
            self._try()
            self._tend(self._loop)

    async def _landed(self, flight: _ThreadWork) -> None:
        """Wait until the thread has done this work, and its callers know."""
        with suppress(Exception):  # it goes to the callers that wait for it
            await asyncio.shield(asyncio.wrap_future(flight.done))
        self._land(flight)

    def _checkpoint(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._database.disk.slow:
            self._take_off(loop, [], [], self._database.checkpoint)
        else:
            self._database.checkpoint()

    # --- jobs without a waiting caller ------------------------------------------------------------

    def _retry_aside(self) -> None:
        """Write what was put aside, in a commit of its own. StoreError while it can't be."""
        jobs = self._aside
        if jobs and self._flight is None:
            self._database.run(jobs, durable=True)
            self._database.commit()
            self._aside = []
            for job in jobs:
                self._answer(job)

    def _tend(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the timer that writes jobs without a waiting caller."""
        if self._timer is None and self._unfinished:
            self._timer = loop.call_later(self._pause, self._on_timer)

    @property
    def _unfinished(self) -> bool:
        database = self._database
        left = self._queue or self._aside
        return bool(left or database.unsynced or database.logged >= _MANY)

    def _on_timer(self) -> None:
        self._timer = None
        database, loop = self._database, self._loop
        if database.closed or loop is None:
            return
        if self._flight is None and self._queue and not self._has_waiting():
            self._commit(loop)  # else it is about to be written anyway
        quiet, self._commits = self._commits == database.commits, database.commits
        if self._flight is None:
            with suppress(StoreError):  # it was logged when it first failed
                self._retry_aside()
            # Callers at work write most pages again: they are copied when that is over.
            if database.unsynced or (quiet and database.logged >= _MANY):
                self._checkpoint(loop)
        stuck = quiet and self._unfinished and not self._has_waiting()
        failed = self._flight is None and (self._aside or database.unsynced or stuck)
        self._pause = min(2 * self._pause, _LATEST) if failed else _SOON
        self._tend(loop)


def _is_durable(jobs: Sequence[WriteJob]) -> bool:
    """Return False when all callers that wait can do without the disk."""
    awaited = [job for job in jobs if job.future is not None]
    return not awaited or any(job.durable for job in awaited)


def _nothing(_: object) -> None:
    """Change nothing: be committed after everything that came before."""
