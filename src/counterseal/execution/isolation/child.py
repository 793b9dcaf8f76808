"""The runtime's side of one process that runs tools: hands it a job, reads what it says, ends it.

Nothing that comes from a child is trusted: messages are bounded, read as JSON and as nothing else,
and one that makes no sense ends the child. How a child is started is told by
`starting`, for how long it is kept by `workers`.

How many processes a worker's family has is looked at a few times a second, so that for a moment
there may be more than it is allowed. The kernel has no limit for one family: RLIMIT_NPROC counts
all that a user runs, and nothing for root. A sandbox's family is counted at every start of one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pydantic_core import to_json

from counterseal.execution.isolation import processes
from counterseal.execution.isolation.address import Address
from counterseal.execution.isolation.messages import (
    LONGEST_MESSAGE,
    NO_COVER,
    Cover,
    Job,
    Kind,
    Reply,
    Tell,
    framed,
    is_too_much,
)

__all__ = ["Child", "Lines", "Link", "Messages", "NotStartedError"]


# --- pipes ----------------------------------------------------------------------------------------


_LONGEST_LINE = 2 * 1024
_TAIL = 16 * 1024


class Messages(asyncio.Protocol):
    """Cuts what a child writes into messages. Stops at the first that is none."""

    def __init__(self, receive: Callable[[list[Any]], None], lost: Callable[[], None]) -> None:
        self._receive = receive
        self._lost = lost
        self._data = bytearray()
        self._over = False
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 4 and not self._over:
            size = int.from_bytes(self._data[:4], "big")
            if size > LONGEST_MESSAGE:
                self._give_up()
                return
            if len(self._data) < 4 + size:
                return
            body = bytes(self._data[4 : 4 + size])
            del self._data[: 4 + size]
            try:
                message = None if is_too_much(body) else json.loads(body)
            except (ValueError, RecursionError):
                message = None
            if isinstance(message, list):
                self._receive(message)
            else:
                self._give_up()

    def _give_up(self) -> None:
        self._over = True
        if self._transport is not None:
            self._transport.close()
        self._lost()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()


class Lines(asyncio.Protocol):
    """Cuts what a child prints into lines, each bounded, and keeps the end of it.

    What is printed belongs to a call from its `begin` until the child prints the call's fence;
    before and after, nobody hears it. A secret may be printed over several lines, so while there
    are some to hide, the last lines are held back until more follow, or the call is over.
    """

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        """Whether all that the call printed was heard."""
        self._receive: Callable[[str], None] | None = None
        self._fence = b""
        self._cover = NO_COVER
        self._line = bytearray()
        self._held = ""
        self._tail = bytearray()

    def begin(
        self, receive: Callable[[str], None] | None, fence: str, cover: Cover = NO_COVER
    ) -> None:
        self._line.clear()
        self._held = ""
        self._tail.clear()
        self.ended.clear()
        self._receive = receive
        self._fence = fence.encode()
        self._cover = cover

    def finish(self) -> None:
        """The call is over, however it ended: tell what was held back, and nothing more."""
        self._flush()
        self._tell(0)
        self._receive = None

    def tail(self) -> str:
        cut = len(self._tail) >= self._cover.kept(_TAIL)
        return self._cover.ending(self._tail.decode(errors="replace"), _TAIL, cut=cut)

    def data_received(self, data: bytes) -> None:
        self._tail += data
        del self._tail[: -self._cover.kept(_TAIL)]
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._add(line)
            self._flush()
        self._add(rest)
        if len(self._held) > 2 * self._cover.margin:
            self._tell(self._cover.margin)

    def connection_lost(self, exc: Exception | None) -> None:
        self.finish()
        self.ended.set()

    def _add(self, piece: bytes) -> None:
        self._line += piece[: self._cover.kept(_LONGEST_LINE) - len(self._line)]

    def _flush(self) -> None:
        line = bytes(self._line)
        self._line.clear()
        if line == self._fence and self._fence:
            self.finish()
            self.ended.set()
        elif line and self._receive is not None:
            text = line.decode(errors="replace")
            if len(line) > _LONGEST_LINE:
                cut = len(line) >= self._cover.kept(_LONGEST_LINE)
                text = self._cover.beginning(text, _LONGEST_LINE, cut=cut)
            self._held += f"{text}\n"

    def _tell(self, margin: int) -> None:
        """Pass on what is held, but for so much of the end, in which half a secret may stand."""
        clean = self._cover.text(self._held)
        told = clean.rfind("\n", 0, len(clean) - margin) + 1 if margin else len(clean)
        self._held = clean[told:]
        for line in clean[:told].split("\n"):
            if line and self._receive is not None:
                self._receive(line[:_LONGEST_LINE])


class Link:
    """Our ends of the three pipes, which it owns from now on."""

    def __init__(self, jobs: int, messages: int, output: int) -> None:
        self._files = (
            os.fdopen(jobs, "wb", buffering=0),
            os.fdopen(messages, "rb", buffering=0),
            os.fdopen(output, "rb", buffering=0),
        )
        self._jobs: asyncio.WriteTransport | None = None
        self._open: list[asyncio.BaseTransport] = []

    async def open(self, messages: Messages, lines: Lines) -> None:
        loop = asyncio.get_running_loop()
        to_child, from_child, printed = self._files
        self._jobs, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, to_child)
        self._open.append(self._jobs)
        transport, _ = await loop.connect_read_pipe(lambda: messages, from_child)
        self._open.append(transport)
        transport, _ = await loop.connect_read_pipe(lambda: lines, printed)
        self._open.append(transport)

    def send(self, message: bytes) -> None:
        if self._jobs is not None and not self._jobs.is_closing():
            self._jobs.write(framed(message))

    def hang_up(self) -> None:
        if self._jobs is not None:
            self._jobs.close()

    async def close(self) -> None:
        for transport in self._open:
            transport.close()
        for file in self._files[len(self._open) :]:
            with suppress(OSError):
                file.close()
        await asyncio.sleep(0)


_ANSWERS: Final[dict[Any, Kind]] = {
    "value": "value",
    "partial": "partial",
    "unserialisable": "unserialisable",
    "fault": "fault",
}
_MOST_TOLD = 10_000
_LOOK_EVERY = 0.2
_MOST_PROCESSES = 64
"""Of a worker and all that it started. Looked at every so often: see above."""
_OWN_MB = 128
"""What a worker may hold for itself, besides what the tool's contract gives to the tool."""


