"""Group commit: whatever is waiting is written in one transaction.

A caller who is alone is served at once, because a trip through the event loop costs more than it
could save. When several write in one turn of the loop, what they write is gathered until the turn
is over. What nobody waits for rides along; a timer takes it when nothing else comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from random import uniform
from typing import Any, Final, TypeVar

from counterseal.errors import StoreError
from counterseal.storage.sqlite.database import Database
from counterseal.storage.sqlite.faults import LockedError
from counterseal.storage.sqlite.transaction import Awaited, Job, Transaction
from counterseal.storage.waiting import Answer

__all__ = ["Writer"]

_T = TypeVar("_T")
_log = logging.getLogger("counterseal")
_SOON: Final = 0.05
"""How long something that nobody waits for may stay unwritten, in seconds."""
_LATEST: Final = 5.0
"""The same while the file can't be written."""
_MANY: Final = 2000
"""From about how many pages on the log is copied into the file, when nobody writes."""
_TOO_MANY: Final = 8000
"""The same, whoever waits: 32 MB. What was written again and again is copied only once."""


class Writer:
    """Takes jobs, and sees that each is committed, or fails. For one event loop at a time."""

    def __init__(self, database: Database, *, patience: float) -> None:
        self._database = database
        self._patience = patience
        self._queue: list[Job] = []
        """In the order in which they came, whether anybody waits for them or not."""
        self._aside: list[Job] = []
        """What nobody waits for and could not be written: it must not get in others' way."""
        self._waiting = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Nothing is scheduled, and nobody has written yet."""
        self._database.look_away()
        self._turn = False
        """Whether the end of this turn of the loop will be noticed."""
        self._task: asyncio.Task[Any] | None = None
        """Who was the first to write in this turn."""
        self._several = self._crowded = False
        """Whether others wrote in this turn, or in the last one."""
        self._retry: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pause = _SOON
        self._commits = 0
        """How many there were when the timer last came."""

    # --- for the store ----------------------------------------------------------------------------

    async def write(
        self, work: Callable[[Transaction], _T], *, durable: bool = True, vain: bool = False
    ) -> _T:
        """Do something in a transaction. Returns when it is committed, or raises.

        What is not durable survives the end of this process at once, and a loss of power soon.
        """
        loop = self._here()
        job = Awaited(work, durable=durable, vain=vain)
        alone = self._alone(loop)
        self._queue.append(job)
        if alone and self._commit(durable=durable):
            self._tend(loop)
            if job.error is not None:
                raise job.error
        else:
            job.since = loop.time()
            job.told = Answer(loop)
            self._waiting += 1
            if alone:
                self._try_later(loop)
            await job.told
            if job.error is not None:
                raise job.error
        answer: _T = job.answer
        return answer

    def looked(self) -> bool | None:
        """Look at the file once for all who are at work in this turn, where there are several.

        Nothing that came from outside in this turn can be younger than its begin. Returns whether
        what is known still holds; None: there is no crowd, so look for yourself.
        """
        if not (self._several or self._crowded):
            return None
        loop = self._here()
        if not (self._several or self._crowded):
            return None
        self._take_part(loop)
        return self._database.look()

    def ride(self, work: Callable[[Transaction], Any]) -> None:
        """Do something with the next commit. Nobody waits for it."""
        try:
            loop: asyncio.AbstractEventLoop | None = self._here()
        except RuntimeError:  # outside of an event loop there is no timer: the next commit takes it
            loop = None
        self._queue.append(Job(work))
        if loop is not None:
            self._tend(loop)

    async def flush(self) -> None:
        """Write what nobody waits for."""
        if self._queue or self._aside:
            await self.write(_nothing)
            self._take_up_again()

    async def close(self) -> None:
        """Write what is left, and take no more. StoreError when something could not be written."""
        if self._database.closed:
            return
        failed: StoreError | None = None
        try:
            await self.flush()
            if self._database.unsynced:
                self._database.checkpoint()
        except StoreError as error:
            failed = error
        finally:
            for handle in (self._timer, self._retry):
                if handle is not None:
                    handle.cancel()
            self._database.close()
            lost = self._dismiss()
        if lost:
            raise StoreError(f"{lost} records were not kept: {failed}") from failed

    def _dismiss(self) -> int:
        """Tell whoever waits that it is over. Returns how much is left that nobody waited for."""
        jobs, self._queue = self._queue, []
        for job in jobs:
            if isinstance(job, Awaited):
                job.error = StoreError(f"{self._database.path} was closed; nothing was written")
                self._answer(job)
        return len(self._aside) + sum(not isinstance(job, Awaited) for job in jobs)

    def _here(self) -> asyncio.AbstractEventLoop:
        if self._database.closed:
            self._database.refuse_closed()
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            self._forget_waiting()
            self._begin_anew()
        return loop

    def _forget_waiting(self) -> None:
        """The loop that they waited in is gone. What is not in vain is written all the same."""
        self._waiting = 0
        for job in self._awaited():
            job.told = None
            if job.vain:
                self._queue.remove(job)

    # --- turns of the loop ------------------------------------------------------------------------

    def _alone(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether nobody else is writing, so that there is nothing to wait for."""
        self._take_part(loop)
        return not (self._several or self._crowded or self._waiting)

    def _take_part(self, loop: asyncio.AbstractEventLoop) -> None:
        """Notice who is at work in this turn, and its end."""
        if not self._turn:
            self._turn, self._task = True, asyncio.current_task(loop)
            loop.call_soon(self._end_of_turn)
        elif not self._several:
            self._several = asyncio.current_task(loop) is not self._task

    def _end_of_turn(self) -> None:
        self._database.look_away()
        self._crowded = self._several or self._waiting > 1
        self._turn = self._several = False
        self._task = None
        if self._waiting and self._retry is None:
            self._try()

    def _try_later(self, loop: asyncio.AbstractEventLoop) -> None:
        """Somebody else is writing; that takes them some milliseconds."""
        pause = uniform(0.0005, 0.005)  # noqa: S311 - so that those who wait spread out
        self._retry = loop.call_later(pause, self._try)

    def _try(self) -> None:
        """Commit all that waits; while somebody else writes, as often as patience allows."""
        self._retry = None
        loop = self._loop
        if loop is None or not self._waiting:
            return
        if not self._commit(durable=any(job.durable for job in self._awaited())):
            self._give_up(loop.time() - self._patience)
            if self._waiting:
                self._try_later(loop)
        self._tend(loop)

    def _awaited(self) -> list[Awaited]:
        return [job for job in self._queue if isinstance(job, Awaited)]

    def _give_up(self, late: float) -> None:
        """Tell whoever has waited since then that it was in vain."""
        where, seconds = self._database.path, self._patience
        for job in self._awaited():
            if job.since <= late:
                self._queue.remove(job)
                job.error = LockedError(
                    f"{where} was held by another program for more than {seconds:g} seconds;"
                    " end that program, or try again"
                )
                self._answer(job)

    def _leave_out(self) -> None:
        """Whoever has gone, and for whom it would be in vain."""
        for job in self._awaited():
            if job.vain and job.told is not None and job.told.unwanted:
                self._queue.remove(job)
                self._answer(job)

    # --- commits ----------------------------------------------------------------------------------

    def _commit(self, *, durable: bool) -> bool:
        """Write the whole queue. False while somebody else does; then it stays as it is."""
        if self._waiting:
            self._leave_out()
        jobs, self._queue = self._queue, []
        try:
            self._database.commit(jobs, durable=durable)
        except LockedError:
            self._queue = jobs
            return False
        except BaseException as error:
            self._fail(jobs, error)
            if not isinstance(error, Exception):  # the program is being ended
                raise
        else:
            self._committed(jobs)
            if self._database.logged >= _TOO_MANY:
                self._database.checkpoint()
        return True

    def _committed(self, jobs: list[Job]) -> None:
        """Who waits goes on right here, unless this is done in the name of somebody else's task."""
        now = self._loop is not None and asyncio.current_task(self._loop) is None
        left = iter(jobs)
        try:
            for job in left:
                if job.told is not None or job.error is not None:
                    self._answer(job, now=now)
        except BaseException:  # one of them ends the program: the others are told all the same
            for job in left:
                self._answer(job)
            raise

    def _fail(self, jobs: list[Job], error: BaseException) -> None:
        """Nothing was written. Who waits is told; what nobody waits for is tried again later."""
        _log.error("nothing could be written: %s", error)
        for job in jobs:
            if isinstance(job, Awaited):
                job.error = StoreError(str(error))
                job.error.__cause__ = error
                self._answer(job)
            else:
                self._aside.append(job)

    def _answer(self, job: Job, *, now: bool = False) -> None:
        told = job.told
        if told is not None:
            self._waiting -= 1
            if now:
                told.give_now()
            else:
                told.give()
        elif job.error is not None and not isinstance(job, Awaited):
            _log.error("a record could not be kept: %s", job.error)

    def _take_up_again(self) -> None:
        """Write what was put aside, in a commit of its own. StoreError while it can't be."""
        jobs = self._aside
        if jobs:
            self._database.commit(jobs, durable=True)
            self._aside = []
            for job in jobs:
                self._answer(job)

    def _tend(self, loop: asyncio.AbstractEventLoop) -> None:
        """See to it that what nobody waits for is written soon."""
        if self._timer is None and self._unfinished:
            self._timer = loop.call_later(self._pause, self._soon)

    @property
    def _unfinished(self) -> bool:
        database = self._database
        left = self._queue or self._aside
        return bool(left or database.unsynced or database.logged >= _MANY)

    def _soon(self) -> None:
        self._timer = None
        database, loop = self._database, self._loop
        if database.closed or loop is None:
            return
        if self._queue and not self._waiting:  # else it is about to be written anyhow
            self._commit(durable=True)
        with suppress(StoreError):  # it was told when it first failed
            self._take_up_again()
        # Who is at work writes most pages again: they are copied when that is over.
        quiet, self._commits = self._commits == database.commits, database.commits
        if database.unsynced or (quiet and database.logged >= _MANY):
            database.checkpoint()
        stuck = quiet and self._unfinished and not self._waiting
        failed = self._aside or database.unsynced or stuck
        self._pause = min(2 * self._pause, _LATEST) if failed else _SOON
        self._tend(loop)


def _nothing(transaction: Transaction) -> None:
    """Be committed after all that came before."""
