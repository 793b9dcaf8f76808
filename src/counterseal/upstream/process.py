"""The way to an upstream that is a program: started here, spoken to over its input and output.

Lines are bounded, so that one without end does not eat the memory, and the program's whole tree is
ended with it. It inherits nothing but a few variables that are safe for anybody. What it writes to
its standard error goes to the log of the upstream.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, Self, cast

import anyio
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from counterseal.errors import NotSentError
from counterseal.masking import Mask
from counterseal.upstream.exchange import EXCHANGE, TOO_LARGE
from counterseal.upstream.settings import Settings

__all__ = ["Program"]

_CHUNK: Final = 64 * 1024
_GREETINGS: Final = 100
"""Lines that are no message, which a program may write before it has answered anything."""
_LONGEST_NOTE: Final = 2_000
_LEAVE, _TERMINATE, _KILLED = 2.0, 1.0, 1.0
"""Seconds to end by itself, after a request to end, and after the kill."""
_LAST_WORDS: Final = 0.2
"""Seconds in which the output of a program that has ended must have come through."""


class _Watched(SubprocessStreamProtocol):
    """Tells that the program has ended, even while a child of its holds the pipes open."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=_CHUNK * 4, loop=loop)
        self.exited = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._pipes = cast("asyncio.SubprocessTransport", transport)

    def process_exited(self) -> None:
        output = self._pipes.get_pipe_transport(1)
        if output is not None:
            asyncio.get_running_loop().call_later(_LAST_WORDS, output.close)
        super().process_exited()
        self.exited.set()


class Program:
    """One run of an upstream's command."""

    def __init__(self, settings: Settings, env: Mapping[str, str], mask: Mask) -> None:
        self._settings = settings
        self._env = env
        self._mask = mask
        self._log = logging.getLogger(f"counterseal.upstream.{settings.name}")
        self._last_note = ""
        self.trouble = ""
        """Why it was given up on, where that was our decision."""
        self._greetings = _GREETINGS

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[_Reading, _Writing]]:
        """Start it; its output and its input as streams of messages. NotSentError: it can't be."""
        loop = asyncio.get_running_loop()
        try:
            transport, watched = await loop.subprocess_exec(
                lambda: _Watched(loop),
                *self._settings.command,
                env={**get_default_environment(), **self._env},
                cwd=self._settings.cwd,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise NotSentError(self._not_started(error)) from None
        process = asyncio.subprocess.Process(transport, watched, loop)
        notes = loop.create_task(self._note(process.stderr))
        reading = _Reading(self, process)
        try:
            yield reading, _Writing(process)
        finally:
            by_itself = reading.ended and not self.trouble
            await _end(process, watched.exited, at_once=bool(self.trouble))
            await asyncio.wait([notes], timeout=_LAST_WORDS)
            transport.close()
            notes.cancel()
            await asyncio.gather(notes, return_exceptions=True)
            if by_itself:
                self.trouble = self._ending(process.returncode)

    def _not_started(self, error: OSError) -> str:
        command, cwd = self._settings.command[0], self._settings.cwd
        if cwd is not None and not os.path.isdir(cwd):  # noqa: PTH112 - it may be text or a Path
            return f"it can't be started in {cwd}: there is no such folder"
        if isinstance(error, FileNotFoundError):
            return f"{command}: command not found"
        return f"{command} can't be started: {error.strerror}"

    def _ending(self, code: int | None) -> str:
        how = "ended" if code is None else f"ended with code {code}"
        if code is not None and code < 0:
            how = f"was ended by signal {-code}"
        return f"the program {how}" + (f": {self._last_note}" if self._last_note else "")

    async def _note(self, stderr: asyncio.StreamReader | None) -> None:
        """What it writes to its standard error, line by line, into the log."""
        rest = b""
        while stderr is not None and (chunk := await stderr.read(_CHUNK)):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._noted(line)
            if len(rest) > _LONGEST_NOTE:
                self._noted(rest)
                rest = b""
        self._noted(rest)

    def _noted(self, line: bytes) -> None:
        text = self._mask.text(line[:_LONGEST_NOTE].decode(errors="replace"))
        text = "".join(char if char.isprintable() else " " for char in text).strip()
        if text:
            self._last_note = text[:200]
            self._log.info("%s", text)

    def read(self, line: bytes) -> JSONRPCMessage | None:
        """The message that a line is; None for one that is none."""
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            self._noted(line)
            self._greetings -= 1
            if self._greetings < 0:
                self.trouble = (
                    "it wrote to its output what is no message; a server must log to standard error"
                )
            return None
        self._greetings = 0
        if len(line) > self._settings.max_bytes and isinstance(message, JSONRPCResponse):
            error = ErrorData(code=INTERNAL_ERROR, message="too large", data=TOO_LARGE)
            return JSONRPCError(jsonrpc="2.0", id=message.id, error=error)
        return message

    @property
    def hard_limit(self) -> int:
        return self._settings.hard_limit


class _Stream:
    """What the library wants of a stream besides its messages."""

    async def aclose(self) -> None:
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


class _Reading(_Stream):
    """Messages that the program writes. Ends with the program, or when it writes garbage."""

    def __init__(self, program: Program, process: asyncio.subprocess.Process) -> None:
        self._program = program
        self._stdout = cast("asyncio.StreamReader", process.stdout)
        self._buffer = bytearray()
        self._searched = 0
        self.ended = False
        """Whether the program has closed its output."""

    def __aiter__(self) -> Self:
        return self

    async def receive(self) -> SessionMessage | Exception:
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def __anext__(self) -> SessionMessage:
        while not self._program.trouble:
            line = self._line()
            if line is None:
                await self._more()
            elif line.strip():
                message = self._program.read(line)
                if message is not None:
                    return SessionMessage(message)
        raise StopAsyncIteration

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._buffer)
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return line

    async def _more(self) -> None:
        if len(self._buffer) > self._program.hard_limit:
            self._buffer.clear()
            self._program.trouble = (
                f"it wrote a line of more than {self._program.hard_limit} bytes to its output"
            )
            return
        # What is there already comes without waiting: a flood of it would leave nobody a turn.
        await asyncio.sleep(0)
        chunk = await self._stdout.read(_CHUNK)
        if not chunk:
            self.ended = True
            raise StopAsyncIteration
        self._buffer += chunk


class _Writing(_Stream):
    """Messages to the program, written by whoever sends them."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._stdin = cast("asyncio.StreamWriter", process.stdin)

    async def send(self, item: SessionMessage, /) -> None:
        data = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        if self._stdin.is_closing() or self._process.returncode is not None:
            raise anyio.BrokenResourceError
        exchange = EXCHANGE.get()
        if exchange is not None:
            exchange.sent = True
        self._stdin.write(data)
        try:
            await self._stdin.drain()
        except ConnectionError:
            raise anyio.BrokenResourceError from None


async def _end(
    process: asyncio.subprocess.Process, exited: asyncio.Event, *, at_once: bool
) -> None:
    """Close its input and let it go; then ask it and all that it started to end; then kill them."""
    with suppress(OSError, RuntimeError):
        cast("asyncio.StreamWriter", process.stdin).close()
    steps: list[tuple[signal.Signals | None, float]] = [
        (None, _LEAVE),
        (signal.SIGTERM, _TERMINATE),
    ]
    try:
        for number, seconds in steps if not at_once else steps[1:]:
            if number is not None:
                _signal(process.pid, number)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await exited.wait()
                    break
    finally:
        # Its children may still be there when it is gone.
        _signal(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(_KILLED):
            await exited.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