class NotStartedError(Exception):
    """A child did not come up. Says how it ended."""


class Child:
    """A process that runs one job at a time.

    `exited` is done when it is gone, with how it ended; `end` kills it and all that it started, and
    is told whether it still runs.
    """

    def __init__(
        self,
        pid: int,
        link: Link,
        exited: asyncio.Future[str],
        end: Callable[..., None],
        *,
        watched: bool,
    ) -> None:
        self.pid = pid
        self.folder: str | None = None
        """Whose modules it has loaded: another folder may hold others of the same name."""
        self.calls = 0
        self.fit = True
        """Whether it may be given another job."""
        self._exited = exited
        self._kill = end
        self._watched = watched
        self._number = 0
        self._began = False
        self._tell: Tell | None = None
        self._told = 0
        self._answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._lines = Lines()
        self._link = link
        self._data_at_start: int | None = None

    async def ready(self, until: float) -> None:
        """Wait until it has started. TimeoutError, or NotStartedError, when it did not."""
        self._lines.begin(None, "")
        await self._link.open(Messages(self._receive, self._lost), self._lines)
        if not await self._answered(until):
            raise TimeoutError
        if self._answer.result() != "ready":
            raise NotStartedError(self._trace(await self._how()))
        self._data_at_start = processes.data_bytes(self.pid)
        processes.offer_to_oom_killer(self.pid)

    async def load(self, address: Address, until: float) -> None:
        """Let it import a tool before the first call comes."""
        self.folder = address.folder
        self._expect()
        self._send("load", list(address))
        self.fit = await self._answered(until) and self._answer.result() == "loaded"

    async def run(self, job: Job, *, until: float, grace: float, tell: Tell | None) -> Reply:
        """One call. Never waits longer than until the deadline and the grace after it.

        Of a caller who leaves the tool is told at once; what came of it is returned all the same.
        """
        self._expect()
        record = self._record(job, until - asyncio.get_running_loop().time())
        self._send("job", record)
        self.folder = job.address.folder
        self.calls += 1
        self._tell, self._told = tell, 0
        self._lines.begin(self._printed, record["fence"], Cover(job.secrets))
        over, interrupted = None, False
        try:
            over = await self._watch(job.memory_mb, until)
        except asyncio.CancelledError:
            interrupted = True
        except BaseException:
            self._over()
            raise
        # In a task of its own: a caller who leaves twice must not cut it short.
        ending = asyncio.get_running_loop().create_task(self._ending(job, over, grace))
        while not ending.done():
            try:
                await asyncio.wait({ending})
            except asyncio.CancelledError:
                interrupted = True
        if ending.cancelled():  # the event loop is shut down
            return Reply("late", began=self._began, interrupted=True)
        return ending.result()._replace(interrupted=interrupted)

    async def _ending(self, job: Job, over: str | None, grace: float) -> Reply:
        try:
            if over is None and not self._answer.done():
                await self._cancel(grace)
            await self._heard_out()
        finally:
            self._over()
        if over is not None:
            return Reply("died", trace=self._trace(over), began=self._began)
        return await self._reply(job)

    def _over(self) -> None:
        self.fit = self.fit and self._lines.ended.is_set()
        self._lines.finish()
        self._tell = None
        if not self._answer.done():
            self.end()

    def _printed(self, line: str) -> None:
        self._pass_on("log", [logging.INFO, line])

    def _record(self, job: Job, seconds: float) -> dict[str, Any]:
        start = self._data_at_start
        return {
            **job._asdict(),
            "files": None if job.files is None else str(Path(job.files).absolute()),
            "fence": secrets.token_hex(16),
            "seconds": max(0.0, seconds),
            "memory": None if start is None else start + job.memory_mb * 1024 * 1024,
        }

    async def _watch(self, memory_mb: int, until: float) -> str | None:
        """Wait for the answer. Says what the family has too much of, if it came to that."""
        loop = asyncio.get_running_loop()
        while not await self._answered(min(until, loop.time() + _LOOK_EVERY)):
            if loop.time() >= until:
                return None
            if self._watched and (over := self._too_much(memory_mb)):
                self.end()
                return over
        return None

    def _too_much(self, memory_mb: int) -> str | None:
        """What one process may use is limited by the kernel; this is for all of them together."""
        everybody = {self.pid} | processes.family(self.pid)
        if len(everybody) > _MOST_PROCESSES:
            return f"it had started more than {_MOST_PROCESSES} processes"
        if processes.memory_bytes(everybody) > (memory_mb + _OWN_MB) * 1024 * 1024:
            return f"it and its processes held more memory than its {memory_mb} MB"
        return None

    async def _cancel(self, grace: float) -> None:
        """Say that nobody waits any more, and wait a moment for a last word."""
        self._send("cancel")
        await self._answered(asyncio.get_running_loop().time() + grace)

    async def _heard_out(self) -> None:
        """What it printed came by another pipe, and must not meet the next call."""
        if self._answer.done() and not self._lines.ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._lines.ended.wait(), _LOOK_EVERY)

    async def _answered(self, until: float) -> bool:
        """Whether there is an answer, or can be none, before it is too late."""
        seconds = until - asyncio.get_running_loop().time()
        await asyncio.wait(
            {self._answer, self._exited},
            timeout=max(0.0, seconds),
            return_when=asyncio.FIRST_COMPLETED,
        )
        if self._exited.done() and not self._answer.done():
            # Its last words may still be in the pipe, which a process that it left may hold open.
            self.end()
            await asyncio.wait({self._answer}, timeout=1.0)
        return self._answer.done() or self._exited.done()

    async def _reply(self, job: Job) -> Reply:
        answer = self._answer.result() if self._answer.done() else None
        if not self._answer.done() and not self._exited.done():
            await asyncio.wait({self._exited}, timeout=5.0)
            return Reply(
                "late", trace=self._trace("it was killed at its deadline"), began=self._began
            )
        if not isinstance(answer, dict):
            return Reply("died", trace=self._trace(await self._how()), began=self._began)
        said, trace, words = answer.get("kind"), answer.get("trace"), answer.get("words")
        if said == "cancelled":
            return Reply("late", began=self._began)
        kind = _ANSWERS.get(said) if isinstance(said, str) else None
        if kind is None:
            self.end()
            return Reply("died", trace=self._trace("it broke the protocol"), began=self._began)
        self.fit = self.fit and not answer.get("spent") and not self._grown(job.memory_mb)
        return Reply(
            kind,
            answer.get("value"),
            answer.get("fault"),
            trace if isinstance(trace, str) else "",
            words if isinstance(words, str) else "",
            began=self._began,
        )

    def _grown(self, memory_mb: int) -> bool:
        """Whether a call left so much behind that the next one would run short."""
        start, now = self._data_at_start, processes.data_bytes(self.pid)
        return start is not None and now is not None and now - start > memory_mb * 1024 * 1024 / 2

    # What it says ---------------------------------------------------------------------------------

    def _expect(self) -> None:
        self._number += 1
        self._began = False
        self._answer = asyncio.get_running_loop().create_future()

    def _send(self, kind: str, content: Any = None) -> None:
        self._link.send(to_json([kind, self._number, content]))

    def _receive(self, message: list[Any]) -> None:
        match message:
            case [str(kind), int(number), content]:
                pass
            case _:
                self._lost()
                return
        if number != self._number:
            return  # an old call's
        if kind == "began":
            self._began = True
        elif kind in ("log", "progress"):
            self._pass_on(kind, content)
        elif not self._answer.done():
            self._answer.set_result(content if kind == "answer" else kind)

    def _pass_on(self, kind: str, content: Any) -> None:
        fits = {"log": 2, "progress": 3}
        if self._tell is None or self._told >= _MOST_TOLD:
            return
        if isinstance(content, list) and len(content) == fits[kind]:
            self._told += 1
            with suppress(Exception):  # whoever listens must not end the call
                self._tell(kind, content)

    def _lost(self) -> None:
        """There will be no more messages, or none that make sense."""
        self.fit = False
        if not self._answer.done():
            self._answer.set_result(None)

    # How it ends ----------------------------------------------------------------------------------

    def end(self) -> None:
        """Kill it, with everything that it started."""
        self.fit = False
        self._kill(running=not self._exited.done())

    async def close(self) -> None:
        """Let it go: hang up, wait a moment, kill what is left."""
        self._link.hang_up()
        if self.fit:
            await asyncio.wait({self._exited}, timeout=0.5)
        self.end()
        await asyncio.wait({self._exited}, timeout=5.0)
        await self._link.close()

    async def _how(self) -> str:
        """How it ended. The end of a pipe shows a little before the end of the process."""
        await asyncio.wait({self._exited}, timeout=0.5)
        if self._exited.done():
            return self._exited.result()
        self.end()
        await asyncio.wait({self._exited}, timeout=5.0)
        return "it closed its connection to the runtime, or wrote into it"

    def _trace(self, how: str) -> str:
        return f"{how}\n{self._lines.tail()}".strip()
