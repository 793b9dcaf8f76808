"""Callers in this process that wait for a row to change, and how they are woken."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import Any, Final

__all__ = ["Answer", "Waiters", "wait_until"]

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
    waiters: Waiters,
    where: _Where,
    look: Callable[[], Awaitable[float | None]],
    seconds: float,
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


class Answer:
    """What somebody waits for while it is written down. To a task, it is a future.

    Who must not be called off meanwhile says so: then a cancellation comes when it is over. And who
    waits may go on right where it is given, without another turn of the loop.
    """

    __slots__ = ("_asyncio_future_blocking", "_given", "_loop", "_then", "firm", "unwanted")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False  # by this name a task knows what it can wait for
        self._loop = loop
        self._then: list[tuple[Callable[[Any], object], Context]] = []
        self._given = False
        self.firm = False
        """Whether a cancellation has to wait, too."""
        self.unwanted = False
        """Whether who waited was cancelled, and has gone."""

    def __await__(self) -> Generator[Any, None, None]:
        if not self._given:
            self._asyncio_future_blocking = True
            yield self

    def give(self) -> None:
        """Have who waits go on in the loop's next turn."""
        if not self._given:
            self._given = True
            for then, context in self._then:
                self._loop.call_soon(then, self, context=context)

    def give_now(self) -> None:
        """Have who waits go on at once. Not while a task runs: one must end before another."""
        if not self._given:
            self._given = True
            for then, context in self._then:
                context.run(then, self)

    # --- what a task does with what it waits for --------------------------------------------------

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(
        self, then: Callable[[Any], object], *, context: Context | None = None
    ) -> None:
        if self._given:
            self._loop.call_soon(then, self, context=context)
        else:
            self._then.append((then, context or copy_context()))

    def cancel(self, msg: object = None) -> bool:
        if self.firm or self._given:
            return False
        self.unwanted = True
        self.give()
        return True

    def result(self) -> None:
        """Nothing but whether it was waited for: what came of it is told elsewhere."""
        if self.unwanted:
            raise asyncio.CancelledError
