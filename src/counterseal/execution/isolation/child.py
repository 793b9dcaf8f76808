"""The runtime's side of one child process that runs tools: sends jobs, reads replies, ends it.

Nothing from a child is trusted: messages are bounded and parsed as JSON only, and an invalid one
ends the child. `pool` starts children and decides how long they are kept.

Limits that the kernel does not have are checked a few times a second, so that a process may exceed
them for a moment.
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

from counterseal.clocks import boottime
from counterseal.execution.isolation import processes
from counterseal.execution.isolation.messages import (
    LONGEST_MESSAGE,
    NO_COVER,
    Cover,
    FunctionAddress,
    IsolatedJob,
    Kind,
    Reply,
    Tell,
    framed,
    is_too_much,
)

# --- pipes ----------------------------------------------------------------------------------------


_LONGEST_LINE = 2 * 1024
_TAIL = 16 * 1024


class Messages(asyncio.Protocol):
    """Splits a child's output into messages, and stops at the first invalid one."""

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
    """Splits what a child prints into bounded lines, and keeps the end of the output.

    Output belongs to a call from `begin` until the child prints the call's fence; other output is
    dropped. A secret may be printed over several lines, so if the call has secrets, the last lines
    are held back until more follow or the call ends.
    """

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        """Set when the whole output of the call was received."""
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
        """End the call's output: pass on the lines that were held back."""
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
        """Pass on the held lines, except for a margin in which part of a secret may be."""
        clean = self._cover.text(self._held)
        end = clean.rfind("\n", 0, len(clean) - margin) + 1 if margin else len(clean)
        self._held = clean[end:]
        for line in clean[:end].split("\n"):
            if line and self._receive is not None:
                self._receive(line[:_LONGEST_LINE])


class ChildLink:
    """The runtime's ends of the three pipes to a child; the link closes them."""

    def __init__(self, jobs: int, messages: int, output: int) -> None:
        self._files = (
            os.fdopen(jobs, "wb", buffering=0),
            os.fdopen(messages, "rb", buffering=0),
            os.fdopen(output, "rb", buffering=0),
        )
        self.jobs: asyncio.WriteTransport | None = None
        self._open: list[asyncio.BaseTransport] = []

    async def open(self, messages: Messages, lines: Lines) -> None:
        loop = asyncio.get_running_loop()
        to_child, from_child, printed = self._files
        self.jobs, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, to_child)
        self._open.append(self.jobs)
        transport, _ = await loop.connect_read_pipe(lambda: messages, from_child)
        self._open.append(transport)
        transport, _ = await loop.connect_read_pipe(lambda: lines, printed)
        self._open.append(transport)

    async def close(self) -> None:
        for transport in self._open:
            transport.close()
        for file in self._files[len(self._open) :]:
            with suppress(OSError):
                file.close()
        await asyncio.sleep(0)


_ANSWERS: Final[tuple[Kind, ...]] = ("value", "partial", "unserialisable", "fault")
_MOST_TOLD = 10_000
_LOOK_EVERY = 0.2


class NotStartedError(Exception):
    """A child did not start; the message says how it ended."""


