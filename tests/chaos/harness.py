"""Real processes for the kill test: the effects server, the nursery, and workers that can die.

Everything ends with this process: each of them ends when its pipe does.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

__all__ = ["PATIENCE", "Effects", "Gone", "Nursery", "Worker"]

HERE: Final = Path(__file__).parent
PATIENCE: Final = 180.0
"""How many seconds anything may take before the harness itself gives up."""


class Gone(Exception):  # noqa: N818 - it is what happened, and no error here
    """The worker is dead."""


class Worker:
    """A process at the other end of a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._task: asyncio.Task[None] | None = None
        self.pid = 0
        self.alive = True
        self.died = asyncio.Event()
        self.begin_anew()

    def begin_anew(self) -> None:
        """Nothing has befallen it yet, in this round."""
        self.struck: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """The site at which it was struck, once it was."""

    async def greet(self) -> None:
        self.pid = json.loads(await self._reader.readline())["pid"]
        self._task = asyncio.create_task(self._listen())

    async def end(self) -> None:
        """Hang up, and leave nothing open."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=PATIENCE)

    async def _listen(self) -> None:
        with suppress(OSError):
            while line := await self._reader.readline():
                self._take(json.loads(line))
        self.alive = False
        self.died.set()
        self._writer.close()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(Gone())
        self.struck.cancel()

    def _take(self, said: dict[str, Any]) -> None:
        if "struck" in said:
            if not self.struck.done():
                self.struck.set_result(said["struck"])
            if said["stopped"]:
                loop = asyncio.get_running_loop()
                loop.call_later(said["stopped"], self.signal, signal.SIGCONT)
            return
        asked = self._asked.pop(said.pop("id"))
        if not asked.done():
            asked.set_result(said)

    async def ask(self, do: str, **given: Any) -> dict[str, Any]:
        """What it answers. Gone when it dies meanwhile; RuntimeError for a fault of its own."""
        if not self.alive:
            raise Gone
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps({"id": number, "do": do, **given}).encode() + b"\n")
        async with asyncio.timeout(PATIENCE):
            said = await answer
        if "bug" in said:
            raise RuntimeError(f"{do} failed in a worker:\n{said['bug']}")
        return said

    def signal(self, number: signal.Signals) -> None:
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        async with asyncio.timeout(PATIENCE):
            await self.died.wait()


class Nursery:
    """Starts workers, each ready within milliseconds."""

    def __init__(self, path: Path, process: asyncio.subprocess.Process) -> None:
        self._path = path
        self._process = process
        self._born: asyncio.Queue[Worker] = asyncio.Queue()
        self._all: list[Worker] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: Path) -> AsyncIterator[Nursery]:
        path = folder / "workers.sock"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"{__package__}.worker",
            str(path),
            cwd=HERE.parents[1],
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        made = cls(path, process)
        server = await asyncio.start_unix_server(made._welcome, path, limit=1 << 24)
        try:
            yield made
        finally:
            server.close()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its own group: it and its workers
            await process.wait()
            for worker in made._all:
                await worker.end()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker = Worker(reader, writer)
        self._all.append(worker)
        await worker.greet()
        self._born.put_nowait(worker)

    async def worker(self) -> Worker:
        if self._process.stdin is None or self._process.returncode is not None:
            raise RuntimeError("the nursery is gone")
        self._process.stdin.write(b"\n")
        async with asyncio.timeout(PATIENCE):
            return await self._born.get()


class Effects:
    """The effects server, and what its file says."""

    def __init__(self, path: Path, port: int) -> None:
        self.port = port
        self._path = path
        self._read = 0
        self._lines: dict[str, list[dict[str, Any]]] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: Path) -> AsyncIterator[Effects]:
        path = folder / "effects.jsonl"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(HERE / "effects_server.py"),
            str(path),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            if process.stdout is None:
                raise RuntimeError("the effects server says nothing")
            async with asyncio.timeout(PATIENCE):
                port = int(await process.stdout.readline())
            yield cls(path, port)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def plan(self, what: str, op: str, **plan: Any) -> None:
        """What is to happen to the next request for an operation."""
        body = json.dumps({"what": what, "op": op, **plan}).encode()
        await asyncio.to_thread(self._fetch, "/plans", body)

    async def drained(self) -> None:
        """Wait until nothing that was sent before is under way any more."""
        left = (await asyncio.to_thread(self._fetch, "/drained", None))["left"]
        if left:
            raise RuntimeError(f"the effects server does not come to rest: {left}")

    def _fetch(self, path: str, body: bytes | None) -> Any:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.port}{path}", body, timeout=PATIENCE
        ) as answer:
            return json.load(answer)

    def log(self) -> list[str]:
        """What workers complained of last."""
        path = self._path.with_name("workers.log")
        return path.read_text().splitlines()[-300:] if path.is_file() else []

    def lines(self, tenant: str) -> list[dict[str, Any]]:
        """What the file says of a round, all of it read from the file."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                said = json.loads(line)
                self._lines.setdefault(said["op"].partition(".")[0], []).append(said)
        return self._lines.get(tenant, [])
