"""What goes on whoever goes away: tasks that are waited for, and work that is never broken off."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, Final, TypeVar

from counterseal.storage.waiting import Answer

__all__ = ["Lasting", "going_on"]

T = TypeVar("T")
_SOON: Final = 0.005
"""How many seconds pass between two looks whether all is done, at the end."""


class Lasting:
    """Of one runtime. `inline`: whether its store serves who is alone without a wait."""

    def __init__(self, *, inline: bool) -> None:
        self._inline = inline
        self._tasks: set[asyncio.Future[Any]] = set()
        self._under_way = 0
        """How much is being done that must not be broken off, beside the tasks."""
        self.closed = False

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Something that goes on even if nobody waits for it; it is waited for at the end."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def begin_if_open(self, work: Coroutine[Any, Any, Any]) -> None:
        """The same for something that comes late, and may come too late."""
        if self.closed:
            work.close()
        else:
            self.begin(work)

    async def surely(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something that must not be broken off. A cancellation comes through after it.

        Where the store makes nobody wait it is done right here; for every call, a task of its own
        would cost more than most of what is done.
        """
        if not self._inline:
            return await _shielded(self.begin(work))
        cancelled: asyncio.CancelledError | None = None
        self._under_way += 1
        try:
            while (waited := work.send(None)).__class__ is Answer:
                waited.firm = True
                try:
                    await _over(waited)
                except asyncio.CancelledError as error:
                    cancelled = error
            value = await _shielded(self.begin(_rest(work, waited)))
        except StopIteration as done:
            value = done.value
        finally:
            self._under_way -= 1
        if cancelled is not None:
            raise cancelled
        return value

    async def idle(self) -> None:
        """Wait until nothing goes on any more."""
        while self._tasks or self._under_way:
            if self._tasks:
                await asyncio.wait(self._tasks)
            else:
                await asyncio.sleep(_SOON)


async def _shielded(task: asyncio.Future[T]) -> T:
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


@coroutine
def _over(waited: Answer) -> Generator[Answer, None, None]:
    """Wait for what somebody else has begun to wait for."""
    yield waited


async def _rest(work: Coroutine[Any, Any, T], waited: Any) -> T:
    """What is left of something that was begun, and waits for this."""
    return await going_on(work, waited)


@coroutine
def going_on(
    work: Coroutine[Any, Any, T] | Generator[Any, Any, T], waited: Any
) -> Generator[Any, Any, T]:
    """What is left of something that was driven by hand up to where it waits for this."""
    while True:
        try:
            try:
                got = yield waited
            except BaseException as error:  # noqa: BLE001 - it is the work's to deal with
                waited = work.throw(error)
            else:
                waited = work.send(got)
        except StopIteration as done:
            value: T = done.value
            return value
