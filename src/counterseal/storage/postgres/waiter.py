"""Waiting until an entry is let go, or a request decided.

Nobody polls, and only who is waited for tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from counterseal.errors import StoreError
from counterseal.storage.postgres.job import Job
from counterseal.storage.postgres.lanes import Lanes
from counterseal.storage.postgres.listener import Listener
from counterseal.storage.waiting import SHORTEST

__all__ = ["Watch", "wait_for"]

_PAUSE = 0.2
"""How many seconds to wait before the server is looked for again."""

Watch = Callable[[str, str], Job]
"""Makes the job that marks something as awaited. It lasts so many seconds; None: it is over."""


async def wait_for(
    listener: Listener, writing: Lanes, watch: Watch, where: tuple[str, str], seconds: float
) -> bool:
    """False when the time was over. StoreError when the server could not be reached until then."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        left = end - loop.time()
        if left <= 0:
            return False
        try:
            if await _changed(listener, writing, watch, where, left):
                return True
        except StoreError:
            if writing.closed or loop.time() + _PAUSE > end:
                raise
            await asyncio.sleep(_PAUSE)


async def _changed(
    listener: Listener, writing: Lanes, watch: Watch, where: tuple[str, str], seconds: float
) -> bool:
    """Wait for a word, or the end of the lease. Whether it was over before that."""
    await listener.listen()
    # Listening comes before the mark that makes others tell: no word can be missed.
    word = asyncio.create_task(listener.change(*where, seconds))
    try:
        lasts_for = await writing.do(watch(*where))
        if lasts_for is None:
            return True
        await asyncio.wait((word,), timeout=max(min(lasts_for, seconds), SHORTEST))
    finally:
        word.cancel()
    return False
