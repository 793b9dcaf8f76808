"""Callers in this process that wait for a row to change, and how they are woken."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

_SHORTEST: Final = 0.001
"""Seconds between two looks at a row at least, unless woken."""

_Where = tuple[str, str]


class Waiters:
    """Waiting callers by tenant and key. For one event loop at a time."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: dict[_Where, list[asyncio.Future[None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._futures)

    def wake(self, where: _Where) -> None:
        """Wake the callers that wait for a change of this row."""
        for future in self._futures.get(where, ()):
            _wake(future)

    def wake_all(self) -> None:
        """Wake every caller, because it is not known which row has changed."""
        for futures in self._futures.values():
            for future in futures:
                _wake(future)

    @contextmanager
    def waiting(self, where: _Where) -> Iterator[asyncio.Future[None]]:
        """Register a future that is done when the row has changed."""
        future = asyncio.get_running_loop().create_future()
        futures = self._futures.setdefault(where, [])
        futures.append(future)
        try:
            yield future
        finally:
            futures.remove(future)
            if not futures:
                self._futures.pop(where, None)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def wait_until(
    waiters: Waiters, where: _Where, look: Callable[[], Awaitable[float | None]], seconds: float
) -> bool:
    """Wait until `look` returns None. Returns False on timeout.

    `look` returns in how many seconds it should be called again at the latest. A caller registers
    before it looks, so that it misses no change.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        with waiters.waiting(where) as woken:
            again_after = await look()
            if again_after is None:
                return True
            left = end - loop.time()
            if left <= 0:
                return False
            await asyncio.wait((woken,), timeout=max(min(left, again_after), _SHORTEST))
