"""Running a tool in this process within a deadline: async in its own task, sync in a thread.

A task can be cancelled; a thread can only be notified through a flag. Either may ignore it. The
caller gets its answer at the deadline anyway, and the result of what still runs is dropped.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple, TypeVar

from counterseal.errors import IsolationError
from counterseal.execution.attempt import TOO_LATE, LocalServices
from counterseal.execution.logs import ACTIVE

# --- threads --------------------------------------------------------------------------------------


T = TypeVar("T")


class _Job(NamedTuple):
    function: Callable[[], Any]
    context: Context
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    then: Callable[[], object]
    """Called on the event loop when the future is done."""


_Jobs = SimpleQueue[_Job | None]
"""A thread's own queue, which identifies the thread. None tells the thread to end."""


class Threads:
    """Daemon threads for sync tools: at most `most` at once, each ends after `idle_seconds`.

    An idle thread is reused, and a new one is made when none is idle, so a tool never waits for
    another tool. Daemon threads do not delay the interpreter's exit when they hang.
    """

    def __init__(self, *, most: int = 512, idle_seconds: float = 10.0) -> None:
        self._most = most
        self._idle_seconds = idle_seconds
        self._lock = Lock()
        self._idle: list[_Jobs] = []
        self._alive = 0
        self._closed = False

    def run(
        self, function: Callable[[], T], then: Callable[[], object] = lambda: None
    ) -> asyncio.Future[T]:
        """Start a function at once, with the caller's context variables, from the event loop.

        The future carries any exception, SystemExit included. It may be cancelled or dropped: the
        function continues, and its result is discarded. `then` is called when the future is done.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._free().put(_Job(function, copy_context(), loop, future, then))
        return future

    def close(self) -> None:
        """End the idle threads now, and each busy thread when its function returns."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            self._alive -= len(idle)
        for jobs in idle:
            jobs.put(None)

    def _free(self) -> _Jobs:
        """Return the queue of the thread that became idle last, or of a new thread."""
        with self._lock:
            if self._closed:
                raise IsolationError("the runtime is closed; open it again to run tools")
            if self._idle:
                return self._idle.pop()
            if self._alive >= self._most:
                raise IsolationError(
                    f"all {self._most} threads are busy with tools that do not return; give the "
                    "tools timeouts of their own, or declare isolation='process'"
                )
            self._alive += 1
        jobs: _Jobs = SimpleQueue()
        try:
            Thread(target=self._work, args=(jobs,), name="counterseal-tool", daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                self._alive -= 1
            raise IsolationError("the operating system can't start another thread") from error
        return jobs

    def _work(self, jobs: _Jobs) -> None:
        """Run jobs from the thread's queue until the thread is told to end or stays idle."""
        alive = True
        while alive:
            try:
                job = jobs.get(timeout=self._idle_seconds)
            except Empty:
                alive = not self._leave(jobs)
                continue
            if job is None:
                return
            value, error = _outcome(job)
            with self._lock:  # before the answer, so that the caller finds the thread idle
                alive = not self._closed
                if alive:
                    self._idle.append(jobs)
                else:
                    self._alive -= 1
            with suppress(RuntimeError):  # the loop is closed: no caller waits any more
                job.loop.call_soon_threadsafe(_settle, job, value, error)
            del job, value, error  # drop references while the thread waits

    def _leave(self, jobs: _Jobs) -> bool:
        """Remove the idle thread. Return False if it was just chosen for a job."""
        with self._lock:
            if jobs not in self._idle:
                return False
            self._idle.remove(jobs)
            self._alive -= 1
            return True


def _outcome(job: _Job) -> tuple[Any, BaseException | None]:
    try:
        return job.context.run(job.function), None
    except StopIteration as error:
        # A future can't carry StopIteration: the caller would wait for ever.
        failure = RuntimeError("the tool raised StopIteration")
        failure.__cause__ = error
        return None, failure
    except BaseException as error:  # noqa: BLE001 - the caller gets it, not the thread
        return None, error


def _settle(job: _Job, value: Any, error: BaseException | None) -> None:
    future = job.future
    if future.done():
        return  # cancelled meanwhile
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
        future.exception()  # retrieved: asyncio would warn about one that was never read
    job.then()


GRACE = 0.25
"""Seconds that a tool gets to end after it was told to stop."""


class Ended(NamedTuple):
    """The result of a function, or the reason why there is none."""

    value: Any = None
    error: BaseException | None = None
    answered: bool = True
    began: bool = True
    interrupted: bool = False
    late: asyncio.Future[Any] | None = None
    """The function, if it still runs after its call was given up."""


class Deadlines:
    """Wakes callers whose tool has used up its time. One timer for all, for one event loop.

    Most tools end long before: a timer of its own would cost each of them as much as its future.
    """

    def __init__(self) -> None:
        self._until: dict[asyncio.Future[None], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, woken: asyncio.Future[None], seconds: float) -> None:
        loop = woken.get_loop()
        until = self._until[woken] = loop.time() + seconds
        if self._timer is None or until < self._timer.when():
            self._schedule(loop, until)

    def remove(self, woken: asyncio.Future[None]) -> None:
        del self._until[woken]

    def _schedule(self, loop: asyncio.AbstractEventLoop, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(until, self._on_time, loop)

    def _on_time(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, now = None, loop.time()
        later = []
        for woken, until in self._until.items():
            if until <= now:
                _wake(woken)
            else:
                later.append(until)
        if later:
            self._schedule(loop, min(later))


async def in_task(
    running: Coroutine[Any, Any, Any],
    *,
    deadlines: Deadlines,
    seconds: float,
    services: LocalServices,
) -> Ended:
    """Run a coroutine in its own task, so that it can be abandoned at the deadline."""
    loop = asyncio.get_running_loop()
    woken = loop.create_future()
    task = loop.create_task(_contained(running, services, woken))
    deadlines.add(woken, seconds)
    interrupted = await _within(task, woken, deadlines, services, task.cancel)
    if not task.done():
        task.add_done_callback(_dropped)
        return Ended(answered=False, interrupted=interrupted, late=task)
    if task.cancelled():
        if services.cancelled:
            return Ended(answered=False, interrupted=interrupted)
        return Ended(error=asyncio.CancelledError("the tool cancelled itself"))
    error = task.exception()
    ended = Ended(error=error) if error is not None else task.result()
    return ended._replace(interrupted=True) if interrupted else ended


async def in_thread(
    function: Callable[[], Any],
    *,
    threads: Threads,
    deadlines: Deadlines,
    seconds: float,
    services: LocalServices,
    stop: Callable[[], object] = lambda: None,
) -> Ended:
    """Run a function in a thread. If it outlives its deadline, its result is dropped.

    `stop` is called in addition to setting the flag in `services`, which is all that most functions
    can be told.
    """
    loop = asyncio.get_running_loop()
    until, woken = loop.time() + seconds, loop.create_future()
    token = ACTIVE.set(services.mask)
    try:
        future = threads.run(function, partial(_wake, woken))
    finally:
        ACTIVE.reset(token)
    deadlines.add(woken, seconds)
    interrupted = await _within(future, woken, deadlines, services, stop)
    if not future.done():
        future.add_done_callback(_dropped)
        return Ended(answered=False, interrupted=interrupted, late=future)
    error = future.exception()
    if error is not None:
        return Ended(error=error, interrupted=interrupted)
    value = future.result()
    if inspect.isawaitable(value):
        # A callable object or a lambda may be async without looking so.
        if interrupted:
            if inspect.iscoroutine(value):
                value.close()
            return Ended(answered=False, interrupted=True)
        left = until - loop.time()
        return await in_task(_await(value), deadlines=deadlines, seconds=left, services=services)
    return Ended(value, interrupted=interrupted)


async def _await(value: Awaitable[Any]) -> Any:
    return await value


def _wake(woken: asyncio.Future[None]) -> None:
    """Wake the caller that waits for a tool, unless it was woken before."""
    if not woken.done():
        woken.set_result(None)


async def _within(
    running: asyncio.Future[Any],
    woken: asyncio.Future[None],
    deadlines: Deadlines,
    services: LocalServices,
    stop: Callable[[], object],
) -> bool:
    """Wait until the deadline, then stop the function. Return True if the caller was cancelled.

    The function wakes its caller as the last thing that it does: `asyncio.wait` costs more than
    twice as much, and a turn of the event loop.
    """
    interrupted = False
    try:
        await woken
    except asyncio.CancelledError:
        interrupted = True
    except GeneratorExit:
        services.cancelled = True
        stop()
        raise
    finally:
        deadlines.remove(woken)
    if running.done() and not interrupted:
        return False
    services.cancelled = True
    stop()
    try:
        await asyncio.wait({running}, timeout=GRACE)
    except asyncio.CancelledError:
        interrupted = True
    return interrupted


def _dropped(late: asyncio.Future[Any]) -> None:
    """Retrieve a late exception, so that asyncio does not log it as never retrieved."""
    if not late.cancelled():
        late.exception()


async def _contained(
    running: Coroutine[Any, Any, Any], services: LocalServices, woken: asyncio.Future[None]
) -> Ended:
    """Return a tool's exception as data: the event loop would let SystemExit through."""
    ACTIVE.set(services.mask)
    TOO_LATE.set(services.too_late)
    try:
        return Ended(await running)
    except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a tool may raise anything, sys.exit() too
        return Ended(error=error)
    finally:
        _wake(woken)
