"""How a process for isolated tools comes to be: a fresh interpreter, never a fork of this one.

It finds this package by where it is, not by its name, and gets its jobs over pipes: nothing of a
call stands on its command line or in its environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import counterseal
from counterseal.errors import IsolationError
from counterseal.execution.isolation import processes, sandbox
from counterseal.execution.isolation.child import Child
from counterseal.execution.isolation.jobs import Job
from counterseal.execution.isolation.pipes import Link

__all__ = ["start_sandbox", "start_worker"]

_SECRETS = "COUNTERSEAL_SECRET_"

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


def _command(*flags: str, path: Sequence[str], code: Sequence[str] = (), sealed: bool) -> list[str]:
    """Start Python with this package, which is found by where it is, not by its name.

    `code` are folders of which a sealed child sees only the code.
    """
    package = Path(counterseal.__file__).absolute().parent
    options = {"package": str(package), "path": list(path), "code": list(code), "sealed": sealed}
    return [sys.executable, *flags, "-c", _BOOT, json.dumps(options)]


def _in_words(status: int) -> str:
    """How a process ended: minus a signal's number, or an exit code."""
    if status >= 0:
        return f"it ended with exit code {status}"
    with suppress(ValueError):
        return f"it was killed by {signal.Signals(-status).name}"
    return f"it was killed by signal {-status}"


async def start_worker() -> Child:
    """A process in a session of its own, with this one's environment, secrets left out."""
    if os.name != "posix" or not sys.executable:
        raise IsolationError(
            "isolation process needs a POSIX system and a Python interpreter to start; choose "
            "another isolation"
        )
    mark = secrets.token_hex(16)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(_SECRETS)}
    ours, theirs = _pipes()
    try:
        # Not asyncio's own way to start one: it waits for ever if its loop is ended meanwhile.
        process = subprocess.Popen(  # noqa: S603, ASYNC220 - this interpreter; takes a moment
            _command("-P", path=_search_path(), sealed=False),
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
        Link(*ours),
        _end_of(process),
        partial(processes.end, process.pid, mark),
        watched=True,
    )


def _end_of(process: subprocess.Popen[bytes]) -> asyncio.Future[str]:
    """How it ended, once it has."""
    loop = asyncio.get_running_loop()
    if not hasattr(os, "pidfd_open"):
        waiting = loop.run_in_executor(None, process.wait)
        return asyncio.ensure_future(_worded(waiting))
    ended: asyncio.Future[str] = loop.create_future()
    watched = os.pidfd_open(process.pid)

    def over() -> None:
        loop.remove_reader(watched)
        os.close(watched)
        if not ended.done():
            ended.set_result(_in_words(process.wait()))

    loop.add_reader(watched, over)
    return ended


async def _worded(waiting: asyncio.Future[int]) -> str:
    return _in_words(await waiting)


def _search_path() -> list[str]:
    """What can be imported here can be imported there. An empty entry is the present folder."""
    return [str(Path(entry).absolute()) for entry in sys.path]


def _pipes() -> tuple[list[int], list[int]]:
    """Our ends and a child's, of what it reads, what it writes, and what it prints."""
    job, (ours_in, theirs_out), (ours_printed, theirs_err) = os.pipe(), os.pipe(), os.pipe()
    return [job[1], ours_in, ours_printed], [job[0], theirs_out, theirs_err]


async def start_sandbox(job: Job, directory: str, threads: ThreadPoolExecutor) -> Child:
    """The same inside a sandbox that may write into the directory. Takes a thread while it runs."""
    loop = asyncio.get_running_loop()
    path, code = sandbox.search_path()
    program = _command("-I", "-B", path=path, code=code, sealed=True)
    starting = loop.run_in_executor(
        threads, sandbox.start, program, job.address, directory, job.memory_mb
    )
    try:
        process, ends = await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(_abandon)
        raise

    async def exited() -> str:
        return _how_it_ended(await loop.run_in_executor(threads, process.wait))

    def end(*, running: bool) -> None:
        if running:
            with suppress(OSError):
                process.kill()  # those that left its group go when it is waited for

    return Child(
        process.pid or -1, Link(*ends), asyncio.ensure_future(exited()), end, watched=False
    )


def _abandon(starting: asyncio.Future[sandbox.Process]) -> None:
    """The caller left while a sandbox was being started."""
    if not starting.cancelled() and starting.exception() is None:
        process, ends = starting.result()
        for one in ends:
            os.close(one)
        process.kill()
        process.wait()


def _how_it_ended(result: Any) -> str:
    if result.signal > 0:
        return _in_words(-result.signal)
    if result.exit_code >= 0:
        return _in_words(result.exit_code)
    return "it was killed: by its memory limit, or from outside"
