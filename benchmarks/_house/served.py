"""The worker's side: a process that makes calls when it is told to, and says how long they took.

A line `run 300` on standard input is answered by one line of JSON on standard output; the first
line, before anything is asked, says that the worker is ready and which versions it runs. Only the
standard library is used: a worker runs in its peer's environment, where nothing of ours is.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

Call = Callable[[], Awaitable[Any]]
"""Makes one call."""
Told = dict[str, Any]
"""What is said of a turn: `value` in seconds a call, and `samples`, of single calls."""
Run = Callable[[int], Awaitable[Told]]

WARM = 100
"""Calls before the first that counts."""


def quiet_output() -> TextIO:
    """The real standard output; what libraries print from now on goes to standard error."""
    said = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return said


def serve(prepare: Callable[[], Awaitable[Run]], packages: Sequence[str] = (), **more: Any) -> None:
    """Prepare, say so, and obey until standard input ends. `more` is told with the versions."""
    out = quiet_output()
    versions = {name: version(name) for name in packages}
    asyncio.run(_serve(prepare, out, {"ready": True, "versions": versions, **more}))


async def _serve(prepare: Callable[[], Awaitable[Run]], out: TextIO, hello: Told) -> None:
    run = await prepare()
    _say(out, hello)
    while line := await asyncio.to_thread(sys.stdin.readline):
        verb, _, words = line.strip().partition(" ")
        if verb != "run":
            break
        _say(out, {**await run(int(words)), "rss_mib": rss_mib()})


def _say(out: TextIO, told: Told) -> None:
    out.write(json.dumps(told) + "\n")
    out.flush()


def rss_mib() -> float:
    """Memory of this process that is really there, in MiB; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0.0
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 2)


# --- runs -----------------------------------------------------------------------------------------


async def one_by_one(call: Call, *, warm: int = WARM) -> Run:
    """One caller: processor time a call as the turn's value, and each call's time as a sample.

    Processor time of the whole process, threads included: it does not depend on what else the
    machine does, and a tool that waits for an answer costs only what its caller spends on it.
    """
    for _ in range(warm):
        await call()

    async def run(number: int) -> Told:
        took = []
        processor = time.process_time()
        for _ in range(number):
            began = time.perf_counter()
            await call()
            took.append(time.perf_counter() - began)
        return {"value": (time.process_time() - processor) / number, "samples": took}

    return run


async def at_once(calls: Sequence[Call]) -> Run:
    """As many callers as there are calls, each with its own: seconds a call, all together."""
    await asyncio.gather(*(call() for call in calls))

    async def run(number: int) -> Told:
        took: list[float] = []

        async def caller(call: Call) -> None:
            for _ in range(max(number // len(calls), 1)):
                began = time.perf_counter()
                await call()
                took.append(time.perf_counter() - began)

        began = time.perf_counter()
        await asyncio.gather(*map(caller, calls))
        return {"value": (time.perf_counter() - began) / len(took), "samples": took}

    return run
