"""Running a tool in this process: async in a task of its own, sync in a thread, within a deadline.

A task can be cancelled and a thread can only be told; either may ignore it. Whoever waits is
answered at the deadline all the same, and what goes on behind is no longer looked at.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple, Protocol, TypeVar

from counterseal.errors import IsolationError
from counterseal.execution.logs import ACTIVE
from counterseal.masking import Mask

__all__ = ["GRACE", "Ended", "Flag", "Threads", "in_task", "in_thread"]


# --- threads --------------------------------------------------------------------------------------


T = TypeVar("T")


class _Job(NamedTuple):
    function: Callable[[], Any]
    context: Context
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


_Jobs = SimpleQueue[_Job | None]
"""A thread's own queue, by which it is known. None tells it to end."""


class Threads:
    """At most `most` threads at once; one that is idle for `idle_seconds` ends."""

    def __init__(self, *, most: int = 512, idle_seconds: float = 10.0) -> None:
        self._most = most
        self._idle_seconds = idle_seconds
        self._lock = Lock()
        self._idle: list[_Jobs] = []
        self._alive = 0
        self._closed = False

    def run(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Start it at once, with the caller's context variables. To be called in the event loop.

        The future carries whatever is raised, `sys.exit()` too. Who no longer wants it may cancel
        or forget it: the function goes on, and its result is dropped.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._free().put(_Job(function, copy_context(), loop, future))
        return future

    def close(self) -> None:
        """Let the idle threads end, and each other one when its function returns."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            self._alive -= len(idle)
        for jobs in idle:
            jobs.put(None)

    def _free(self) -> _Jobs:
        """The queue of a thread that has nothing to do: the last that was busy, or a new one."""
        with self._lock:
            if self._closed:
                raise IsolationError("no tool can run any more: its runtime is closed")
            if self._idle:
                return self._idle.pop()
            if self._alive >= self._most:
                raise IsolationError(
                    f"too many tools hang: {self._most} threads are at work and none returns; "
                    "let the tools time out by themselves, or declare isolation='process'"
                )
            self._alive += 1
        jobs: _Jobs = SimpleQueue()
        try:
            Thread(target=self._work, args=(jobs,), name="counterseal-tool", daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                self._alive -= 1
            raise IsolationError("the system gives no more threads to run a tool in") from error
        return jobs

    def _work(self, jobs: _Jobs) -> None:
        """A thread's life."""
        stays = True
        while stays:
            try:
                job = jobs.get(timeout=self._idle_seconds)
            except Empty:
                stays = not self._leave(jobs)
                continue
            if job is None:
                return
            value, error = _outcome(job)
            stays = self._rest(jobs)  # first, so that who gets the result finds the thread idle
            _deliver(job, value, error)
            del job, value, error  # nothing is kept alive while the thread waits

    def _rest(self, jobs: _Jobs) -> bool:
        """Be idle. False when there is nothing to wait for any more."""
        with self._lock:
            if self._closed:
                self._alive -= 1
                return False
            self._idle.append(jobs)
            return True

    def _leave(self, jobs: _Jobs) -> bool:
        """End. False when somebody has just chosen this thread: then its job is on the way."""
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
        # A future can't carry this one: whoever waits would wait for ever.
        failure = RuntimeError("the tool raised StopIteration")
        failure.__cause__ = error
        return None, failure
    except BaseException as error:  # noqa: BLE001 - goes to whoever waits, and not to the thread
        return None, error


def _deliver(job: _Job, value: Any, error: BaseException | None) -> None:
    try:
        job.loop.call_soon_threadsafe(_settle, job.future, value, error)
    except RuntimeError:
        return  # the loop is closed: nobody waits any more


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return  # cancelled meanwhile
    if error is None:
        future.set_result(value)
        return
    future.set_exception(error)
    future.exception()  # seen: asyncio would complain of one that nobody asks for


GRACE = 0.25
"""Seconds that a tool is given to come to an end after it was told to."""


class Flag(Protocol):
    """Where a tool looks to see whether anybody still waits for it."""

    cancelled: bool


class Ended(NamedTuple):
    """How a function came to its end, if it did."""

    value: Any = None
    error: BaseException | None = None
    answered: bool = True
    began: bool = True
    interrupted: bool = False
    late: asyncio.Future[Any] | None = None
    """What still runs, where nobody waits for it any more."""


async def in_task(
    running: Coroutine[Any, Any, Any], *, seconds: float, flag: Flag, mask: Mask
) -> Ended:
    """Run a coroutine in a task of its own, so that it can be left behind."""
    context = copy_context()
    context.run(ACTIVE.set, mask)
    task = asyncio.get_running_loop().create_task(_contained(running), context=context)
    interrupted = await _within(task, seconds, flag, task.cancel)
    if not task.done():
        task.add_done_callback(_dropped)
        return Ended(answered=False, interrupted=interrupted, late=task)
    if task.cancelled():
        if flag.cancelled:
            return Ended(answered=False, interrupted=interrupted)
        return Ended(error=asyncio.CancelledError("the tool cancelled itself"))
    error = task.exception()
    ended = Ended(error=error) if error is not None else task.result()
    return ended._replace(interrupted=interrupted)


async def in_thread(
    function: Callable[[], Any],
    *,
    threads: Threads,
    seconds: float,
    flag: Flag,
    mask: Mask,
    stop: Callable[[], object] | None = None,
) -> Ended:
    """Run a function in a thread. One that outlives its deadline goes on, and nobody listens.

    `stop` is how to tell it more than the flag does.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    token = ACTIVE.set(mask)
    try:
        future = threads.run(function)
    finally:
        ACTIVE.reset(token)
    interrupted = await _within(future, seconds, flag, stop)
    if not future.done():
        future.add_done_callback(_dropped)
        return Ended(answered=False, interrupted=interrupted, late=future)
    error = future.exception()
    if error is not None:
        return Ended(error=error, interrupted=interrupted)
    value = future.result()
    if inspect.isawaitable(value):
        # A callable object or a lambda may hide that it is async.
        if interrupted:
            if inspect.iscoroutine(value):
                value.close()
            return Ended(answered=False, interrupted=True)
        return await in_task(_await(value), seconds=until - loop.time(), flag=flag, mask=mask)
    return Ended(value, interrupted=interrupted)


async def _await(value: Awaitable[Any]) -> Any:
    return await value


async def _within(
    running: asyncio.Future[Any], seconds: float, flag: Flag, stop: Callable[[], object] | None
) -> bool:
    """Wait, then tell it to stop, then wait a little more. Returns whether the caller went away."""
    interrupted = False
    try:
        done, _ = await asyncio.wait({running}, timeout=max(0.0, seconds))
    except asyncio.CancelledError:
        done, interrupted = set(), True
    except GeneratorExit:
        flag.cancelled = True
        if stop is not None:
            stop()
        raise
    if done:
        return False
    flag.cancelled = True
    if stop is not None:
        stop()
    try:
        await asyncio.wait({running}, timeout=GRACE)
    except asyncio.CancelledError:
        interrupted = True
    return interrupted


def _dropped(late: asyncio.Future[Any]) -> None:
    """What comes after the end is looked at once, so that nobody complains that it was not."""
    if not late.cancelled():
        late.exception()


async def _contained(running: Coroutine[Any, Any, Any]) -> Ended:
    """Whatever a tool raises, as data: an event loop would let `sys.exit()` through."""
    try:
        return Ended(await running)
    except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a tool may raise anything, sys.exit() too
        return Ended(error=error)
