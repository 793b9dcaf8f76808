"""Sandboxes for tools that run foreign code: each serves one call and is thrown away.

Starting one takes as long as a Python program that imports this package, and longer, because the
sandbox examines each access to a file. So a spare is started after a call, for the next call of
the same tool: a sandbox that has imported the tool and knows nothing of any call. The first call of
a tool, and calls that come faster than spares can be started, wait for their sandbox.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pydantic_core import PydanticSerializationError

from counterseal.errors import IsolationError
from counterseal.execution.isolation import sandbox
from counterseal.execution.isolation.child import Child, ChildLink, NotStartedError
from counterseal.execution.isolation.messages import FunctionAddress, IsolatedJob, Reply, Tell
from counterseal.execution.isolation.pool import Pool, how_it_ended, worker_command

_log = logging.getLogger("counterseal.execution")

_START_SECONDS = 60.0
"""How long a spare may take to start."""


class Sandbox:
    """A sandboxed process, and the directory into which it may write."""

    def __init__(
        self, process: sandbox.Process, directory: str, threads: ThreadPoolExecutor
    ) -> None:
        self.directory = directory
        self.spare = False
        """True if it was started before its call."""
        self._process = process.process
        self._threads = threads
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()
        # No thread waits while it is idle: Python would wait for that thread before it exits.
        self._watched = os.pidfd_open(self._process.pid)

        def over() -> None:
            loop.remove_reader(self._watched)
            os.close(self._watched)
            waiting = loop.run_in_executor(threads, self._wait)
            waiting.add_done_callback(lambda done: ended.set_result(done.result()))

        loop.add_reader(self._watched, over)
        link = ChildLink(*process.ends)
        self.child = Child(self._process.pid, link, ended, self._end, self._excess)

    def _wait(self) -> str:
        result = self._process.wait()
        if result.signal <= 0 and result.exit_code < 0:
            return "it was killed: by its memory limit, or from outside"
        return how_it_ended(-result.signal if result.signal > 0 else result.exit_code)

    def _end(self, *, running: bool) -> None:
        if running:
            with suppress(OSError):
                self._process.kill()  # processes outside its group end when it is waited for

    def _excess(self, _memory_mb: int) -> str | None:  # sandlock counts memory and processes
        return sandbox.excess(self.directory, self._process.pid)

    def abandon(self) -> None:
        """End it without its event loop, which is closed."""
        self.child.end()
        os.close(self._watched)
        self._threads.submit(self._wait)
        shutil.rmtree(self.directory, ignore_errors=True)


async def start_sandbox(
    address: FunctionAddress, memory_mb: int, directory: str, threads: ThreadPoolExecutor
) -> Sandbox:
    """Start a process in a sandbox that may write into the directory; needs a thread."""
    path, code = sandbox.search_path()
    program = worker_command("-I", "-B", path=path, code=code, sealed=True)
    starting = asyncio.get_running_loop().run_in_executor(
        threads, sandbox.start, program, address, directory, memory_mb
    )
    try:
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(_abandon)
        raise
    return Sandbox(process, directory, threads)


def _abandon(starting: asyncio.Future[sandbox.Process]) -> None:
    """End a sandbox whose caller was cancelled while it was being started."""
    if not starting.cancelled() and starting.exception() is None:
        process, ends = starting.result()
        for end in ends:
            os.close(end)
        process.kill()
        process.wait()


class SpareKey(NamedTuple):
    """What calls must have in common to use the same spare."""

    address: FunctionAddress
    contract: str
    memory_mb: int
    path: tuple[str, ...]
    """`sys.path`, which decides what code a sandbox can read."""


class Sandboxes(Pool):
    """Runs each call in a sandbox of its own, so that calls leave nothing for each other.

    At most `spares` sandboxes, over all tools, wait for a call, each at most `keep` seconds. Their
    directories are made in `folder`: a spare's directory is renamed to that of its call, so both
    should be on one file system.
    """

    def __init__(
        self,
        *,
        most: int = 8,
        spares: int = 4,
        keep: float = 300.0,
        folder: Callable[[], Path] | None = None,
    ) -> None:
        super().__init__(most)
        self._most_spares = spares
        self._keep = keep
        self._folder = folder
        self._spares: dict[SpareKey, asyncio.Task[Sandbox | None]] = {}
        self._in_use: Counter[str] = Counter()
        """Directories of running calls."""
        # A thread must outlive the sandboxes that it has started: the kernel ends them with it.
        self._threads = ThreadPoolExecutor(most + spares, "counterseal-sandbox")

    @staticmethod
    def available() -> None:
        """Raise IsolationError if this machine can't run a sandbox."""
        sandbox.check()

    async def run(
        self, job: IsolatedJob, *, seconds: float, grace: float = 0.25, tell: Tell | None = None
    ) -> Reply:
        """Run one call without network, writing into its files directory or a temporary one.

        If the caller is cancelled, the reply says so and still has the result; nothing is raised.
        """
        until = asyncio.get_running_loop().time() + seconds
        reply: Reply | None = None
        if self._closed:
            return Reply("unavailable", trace="the sandboxes are closed", began=False)
        try:
            self.available()
            async with self._turn(until):
                async with self._sandbox(job, until, spare=True) as box:
                    own = job._replace(files=box.directory)
                    reply = await box.child.run(own, until=until, grace=grace, tell=tell)
                # A spare that died before it reached the tool is no failure of the call.
                if box.spare and reply.kind == "died" and not reply.began:
                    async with self._sandbox(job, until, spare=False) as box:
                        own = job._replace(files=box.directory)
                        reply = await box.child.run(own, until=until, grace=grace, tell=tell)
        except asyncio.CancelledError:
            # If it happened while the sandbox was being removed, there is a reply.
            return (reply or Reply("late", began=False))._replace(interrupted=True)
        except TimeoutError:
            return reply or Reply("late", began=False)
        except (NotStartedError, OSError, IsolationError, PydanticSerializationError) as error:
            return reply or Reply("unavailable", trace=str(error), began=False)
        self._prepare(job)
        return reply

    @asynccontextmanager
    async def _sandbox(
        self, job: IsolatedJob, until: float, *, spare: bool
    ) -> AsyncIterator[Sandbox]:
        """Provide a ready sandbox for one call, and end it afterwards."""
        with self._using(job.files) as alone:
            box = await self._take(job, until) if spare and alone else None
            if box is None:
                box = await self._start(job.address, job.memory_mb, job.files)
            try:
                if not box.spare:
                    await box.child.ready(until)
                yield box
            finally:
                box.child.end()
                await self._shielded(self._end(box, remove=job.files is None))

    @contextmanager
    def _using(self, files: str | None) -> Iterator[bool]:
        """Note that a call uses a directory. The value says whether no other call does."""
        name = "" if files is None else str(Path(files).absolute())
        alone = files is None or not self._in_use[name]
        self._in_use[name] += 1
        try:
            yield alone
        finally:
            self._in_use[name] -= 1
            if not self._in_use[name]:
                del self._in_use[name]

    async def _start(
        self, address: FunctionAddress, memory_mb: int, files: str | None = None
    ) -> Sandbox:
        """Start a sandbox in a call's directory, else in a new one."""
        if files is not None:
            directory = _made(files)
            if full := await asyncio.to_thread(sandbox.excess, directory):
                raise IsolationError(f"{full}; delete files in {directory}, or start another run")
            return await start_sandbox(address, memory_mb, directory, self._threads)
        base = None if self._folder is None else _made(self._folder())
        directory = tempfile.mkdtemp(prefix="counterseal-", dir=base)
        try:
            return await start_sandbox(address, memory_mb, directory, self._threads)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise

    async def _end(self, box: Sandbox, *, remove: bool) -> None:
        box.child.end()
        await box.child.close()
        if remove:
            await asyncio.to_thread(shutil.rmtree, box.directory, ignore_errors=True)

    # --- spares -----------------------------------------------------------------------------------

    def spares(self) -> tuple[int, ...]:
        """Return the process ids of the sandboxes that are ready for a call."""
        boxes = [task.result() for task in self._spares.values() if task.done()]
        return tuple(box.child.pid for box in boxes if box is not None and box.child.fit)

    async def _take(self, job: IsolatedJob, until: float) -> Sandbox | None:
        """Return the spare for a call, with the call's directory; None if there is none.

        A directory with files can't be replaced: that call starts its own sandbox.
        """
        key = _key_of(job)
        for other in [each for each in self._spares if each.address == key.address and each != key]:
            self._discard(other)
        starting = self._spares.get(key)
        if starting is None or (job.files is not None and _has_files(job.files)):
            return None
        del self._spares[key]
        box = None
        try:
            seconds = until - asyncio.get_running_loop().time()
            await asyncio.wait({starting}, timeout=max(0.0, seconds))
            if starting.done() and (ready := starting.result()) and ready.child.fit:
                box = ready if _moved(ready, job.files) else None
        finally:
            if box is None:
                self._soon(self._throw_away(starting))
        return box

    def _prepare(self, job: IsolatedJob) -> None:
        """Start a spare for the next call of the same tool."""
        key = _key_of(job)
        if self._closed or key in self._spares or not self._most_spares:
            return
        if len(self._spares) >= self._most_spares:
            self._discard(next(iter(self._spares)))  # the oldest
        starting = self._spares[key] = self._soon(self._start_spare(key))

        def expire() -> None:
            if self._spares.get(key) is starting:
                self._discard(key)

        asyncio.get_running_loop().call_later(self._keep, expire)

    async def _start_spare(self, key: SpareKey) -> Sandbox | None:
        """Start a sandbox that has imported the tool. Return None if it does not start."""
        until = asyncio.get_running_loop().time() + _START_SECONDS
        box: Sandbox | None = None
        ready = False
        try:
            box = await self._start(key.address, key.memory_mb)
            box.spare = True
            await box.child.ready(until)
            await box.child.load(key.address, until)
            ready = True
        except Exception:  # noqa: BLE001 - the next call starts its own sandbox, and reports it
            _log.warning("a spare sandbox for %s did not start", key.address, exc_info=True)
            return None
        finally:
            if box is not None and not ready:
                await self._shielded(self._end(box, remove=True))
        return box

    def _discard(self, key: SpareKey) -> None:
        self._soon(self._throw_away(self._spares.pop(key)))

    async def _throw_away(self, starting: asyncio.Task[Sandbox | None]) -> None:
        starting.cancel()
        with suppress(asyncio.CancelledError):
            if box := await starting:
                await self._end(box, remove=True)

    def abandon(self) -> None:
        """End the spares of an event loop that is closed."""
        for starting in self._spares.values():
            box = starting.result() if starting.done() and not starting.cancelled() else None
            if box is not None and not box.child.ended:
                box.abandon()
        self._spares.clear()
        self._threads.shutdown(wait=False)

    async def aclose(self) -> None:
        """End all sandboxes. No call may be running."""
        self._closed = True
        for key in list(self._spares):
            self._discard(key)
        await self._finish()
        self._threads.shutdown(wait=False)


def _key_of(job: IsolatedJob) -> SpareKey:
    return SpareKey(job.address, job.contract, job.memory_mb, tuple(sys.path))


def _made(directory: str | Path) -> str:
    path = Path(directory).absolute()
    path.mkdir(parents=True, exist_ok=True)
    return str(path)


def _has_files(directory: str) -> bool:
    with suppress(OSError):
        return any(Path(directory).iterdir())
    return False


def _moved(box: Sandbox, files: str | None) -> bool:
    """Give a spare's directory the name of the call's. Return False if that is not possible.

    The process keeps its rights: they belong to the directory, not to its name.
    """
    if files is None:
        return True
    target = Path(files).absolute()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        Path(box.directory).rename(target)  # replaces an empty directory, and no other
    except OSError:
        return False
    box.directory = str(target)
    return True
