"""Processes for isolated tools: `Workers` are kept and reused, `Sandboxes` serve one call each.

Both are started from nothing, never forked, and hold at most so many calls at once; who comes
first is served first, and waiting counts towards a call's deadline.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic_core import PydanticSerializationError

from counterseal.errors import IsolationError
from counterseal.execution.isolation import sandbox
from counterseal.execution.isolation.address import Address
from counterseal.execution.isolation.child import Child, NotStartedError
from counterseal.execution.isolation.jobs import Job, Reply, Tell
from counterseal.execution.isolation.starting import start_sandbox, start_worker

__all__ = ["Job", "Reply", "Sandboxes", "Tell", "Workers"]

_START_SECONDS = 60.0


class _Pool:
    """At most so many calls at once, and tasks that must not be lost."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._turns = asyncio.Semaphore(most)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @asynccontextmanager
    async def _turn(self, until: float) -> AsyncIterator[None]:
        """Wait for one's turn. TimeoutError when it comes too late."""
        async with asyncio.timeout_at(until):
            await self._turns.acquire()
        try:
            yield
        finally:
            self._turns.release()

    def _soon(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _surely(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for it; it goes on even if nobody waits any more."""
        await asyncio.shield(self._soon(work))

    async def _finish(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)


class Workers(_Pool):
    """Processes that run one call after another."""

    def __init__(self, *, most: int = 8, calls: int = 1000) -> None:
        super().__init__(most)
        self._calls = calls
        self._idle: list[Child] = []
        self._alive = 0
        self._warming = asyncio.Lock()
        self._replacing: set[asyncio.Task[None]] = set()

    async def warm(self, count: int = 1, address: Address | None = None) -> None:
        """Start some before they are needed. What fails here is told by the first call."""
        until = asyncio.get_running_loop().time() + _START_SECONDS
        async with self._warming, AsyncExitStack() as stack:
            if self._closed:
                return
            with suppress(TimeoutError, NotStartedError, OSError, IsolationError):
                for _ in range(min(count, self._most)):
                    await stack.enter_async_context(self._turn(until))
                    child = await self._take(address.folder if address else None, until)
                    stack.callback(self._give_back, child)
                    if address is not None:
                        await child.load(address, until)

    async def run(
        self, job: Job, *, seconds: float, grace: float = 0.25, tell: Tell | None = None
    ) -> Reply:
        """One call, in a process that has loaded nothing but tools of the same folder.

        When the caller leaves, the reply says so, and what came of the call; nothing is raised.
        """
        until = asyncio.get_running_loop().time() + seconds
        if self._closed:
            return Reply("unavailable", trace="the workers are closed", began=False)
        try:
            async with self._turn(until):
                try:
                    child = await self._take(job.address.folder, until)
                except TimeoutError:
                    self._replace(job.address)  # with more time, and the next call finds it
                    raise
                try:
                    return await child.run(job, until=until, grace=grace, tell=tell)
                finally:
                    self._give_back(child, job.address)
        except asyncio.CancelledError:
            return Reply("late", began=False, interrupted=True)
        except TimeoutError:
            return Reply("late", began=False)
        except (NotStartedError, OSError, IsolationError, PydanticSerializationError) as error:
            return Reply("unavailable", trace=str(error), began=False)

    async def _take(self, folder: str | None, until: float) -> Child:
        for child in [child for child in self._idle if not child.fit]:
            self._idle.remove(child)  # it died while it had nothing to do
            self._retire(child)
        for wanted in (folder, None):
            for child in reversed(self._idle):
                if child.folder == wanted:
                    self._idle.remove(child)
                    return child
        if self._alive >= self._most:
            # It has loaded another folder's modules; those of this one may have the same names.
            self._retire(self._idle.pop(0))
        return await self._start(until)

    def _give_back(self, child: Child, address: Address | None = None) -> None:
        if child.fit and child.calls < self._calls and not self._closed:
            self._idle.append(child)
            return
        self._retire(child)
        if address is not None:
            self._replace(address)

    def _replace(self, address: Address) -> None:
        if not self._closed:
            task = self._soon(self.warm(1, address))
            self._replacing.add(task)
            task.add_done_callback(self._replacing.discard)

    def _retire(self, child: Child) -> None:
        self._alive -= 1
        self._soon(child.close())

    async def _start(self, until: float) -> Child:
        self._alive += 1
        try:
            child = await start_worker()
        except BaseException:
            self._alive -= 1
            raise
        try:
            await child.ready(until)
        except BaseException:
            self._retire(child)
            raise
        return child

    async def aclose(self) -> None:
        """End them all. Nobody may be waiting for an answer any more."""
        self._closed = True
        for task in self._replacing:
            task.cancel()
        async with self._warming:
            pass  # whoever was starting one has given it back
        while self._idle:
            self._retire(self._idle.pop())
        await self._finish()


class Sandboxes(_Pool):
    """A fresh sandbox for every call: what one leaves behind must not meet the next."""

    def __init__(self, *, most: int = 8) -> None:
        super().__init__(most)
        self._threads: ThreadPoolExecutor | None = None

    @staticmethod
    def available() -> None:
        """IsolationError when no sandbox can be had here."""
        sandbox.check()

    async def run(
        self, job: Job, *, seconds: float, grace: float = 0.25, tell: Tell | None = None
    ) -> Reply:
        """One call, without network. It may write into its files directory, or a temporary one.

        When the caller leaves, the reply says so, as a worker's does.
        """
        until = asyncio.get_running_loop().time() + seconds
        reply: Reply | None = None
        try:
            self.available()
            async with self._turn(until), self._directory(job) as directory:
                child = await self._start(job, directory)
                try:
                    await child.ready(until)
                    own = job._replace(files=directory)
                    reply = await child.run(own, until=until, grace=grace, tell=tell)
                finally:
                    child.end()
                    await self._surely(child.close())
        except asyncio.CancelledError:
            # Perhaps while it was being cleared away, and then there is an answer.
            return (reply or Reply("late", began=False))._replace(interrupted=True)
        except TimeoutError:
            return reply or Reply("late", began=False)
        except (NotStartedError, OSError, IsolationError, PydanticSerializationError) as error:
            return reply or Reply("unavailable", trace=str(error), began=False)
        return reply

    @asynccontextmanager
    async def _directory(self, job: Job) -> AsyncIterator[str]:
        if job.files is not None:
            yield _made(job.files)
            return
        directory = tempfile.mkdtemp(prefix="counterseal-")
        try:
            yield directory
        finally:
            await self._surely(asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True))

    async def _start(self, job: Job, directory: str) -> Child:
        if self._threads is None:
            # Each of them waits for one sandbox. They have to outlive it: the kernel ends a sandbox
            # together with the thread that started it.
            self._threads = ThreadPoolExecutor(2 * self._most, "counterseal-sandbox")
        return await start_sandbox(job, directory, self._threads)

    async def aclose(self) -> None:
        await self._finish()
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None


def _made(directory: str) -> str:
    path = Path(directory).absolute()
    path.mkdir(parents=True, exist_ok=True)
    return str(path)
