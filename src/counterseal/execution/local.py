"""Running a tool in this process: async in a task of its own, sync in a thread, within a deadline.

A task can be cancelled and a thread can only be told; either may ignore it. Whoever waits is
answered at the deadline all the same, and what goes on behind is no longer looked at.
"""

from __future__ import annotations

import asyncio
import dis
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from types import CodeType
from typing import Any, NamedTuple, Protocol

from counterseal.execution.logs import ACTIVE
from counterseal.execution.threads import Threads
from counterseal.masking import Mask

__all__ = ["GRACE", "Ended", "Flag", "in_task", "in_thread", "never_waits"]

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


def never_waits(function: Any) -> bool:
    """Whether an async function has nothing in it to wait for. It needs no task and no timer."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or not inspect.iscoroutinefunction(function):
        return False
    return not any(step.opname in _WAITS for step in dis.get_instructions(code))


_WAITS = frozenset({"GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "BEFORE_ASYNC_WITH", "SEND"})


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
