"""Those in this process who wait for something to change, and how they are woken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context, copy_context
from typing import Any, Final

__all__ = ["SHORTEST", "Answer", "Waiting"]

SHORTEST: Final = 0.001
"""Nobody looks again sooner than after so many seconds, unless woken."""

_Where = tuple[str, str]


class Waiting:
    """By tenant and key. For one event loop at a time."""

    __slots__ = ("_who",)

    def __init__(self) -> None:
        self._who: dict[_Where, list[asyncio.Future[None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._who)

    def wake(self, tenant: str, key: str) -> None:
        """Something has changed there."""
        for one in self._who.get((tenant, key), ()):
            _end(one)

    def wake_all(self) -> None:
        """Something has changed, and nobody knows where."""
        for waiting in self._who.values():
            for one in waiting:
                _end(one)

    async def change(self, tenant: str, key: str, seconds: float) -> None:
        """Return when something has changed there, or when the time is over."""
        woken = asyncio.get_running_loop().create_future()
        others = self._who.setdefault((tenant, key), [])
        others.append(woken)
        try:
            await asyncio.wait((woken,), timeout=max(seconds, SHORTEST))
        finally:
            others.remove(woken)
            if not others:
                self._who.pop((tenant, key), None)


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


def _end(one: asyncio.Future[None]) -> None:
    if not one.done():
        one.set_result(None)
