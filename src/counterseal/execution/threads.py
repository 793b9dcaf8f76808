"""Threads for tools that are not async: one that hangs holds up nobody, not even the exit.

A thread is reused when it is idle and made when none is, so a tool never waits for another to end.
They are daemons: the interpreter leaves without those that hang.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple, TypeVar

from counterseal.errors import IsolationError

__all__ = ["Threads"]

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
