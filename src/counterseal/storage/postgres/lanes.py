"""Gathers what waits: whatever is there when a connection becomes free goes as one.

Who is alone goes straight, on an idle connection. When all are busy, what comes meanwhile is
gathered, so batches grow with the load. What nobody waits for rides along; a timer takes it when
nothing else comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from counterseal.errors import StoreError
from counterseal.storage.postgres.faults import UnfitError
from counterseal.storage.postgres.job import Again, Alone, Job, Nothing
from counterseal.storage.postgres.session import Session

__all__ = ["Lanes"]

_log = logging.getLogger("counterseal")
_SOON: Final = 0.05
"""How long something that nobody waits for may stay unwritten, in seconds."""
_LATEST: Final = 5.0
"""The same while the server can't be reached."""
_MOST: Final = 256
"""How many go as one."""

Serve = Callable[[Session, Sequence[Job]], Awaitable[None]]


class Lanes:
    """A queue, and a few connections that serve it. For one event loop at a time."""

    def __init__(self, sessions: Sequence[Session], serve: Serve, where: str) -> None:
        self._sessions = sessions
        self._serve = serve
        self._where = where
        self._queue: list[Job] = []
        """In the order in which they came, whether anybody waits for them or not."""
        self._aside: list[Job] = []
        """What nobody waits for and could not be written: it must not get in others' way."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin_anew()
        self.closed = False

    def _begin_anew(self) -> None:
        """No connection is in use, and nothing is scheduled."""
        self._idle = list(self._sessions)
        self._starting = False
        """Whether a lane will look at the queue in the next turn of the loop."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._batches: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._pause = _SOON

    # --- for the store ----------------------------------------------------------------------------

    async def do(self, job: Job) -> Any:
        """Returns what came of it when it is committed, or raises."""
        loop = self._here()
        job.future = loop.create_future()
        self._queue.append(job)
        self._start(loop)
        await job.future
        return job.answer

    def ride(self, job: Job) -> None:
        """Do it with the next transaction. Nobody waits for it."""
        try:
            loop: asyncio.AbstractEventLoop | None = self._here()
        except RuntimeError:  # outside of an event loop there is no timer: the next one takes it
            loop = None
        self._queue.append(job)
        if loop is not None:
            self._tend(loop)

    async def flush(self) -> None:
        """Return when all that nobody waits for is written; what could not be, is tried again."""
        self._here()
        under_way = list(self._batches)
        if any(job.future is None for job in self._queue):
            await self.do(Nothing())
        if under_way:
            await asyncio.wait(under_way)
        if self._aside:
            await self._take_up_again()

    async def close(self) -> None:
        """Write what is left, and take no more. StoreError when something could not be written."""
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
        for session in self._sessions:
            await session.close()
        lost = len(self._aside) + sum(job.future is None for job in self._queue)
        if lost:
            raise StoreError(f"{lost} records were not kept: {failed}") from failed

    # --- turns of the loop ------------------------------------------------------------------------

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
        """The loop that was used before is gone, and whoever waited in it."""
        for session in self._sessions:
            session.lose()
        self._queue = [job for job in self._queue if job.future is None or not job.vain]
        for job in self._queue:
            job.future = None
        self._begin_anew()

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have an idle connection look at the queue, when this turn of the loop is over."""
        if self._idle and not self._starting:
            self._starting = True
            task = loop.create_task(self._run(self._idle.pop()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, session: Session) -> None:
        """Serve until nothing waits."""
        try:
            while jobs := self._taken():
                self._starting = False
                await self._served(session, jobs)
        finally:
            self._starting = False
            self._idle.append(session)
            if self._loop is not None and not self._loop.is_closed():
                self._tend(self._loop)

    def _taken(self) -> list[Job]:
        """What goes as one: all that waits, or one that wants to be alone."""
        queue = self._queue
        taken: list[Job] = []
        count = 0
        for job in queue:
            if isinstance(job, Alone) and taken:
                break
            count += 1
            if job.vain and job.future is not None and job.future.cancelled():
                continue
            taken.append(job)
            if isinstance(job, Alone) or len(taken) == _MOST:
                break
        self._queue = queue[count:]
        return taken

    async def _served(self, session: Session, jobs: list[Job]) -> None:
        done = asyncio.get_running_loop().create_future()
        self._batches.add(done)
        try:
            await self._serve(session, jobs)
        except BaseException as error:
            for job in jobs:
                job.error = StoreError(f"{self._where}: {type(error).__name__}")
            raise
        finally:
            for job in jobs:
                self._answer(job)
            self._batches.discard(done)
            done.set_result(None)

    def _answer(self, job: Job) -> None:
        future, error = job.future, job.error
        if future is None:
            self._answer_nobody(job)
        elif not future.done():
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    # --- what nobody waits for --------------------------------------------------------------------

    def _answer_nobody(self, job: Job) -> None:
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
        """See to it that what nobody waits for is written soon."""
        if self._timer is None and not self.closed and (self._queue or self._aside):
            self._timer = loop.call_later(self._pause, self._soon, loop)

    def _soon(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._queue:
            self._start(loop)
        if self._aside and not self.closed:
            task = loop.create_task(self._try_again())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _try_again(self) -> None:
        with suppress(StoreError):  # it was told when it first failed
            await self._take_up_again()

    async def _take_up_again(self) -> None:
        """Write what was put aside, in a transaction of its own. StoreError while it can't be."""
        aside, self._aside = self._aside, []
        try:
            await self.do(Again(aside))
        except UnfitError as error:
            if len(aside) == 1:
                _log.error("a record could not be kept: %s", error)
                return
            for job in aside:  # one that can't be kept must not keep the others back
                self._aside = [job]
                await self._take_up_again()
        except StoreError:
            self._aside = aside + self._aside
            self._pause = min(2 * self._pause, _LATEST)
            raise
        self._pause = _SOON
