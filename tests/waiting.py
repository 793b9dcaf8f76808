"""Waiting in tests: for a condition, never for a time. The only place that looks again and again.

    await until(lambda: server.started)
    rows = await until(list_rows)              # a condition may be async; its value is returned
    printed = until_now(lambda: process.poll() is not None)
    await turns()                              # let every task of the loop go on as far as it can
    await asyncio.gather(caller(ask, 1), …)    # two callers, where `ask` hands out a future

A condition that does not come true within PATIENCE fails the test.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE = 60.0
"""Seconds after which a condition that should have come true long ago fails the test."""
BETWEEN_LOOKS = 0.005


async def until(condition: Callable[[], Any], what: str = "") -> Any:
    """Wait until a condition is true, and return its value."""
    deadline = time.monotonic() + PATIENCE
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"never true: {what or condition}")
        await asyncio.sleep(BETWEEN_LOOKS)


async def caller(ask: Callable[..., Awaitable[Any]], *given: Any) -> Any:
    """Ask as a caller with a task of its own does, and return the answer."""
    return await ask(*given)


def until_now(condition: Callable[[], Any], what: str = "") -> Any:
    """Wait until a condition is true, without an event loop, and return its value."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"never true: {what or condition}")
        time.sleep(BETWEEN_LOOKS)
    return value


async def turns(count: int = 50) -> None:
    """Let the event loop go round, so that every task comes to where it waits."""
    for _ in range(count):
        await asyncio.sleep(0)
