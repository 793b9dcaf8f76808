"""Running a tool in this process: async in a task of its own, sync in a thread, within a deadline.

A task can be cancelled and a thread can only be told; either may ignore it. Whoever waits is
answered at the deadline all the same, and what goes on behind is no longer looked at.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple, Protocol

from counterseal.execution.logs import ACTIVE
from counterseal.execution.threads import Threads
from counterseal.masking import Mask

__all__ = ["GRACE", "Ended", "Flag", "Habit", "Rest", "in_task", "in_thread"]

GRACE = 0.25
"""Seconds that a tool is given to come to an end after it was told to."""


class Flag(Protocol):
    """Where a tool looks to see whether anybody still waits for it."""

    cancelled: bool


class Habit:
    """Whether a tool was ever seen to wait. One that never does needs no task of its own."""

    __slots__ = ("prompt",)

    def __init__(self) -> None:
        self.prompt: bool | None = None


class Ended(NamedTuple):
    """How a function came to its end, if it did."""

    value: Any = None
    error: BaseException | None = None
    answered: bool = True
    interrupted: bool = False


async def in_task(
    running: Coroutine[Any, Any, Any], *, seconds: float, flag: Flag, mask: Mask, habit: Habit
) -> Ended:
    """Run a coroutine in a task of its own, so that it can be left behind."""
    context = copy_context()
    context.run(ACTIVE.set, mask)
    task = asyncio.get_running_loop().create_task(_contained(running, habit), context=context)
    interrupted = await _within(task, seconds, flag, task.cancel)
    if not task.done():
        task.add_done_callback(_dropped)
        return Ended(answered=False, interrupted=interrupted)
    if not task.cancelled():
        return task.result()._replace(interrupted=interrupted)
    if flag.cancelled:
        return Ended(answered=False, interrupted=interrupted)
    return Ended(error=asyncio.CancelledError("the tool cancelled itself"))


async def in_thread(
    function: Callable[[], Any], *, threads: Threads, seconds: float, flag: Flag, mask: Mask
) -> Ended:
    """Run a function in a thread. One that outlives its deadline goes on, and nobody listens."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    token = ACTIVE.set(mask)
    try:
        future = threads.run(function)
    finally:
        ACTIVE.reset(token)
    interrupted = await _within(future, seconds, flag, None)
    if not future.done():
        future.add_done_callback(_dropped)
        return Ended(answered=False, interrupted=interrupted)
    error = future.exception()
    if error is not None:
        return Ended(error=error, interrupted=interrupted)
    value = future.result()
    if inspect.isawaitable(value) and not interrupted:
        # A callable object or a lambda may hide that it is async.
        rest = until - loop.time()
        return await in_task(_await(value), seconds=rest, flag=flag, mask=mask, habit=Habit())
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


async def _contained(running: Coroutine[Any, Any, Any], habit: Habit) -> Ended:
    """Whatever a tool raises, as data: an event loop would let `sys.exit()` through."""
    try:
        return Ended(await _Watched(running, habit))
    except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a tool may raise anything, sys.exit() too
        return Ended(error=error)


class _Watched:
    """A coroutine that is watched for whether it waits."""

    __slots__ = ("_coroutine", "_habit")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], habit: Habit) -> None:
        self._coroutine = coroutine
        self._habit = habit

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            waits_for = self._coroutine.send(None)
        except StopIteration as done:
            if self._habit.prompt is None:
                self._habit.prompt = True
            return done.value
        self._habit.prompt = False
        return (yield from Rest(self._coroutine, waits_for).__await__())


class Rest:
    """A coroutine that was run up to its first wait: the rest of it, in the same task."""

    __slots__ = ("_coroutine", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, Any]:
        while True:
            try:
                sent = yield self._waits_for
            except BaseException as error:  # noqa: BLE001 - cancellation must reach the tool
                step = partial(self._coroutine.throw, error)
            else:
                step = partial(self._coroutine.send, sent)
            try:
                self._waits_for = step()
            except StopIteration as done:
                return done.value
