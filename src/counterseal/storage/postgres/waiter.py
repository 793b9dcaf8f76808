"""Waiting until nobody holds an entry any more: nobody polls, and only who is waited for tells."""

from __future__ import annotations

import asyncio

from counterseal.errors import StoreError
from counterseal.storage.postgres.admission import Watching
from counterseal.storage.postgres.lanes import Lanes
from counterseal.storage.postgres.listener import Listener
from counterseal.storage.waiting import SHORTEST

__all__ = ["wait_for"]

_PAUSE = 0.2
"""How many seconds to wait before the server is looked for again."""


async def wait_for(
    listener: Listener, writing: Lanes, where: tuple[str, str], seconds: float
) -> bool:
    """False when the time was over. StoreError when the server could not be reached until then."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        left = end - loop.time()
        if left <= 0:
            return False
        try:
            if await _changed(listener, writing, where, left):
                return True
        except StoreError:
            if writing.closed or loop.time() + _PAUSE > end:
                raise
            await asyncio.sleep(_PAUSE)


async def _changed(
    listener: Listener, writing: Lanes, where: tuple[str, str], seconds: float
) -> bool:
    """Wait for a word, or the end of the lease. Whether nobody held it before that."""
    await listener.listen()
    # Listening comes before the mark that makes others tell: no word can be missed.
    word = asyncio.create_task(listener.change(*where, seconds))
    try:
        held_for = await writing.do(Watching(*where))
        if held_for is None:
            return True
        await asyncio.wait((word,), timeout=max(min(held_for, seconds), SHORTEST))
    finally:
        word.cancel()
    return False
