"""Work that is done in the turn in which it came, and has a task of its own if it has to wait.

Nearly every call is answered without a wait, and a task for each costs a tenth of it. So work is
driven by hand, in the name of a task that stands by: to whoever asks, that is the one in which it
runs, with a context of its own. Where it waits, that task carries it on, as if it always had, and
another one stands by. A task that was left as it was found stands by for somebody else.
"""

from __future__ import annotations

import asyncio
from asyncio.tasks import _enter_task, _leave_task  # what makes a task the current one
from collections.abc import Coroutine, Generator
from contextvars import Context, copy_context
from types import coroutine
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

__all__ = ["Standby", "going_on"]

T = TypeVar("T")

Work = Coroutine[Any, Any, None]


class Standby:
    """Of one event loop."""

    _all: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Standby]] = WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._context = copy_context()
        """That of the server: nobody begins with what somebody else had."""
        # Two that take turns: who comes next, in the same turn of the loop, is somebody else, and
        # that is what a store goes by which has several written at once.
        self._spare: _Spare | None = None
        self._other: _Spare | None = None

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Standby:
        """The one of this loop."""
        found = cls._all.get(loop)
        if found is None:
            found = cls._all[loop] = cls(loop)
        return found

    def begin(self, work: Work) -> asyncio.Task[None] | None:
        """Do it, up to where it waits. The task that carries it on; None where it is done."""
        spare = self._spare
        self._spare, self._other = self._other, spare
        if spare is None or not spare.ready:
            if spare is None or spare.task.done():
                self._other = _Spare(self._loop, self._context)  # for those who come later
            return self._loop.create_task(work)
        try:
            _enter_task(self._loop, spare.task)
        except RuntimeError:  # it is the turn of another task, which called us
            return self._loop.create_task(work)
        try:
            waited = spare.context.run(work.send, None)
        except StopIteration:
            if spare.context != self._context or spare.task.cancelling():
                self._other = None  # what one left there is none of the next one's business
                spare.task.cancel()
            return None
        finally:
            _leave_task(self._loop, spare.task)
        self._other = None
        return spare.given(work, waited)


class _Spare:
    """A task that does nothing until it is given work that was begun."""

    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        self.context = context.copy()
        self.ready = False
        """Whether it can be given something: it has begun to wait, and waits still."""
        self._called = loop.create_future()
        self._work: Work | None = None
        self._waited: Any = None
        self.task = loop.create_task(self._carry(), context=self.context)

    def given(self, work: Work, waited: Any) -> asyncio.Task[None]:
        """Have it carry this on, which waits for that."""
        self.ready = False
        self._work, self._waited = work, waited
        if not self._called.done():
            self._called.set_result(None)
        return self.task

    async def _carry(self) -> None:
        self.ready = True
        try:
            await self._called
        except asyncio.CancelledError as error:
            if self._work is None:
                raise
            # Cancelled between two turns, when it had been given something: that is what is meant.
            try:
                self._waited = self._work.throw(error)
            except StopIteration:
                return
        finally:
            self.ready = False
        if self._work is not None:
            await going_on(self._work, self._waited)


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