class Child:
    """A process that runs one job at a time.

    `exited` is done when the process has ended, and says how; `end` kills it and its descendants,
    and takes whether it still runs. `excess` takes a call's memory in MB, and returns which limit
    the process and its descendants exceed together, or None; it runs in a thread.
    """

    def __init__(
        self,
        pid: int,
        link: ChildLink,
        exited: asyncio.Future[str],
        end: Callable[..., None],
        excess: Callable[[int], str | None],
    ) -> None:
        self.pid = pid
        self.folder: str | None = None
        """The folder of the modules it has loaded; another folder may have the same names."""
        self.calls = 0
        self.fit = True
        """False if it must not get another job."""
        self._exited = exited
        self._kill = end
        self._excess = excess
        self._number = 0
        self._began = False
        self._tell: Tell | None = None
        self._told = 0
        self._answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._lines = Lines()
        self._link = link
        self._data_at_start: int | None = None

    async def ready(self, until: float) -> None:
        """Wait until it has started. Raise TimeoutError or NotStartedError if it did not."""
        self._lines.begin(None, "")
        await self._link.open(Messages(self._receive, self._lost), self._lines)
        if not await self._answered(until):
            raise TimeoutError
        if self._answer.result() != "ready":
            raise NotStartedError(self._trace(await self._how()))
        self._data_at_start = processes.data_bytes(self.pid)
        processes.offer_to_oom_killer(self.pid)

    async def load(self, address: FunctionAddress, until: float) -> None:
        """Import a tool before the first call."""
        self.folder = address.folder
        self._expect()
        self._send("load", list(address))
        self.fit = await self._answered(until) and self._answer.result() == "loaded"

    async def run(
        self, job: IsolatedJob, *, until: float, grace: float, tell: Tell | None
    ) -> Reply:
        """Run one call, at most until the deadline plus the grace period.

        If the caller is cancelled, the tool is told at once, and the reply is returned anyway.
        """
        self._expect()
        record = self._record(job, until - asyncio.get_running_loop().time())
        self._send("job", record)
        self.folder = job.address.folder
        self.calls += 1
        self._tell, self._told = tell, 0
        self._lines.begin(
            lambda line: self._pass_on("log", [logging.INFO, line]),
            record["fence"],
            Cover(job.secrets),
        )
        over, interrupted = None, False
        try:
            over = await self._watch(job.memory_mb, until)
        except asyncio.CancelledError:
            interrupted = True
        except BaseException:
            self._over()
            raise
        # In its own task: a second cancellation must not cut it short.
        ending = asyncio.get_running_loop().create_task(self._ending(job, over, grace))
        while not ending.done():
            try:
                await asyncio.wait({ending})
            except asyncio.CancelledError:
                interrupted = True
        if ending.cancelled():  # the event loop is shut down
            return Reply("late", began=self._began, interrupted=True)
        return ending.result()._replace(interrupted=interrupted)

    async def _ending(self, job: IsolatedJob, over: str | None, grace: float) -> Reply:
        try:
            if over is None and not self._answer.done():
                self._send("cancel")
                await self._answered(asyncio.get_running_loop().time() + grace)
            # The rest of the call's output comes through another pipe.
            if self._answer.done() and not self._lines.ended.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._lines.ended.wait(), _LOOK_EVERY)
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

    def _record(self, job: IsolatedJob, seconds: float) -> dict[str, Any]:
        start = self._data_at_start
        return {
            **job._asdict(),
            "files": None if job.files is None else str(Path(job.files).absolute()),
            "fence": secrets.token_hex(16),
            "seconds": max(0.0, seconds),
            "until": boottime() + seconds,
            "memory": None if start is None else start + job.memory_mb * 1024 * 1024,
        }

    async def _watch(self, memory_mb: int, until: float) -> str | None:
        """Wait for the answer. Return which limit the processes exceeded, or None."""
        loop = asyncio.get_running_loop()
        while not await self._answered(min(until, loop.time() + _LOOK_EVERY)):
            if loop.time() >= until:
                return None
            if over := await asyncio.to_thread(self._excess, memory_mb):
                self.end()
                return over
        return None

    async def _answered(self, until: float) -> bool:
        """Wait for an answer or the child's end. Return False on timeout."""
        seconds = until - asyncio.get_running_loop().time()
        await asyncio.wait(
            {self._answer, self._exited},
            timeout=max(0.0, seconds),
            return_when=asyncio.FIRST_COMPLETED,
        )
        if self._exited.done() and not self._answer.done():
            # Its last message may still be in the pipe, which a descendant may hold open.
            self.end()
            await asyncio.wait({self._answer}, timeout=1.0)
        return self._answer.done() or self._exited.done()

    async def _reply(self, job: IsolatedJob) -> Reply:
        answer = self._answer.result() if self._answer.done() else None
        if not self._answer.done() and not self._exited.done():
            await asyncio.wait({self._exited}, timeout=5.0)
            late = self._trace("it was killed at its deadline")
            return Reply("late", trace=late, began=self._began)
        if not isinstance(answer, dict):
            return Reply("died", trace=self._trace(await self._how()), began=self._began)
        said, trace, words = answer.get("kind"), answer.get("trace"), answer.get("words")
        if said == "cancelled":
            return Reply("late", began=self._began)
        kind = next((kind for kind in _ANSWERS if kind == said), None)
        if kind is None:
            self.end()
            return Reply("died", trace=self._trace("it broke the protocol"), began=self._began)
        # A call may have left too little memory for the next one.
        start, now = self._data_at_start, processes.data_bytes(self.pid)
        grown = 0 if start is None or now is None else now - start
        too_large = grown > job.memory_mb * 1024 * 1024 / 2
        self.fit = self.fit and not answer.get("spent") and not too_large
        return Reply(
            kind,
            answer.get("value"),
            answer.get("fault"),
            trace if isinstance(trace, str) else "",
            words if isinstance(words, str) else "",
            began=self._began,
        )

    # --- messages ---------------------------------------------------------------------------------

    def _expect(self) -> None:
        self._number += 1
        self._began = False
        self._answer = asyncio.get_running_loop().create_future()

    def _send(self, kind: str, content: Any = None) -> None:
        message = framed(to_json([kind, self._number, content]))
        if self._link.jobs is not None and not self._link.jobs.is_closing():
            self._link.jobs.write(message)

    def _receive(self, message: list[Any]) -> None:
        match message:
            case [str(), int(number), _] if number != self._number:
                pass  # of an earlier call
            case ["began", int(), _]:
                self._began = True
            case ["log" | "progress" as kind, int(), content]:
                self._pass_on(kind, content)
            case [str(kind), int(), content]:
                if not self._answer.done():
                    self._answer.set_result(content if kind == "answer" else kind)
            case _:
                self._lost()

    def _pass_on(self, kind: str, content: Any) -> None:
        fits = {"log": 2, "progress": 3}
        if self._tell is None or self._told >= _MOST_TOLD:
            return
        if isinstance(content, list) and len(content) == fits[kind]:
            self._told += 1
            with suppress(Exception):  # a failing callback must not end the call
                self._tell(kind, content)

    def _lost(self) -> None:
        """Handle the end of the messages, or an invalid one."""
        self.fit = False
        if not self._answer.done():
            self._answer.set_result(None)

    # --- the end ----------------------------------------------------------------------------------

    def end(self) -> None:
        """Kill the process and its descendants."""
        self.fit = False
        self._kill(running=not self._exited.done())

    @property
    def ended(self) -> bool:
        """True if the process is known to have ended."""
        return self._exited.done()

    async def close(self) -> None:
        """Close the pipe, wait a moment for the process to end, and kill it if it does not."""
        if self._link.jobs is not None:
            self._link.jobs.close()
        if self.fit:
            await asyncio.wait({self._exited}, timeout=0.5)
        self.end()
        await asyncio.wait({self._exited}, timeout=5.0)
        await self._link.close()

    async def _how(self) -> str:
        """Return how the process ended; its pipe closes a little before it ends."""
        await asyncio.wait({self._exited}, timeout=0.5)
        if self._exited.done():
            return self._exited.result()
        self.end()
        await asyncio.wait({self._exited}, timeout=5.0)
        return "it closed its connection to the runtime, or wrote into it"

    def _trace(self, how: str) -> str:
        return f"{how}\n{self._lines.tail()}".strip()
