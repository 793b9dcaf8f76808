"""The house's side of a worker: a process that is told to make calls, and says how that went."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks._house.environments import ROOT, Unavailable, python_of
from benchmarks._house.rows import Turn

PATIENCE = 600.0
"""Seconds for a worker to be ready, and for a turn."""
LIMIT = 1 << 24
"""Bytes of a line."""
TAIL = 400


class Worker:
    """A process that is ready."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        hello: dict[str, Any],
        last_words: asyncio.Task[str],
    ) -> None:
        self._process = process
        self._last_words = last_words
        self.versions: dict[str, str] = hello.get("versions", {})
        self.hello = hello
        self.told: dict[str, Any] = {}
        """All that it said of its last turn."""

    @property
    def pid(self) -> int:
        return self._process.pid

    async def run(self, number: int) -> Turn:
        if self._process.stdin is None:
            raise Unavailable("a worker cannot be told anything")
        with suppress(ConnectionError):
            self._process.stdin.write(f"run {number}\n".encode())
            await self._process.stdin.drain()
        try:
            self.told = await _line(self._process)
        except Unavailable as error:
            _end(self._process)
            raise _explained(error, await self._last_words) from None
        return Turn(self.told["value"], self.told.get("samples", ()), number)


@asynccontextmanager
async def worker(
    script: str | Path, *words: str, peer: str | None = None, settings: dict[str, str] | None = None
) -> AsyncIterator[Worker]:
    """Start a script in a peer's environment, or in ours; it is ended with the block."""
    python = await asyncio.to_thread(python_of, peer) if peer else Path(sys.executable)
    process = await asyncio.create_subprocess_exec(
        python,
        "-P",  # a script's folder must not hide a library
        str(script),
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_surroundings(settings or {}),
        limit=LIMIT,
        start_new_session=True,  # Ctrl-C is the house's to hear
    )
    drained = asyncio.create_task(_last_words(process))
    try:
        try:
            hello = await _line(process)
        except Unavailable as error:
            _end(process)
            raise _explained(error, await drained) from None
        yield Worker(process, hello, drained)
    finally:
        _end(process)
        await process.wait()
        await drained


def _explained(error: Unavailable, last_words: str) -> Unavailable:
    """Return the error with the last line that the process wrote, if it wrote one."""
    lines = last_words.strip().splitlines()
    return Unavailable(lines[-1]) if lines else error


def _surroundings(settings: dict[str, str]) -> dict[str, str]:
    left_out = {"VIRTUAL_ENV", "PYTHONHOME"}
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "PYTHONPATH": str(ROOT), **settings}


async def _line(process: asyncio.subprocess.Process) -> dict[str, Any]:
    if process.stdout is None:
        raise Unavailable("a worker cannot be heard")
    try:
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
    except TimeoutError:
        raise Unavailable(f"no answer within {PATIENCE:.0f} s") from None
    if not line:
        raise Unavailable("it ended before its time")
    told: dict[str, Any] = json.loads(line)
    return told


async def _last_words(process: asyncio.subprocess.Process) -> str:
    """What was said last on standard error, which is read on so that nobody waits for it."""
    kept = b""
    while process.stderr and (some := await process.stderr.read(1 << 16)):
        kept = (kept + some)[-TAIL:]
    return kept.decode(errors="replace")


def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        # Not `process.kill()`, which may take the end from whoever waits for it.
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


async def together(workers: Sequence[Worker], number: int) -> Turn:
    """All at once: seconds a call, of all their calls."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    turns = await asyncio.gather(*(one.run(number) for one in workers))
    calls = sum(turn.calls for turn in turns)
    samples = [sample for turn in turns for sample in turn.samples]
    return Turn((loop.time() - began) / calls, samples, calls)
