"""Callers at once: how long each call takes, and all of them together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from benchmarks._house.rows import Turn

_T = TypeVar("_T")


async def crowd(each: Sequence[Sequence[_T]], do: Callable[[_T], Awaitable[object]]) -> Turn:
    """Of callers who each have calls to make one after the other."""
    took: list[float] = []

    async def caller(calls: Sequence[_T]) -> None:
        for call in calls:
            began = time.perf_counter()
            await do(call)
            took.append(time.perf_counter() - began)

    began = time.perf_counter()
    if len(each) == 1:
        await caller(each[0])
        await asyncio.sleep(0)  # what became due meanwhile is part of it
    else:
        await asyncio.gather(*map(caller, each))
    return Turn((time.perf_counter() - began) / len(took), took, len(took))
