"""What the ledger's comparisons share: callers at once, and their rows."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from benchmarks._house.rows import Row, Turn
from counterseal.cli.serve import tune_garbage_collection

_T = TypeVar("_T")


async def crowd(each: Sequence[Sequence[_T]], do: Callable[[_T], Awaitable[object]]) -> Turn:
    """Of callers who each have calls to make one after the other."""
    took: list[float] = []

    async def caller(calls: Sequence[_T]) -> None:
        for call in calls:
            began = time.perf_counter()
            await do(call)
            took.append(time.perf_counter() - began)

    # As `counterseal serve` does; and what the turns of all others have left here is none of this
    # one's business.
    gc.collect()
    tune_garbage_collection()
    began = time.perf_counter()
    if len(each) == 1:
        await caller(each[0])
        await asyncio.sleep(0)  # what became due meanwhile is part of it
    else:
        await asyncio.gather(*map(caller, each))
    return Turn((time.perf_counter() - began) / len(took), took, len(took))


def slower(
    key: str, what: str, theirs: str, targets: tuple[float, float] | None = None, ours: str = "call"
) -> Row:
    """A row of SQLite's: how many times as long a call takes."""
    reach, aim = targets or (None, None)
    return Row(
        key=f"ledger/sqlite-{key}",
        what=what,
        ours=ours,
        theirs=theirs,
        better="lower",
        reach=reach,
        aim=aim,
        chart=key == "one",
    )


def faster(
    key: str,
    what: str,
    theirs: str,
    reach: float | None = None,
    aim: float | None = None,
    *,
    ours: str = "call",
    store: str = "sqlite",
) -> Row:
    """How many times as many calls are made in a second."""
    return Row(
        key=f"ledger/{store}-{key.replace(' ', '-').lower()}",
        what=what,
        ours=ours,
        theirs=theirs,
        reach=reach,
        aim=aim,
        chart=ours == "call" and (reach is not None or theirs == "DBOS"),
    )
