"""Processes for isolated tools: `Workers` are kept and reused. `sandboxes` serve one call each.

Processes are spawned, never forked. The number of calls at once is limited; calls are served in
order, and waiting counts towards a call's deadline.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import PydanticSerializationError

from counterseal.errors import IsolationError
from counterseal.execution.isolation import processes
from counterseal.execution.isolation.child import Child, ChildLink, NotStartedError
from counterseal.execution.isolation.messages import FunctionAddress, IsolatedJob, Reply, Tell
from counterseal.execution.isolation.sandbox import PACKAGE

# --- starting processes ---------------------------------------------------------------------------


_SECRETS = "COUNTERSEAL_SECRET_"
_T = TypeVar("_T")

_BOOT = """
import json, sys
from importlib.util import module_from_spec, spec_from_file_location
options = json.loads(sys.argv[1])
root, sys.path[:] = options["package"], options["path"]
spec = spec_from_file_location(
    "counterseal", root + "/__init__.py", submodule_search_locations=[root]
)
sys.modules["counterseal"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["counterseal"])
from counterseal.execution.isolation.worker import main
main(options)
"""


def worker_command(
    *flags: str, path: Sequence[str], code: Sequence[str] = (), sealed: bool
) -> list[str]:
    """Return the command that starts Python with this package, loaded from its path.

    `code` are folders of which a sealed child sees only the code.
    """
    absolute = [str(Path(entry).absolute()) for entry in path]  # "" is the current folder
    options = {"package": str(PACKAGE), "path": absolute, "code": list(code), "sealed": sealed}
    return [sys.executable, *flags, "-c", _BOOT, json.dumps(options)]


def how_it_ended(status: int) -> str:
    """Return how a process ended: the status is an exit code, or a negative signal number."""
    if status >= 0:
        return f"it ended with exit code {status}"
    with suppress(ValueError):
        return f"it was killed by {signal.Signals(-status).name}"
    return f"it was killed by signal {-status}"


async def start_worker() -> Child:
    """Start a process in its own session, with this environment except for secrets."""
    if os.name != "posix" or not sys.executable:
        raise IsolationError(
            "isolation process needs a POSIX system and a Python interpreter to start; choose "
            "another isolation"
        )
    mark = secrets.token_hex(16)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(_SECRETS)}
    ours, theirs = _pipes()
    try:
        # Not asyncio's subprocess: it waits for ever if its loop is closed at this moment.
        process = subprocess.Popen(  # noqa: S603, ASYNC220 - this interpreter; takes a moment
            worker_command("-P", path=sys.path, sealed=False),
            stdin=theirs[0],
            stdout=theirs[1],
            stderr=theirs[2],
            env={**environment, processes.MARK: mark},
            start_new_session=True,
        )
    except BaseException:
        for end in ours:
            os.close(end)
        raise
    finally:
        for end in theirs:
            os.close(end)

    return Child(
        process.pid,
        ChildLink(*ours),
        _end_of(process),
        partial(processes.end, process.pid, mark),
        partial(processes.excess, process.pid),
    )


def _end_of(process: subprocess.Popen[bytes]) -> asyncio.Future[str]:
    """Return a future with how the process ended."""
    loop = asyncio.get_running_loop()
    if not hasattr(os, "pidfd_open"):
        return loop.run_in_executor(None, lambda: how_it_ended(process.wait()))
    ended: asyncio.Future[str] = loop.create_future()
    watched = os.pidfd_open(process.pid)

    def over() -> None:
        loop.remove_reader(watched)
        os.close(watched)
        if not ended.done():
            ended.set_result(how_it_ended(process.wait()))

    loop.add_reader(watched, over)
    return ended


def _pipes() -> tuple[list[int], list[int]]:
    """Make three pipes (jobs, messages, output). Return our ends and the child's."""
    job, (ours_in, theirs_out), (ours_printed, theirs_err) = os.pipe(), os.pipe(), os.pipe()
    return [job[1], ours_in, ours_printed], [job[0], theirs_out, theirs_err]


class Pool:
    """Limits the calls at once, and keeps background tasks until they end."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._turns = asyncio.Semaphore(most)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    @asynccontextmanager
    async def _turn(self, until: float) -> AsyncIterator[None]:
        """Wait for a free place. Raise TimeoutError if there is none in time."""
        async with asyncio.timeout_at(until):
            await self._turns.acquire()
        try:
            yield
        finally:
            self._turns.release()

    def _soon(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _shielded(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for the work, which continues if the caller is cancelled."""
        await asyncio.shield(self._soon(work))

    async def _finish(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)


class Workers(Pool):
    """Processes that run one call after another."""

    def __init__(self, *, most: int = 8, calls: int = 1000) -> None:
        super().__init__(most)
        self._calls = calls
        self._idle: list[Child] = []
        self._alive = 0
        self._warming = asyncio.Lock()
        self._replacing: set[asyncio.Task[None]] = set()

    async def warm(self, count: int = 1, address: FunctionAddress | None = None) -> None:
        """Start processes in advance. A failure is reported by the first call."""
        until = asyncio.get_running_loop().time() + 60.0
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
        self, job: IsolatedJob, *, seconds: float, grace: float = 0.25, tell: Tell | None = None
    ) -> Reply:
        """Run one call in a process that has loaded only tools of the same folder.

        If the caller is cancelled, the reply says so and still has the result; nothing is raised.
        """
        until = asyncio.get_running_loop().time() + seconds
        if self._closed:
            return Reply("unavailable", trace="the workers are closed", began=False)
        try:
            async with self._turn(until):
                try:
                    child = await self._take(job.address.folder, until)
                except TimeoutError:
                    self._replace(job.address)  # it gets more time to start, for the next call
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
            self._idle.remove(child)  # it died while idle
            self._retire(child)
        for wanted in (folder, None):
            for child in reversed(self._idle):
                if child.folder == wanted:
                    self._idle.remove(child)
                    return child
        if self._alive >= self._most:
            # It has loaded modules of another folder, which may have the same names.
            self._retire(self._idle.pop(0))
        return await self._start(until)

    def _give_back(self, child: Child, address: FunctionAddress | None = None) -> None:
        if child.fit and child.calls < self._calls and not self._closed:
            self._idle.append(child)
            return
        self._retire(child)
        if address is not None:
            self._replace(address)

    def _replace(self, address: FunctionAddress) -> None:
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
        """End all processes. No call may be running."""
        self._closed = True
        for task in self._replacing:
            task.cancel()
        async with self._warming:
            pass  # wait until processes that were being started are idle
        while self._idle:
            self._retire(self._idle.pop())
        await self._finish()
