"""Measures several ways of doing the same in turns, and says how they compare."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

_T = TypeVar("_T")

Block = Callable[[], Awaitable[float]]
"""Makes a few calls. Returns how many seconds each took, without what was prepared for them."""


class Reading(NamedTuple):
    """One line of the result."""

    name: str
    ratio: float
    """Of the time per call, or of calls per second: beside what it is compared with."""
    target: str
    """Empty where there is none."""
    microseconds: float
    beside: float
    """The same of what it is compared with."""


Times = Sequence[float]
"""Seconds per call, round after round."""


async def in_turns(what: str, blocks: Mapping[str, Block], rounds: int) -> dict[str, list[float]]:
    """How long each took in every round."""
    for block in blocks.values():
        await block()  # the first time is another: files grow, statements are prepared
    times: dict[str, list[float]] = {name: [] for name in blocks}
    for turn in range(rounds):
        if sys.stderr.isatty():
            print(f"\r{what}: round {turn + 1} of {rounds}\033[K", end="", file=sys.stderr)
        # Whoever goes first in a round goes last in the next.
        for name in list(blocks)[:: 1 if turn % 2 else -1]:
            times[name].append(await blocks[name]())
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return times


def slower(name: str, mine: Times, other: Times, target: float | None = None) -> Reading:
    """How many times as long a call takes."""
    goal = "" if target is None else f"≤ {target}"
    return Reading(name, _ratio(mine, other), goal, _typical(mine), _typical(other))


def faster(name: str, mine: Times, other: Times, target: float | None = None) -> Reading:
    """How many times as many calls are made in a second."""
    goal = "" if target is None else f"≥ {target}"
    return Reading(name, _ratio(other, mine), goal, _typical(mine), _typical(other))


def _ratio(one: Times, other: Times) -> float:
    """Of what was measured side by side: a busy moment is in both."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def _typical(times: Times) -> float:
    return statistics.median(times) * 1e6


async def crowd(each: Sequence[Sequence[_T]], do: Callable[[_T], Awaitable[object]]) -> float:
    """Seconds per call, of callers who each have calls to make one after the other."""

    async def caller(calls: Sequence[_T]) -> None:
        for call in calls:
            await do(call)

    began = time.perf_counter()
    if len(each) == 1:
        await caller(each[0])
        await asyncio.sleep(0)  # what became due meanwhile is part of it
    else:
        await asyncio.gather(*map(caller, each))
    return (time.perf_counter() - began) / sum(map(len, each))


def load() -> float:
    return round(os.getloadavg()[0], 2)
