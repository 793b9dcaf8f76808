"""The three ways to reach an upstream: HTTP, a program of its own, a server in this process.

Each transport opens a pair of message streams, on which the SDK's session speaks MCP. It bounds
what is read, says in `trouble` why it failed, and records in the request's `Delivery` whether a
request was sent and whether its answer was lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Self, cast

import anyio
import httpx2
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic_core import from_json

from counterseal.errors import NotSentError
from counterseal.masking import Mask
from counterseal.upstream.settings import UpstreamSettings
from counterseal.upstream.verdicts import DELIVERY, TOO_LARGE, Delivery, error_line

_log = logging.getLogger(__name__)

# --- HTTP -----------------------------------------------------------------------------------------

_CONNECT: Final = 10.0
"""Seconds to reach the server, while it is certain that nothing was sent."""
_LAST_BYTES: Final = 1.0
"""Seconds in which a server has to end a stream of events after its result."""
_NOTIFY: Final = 5.0
"""Seconds to send a message that is not a request; no other message is sent meanwhile."""
_NOT_SENT: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.UnsupportedProtocol,
    httpx2.ProxyError,
)
_LIMITS: Final = httpx2.Limits(
    max_connections=256,
    max_keepalive_connections=128,
    keepalive_expiry=4.0,  # many servers close an idle connection after 5 seconds
)
_FAILED: Final = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "failed"}}
_EVENTS, _JSON = "text/event-stream", "application/json"


class HttpTransport:
    """Streamable HTTP: the SDK's client transport, over pooled connections."""

    def __init__(
        self,
        settings: UpstreamSettings,
        headers: Mapping[str, str],
        unreachable: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._headers = headers
        self._unreachable = unreachable
        self._recording = _RecordingTransport(settings, self._failed)
        self._failure = ""

    @property
    def refused(self) -> bool:
        """True if the server does not accept our credentials."""
        return self._recording.status == 401

    @property
    def trouble(self) -> str:
        """Why the server can't be reached, or its last answer if that was no success."""
        status = self._recording.status
        return self._failure or (f"it answered with HTTP status {status}" if status >= 300 else "")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        """Return streams of messages. Nothing is sent before the first message."""
        seconds = min(self._settings.connect_timeout, _CONNECT)
        async with (
            httpx2.AsyncClient(
                headers={**self._headers, "accept-encoding": "identity"},
                # Calls have deadlines of their own, and a stream of events may never end.
                timeout=httpx2.Timeout(None, connect=seconds, pool=seconds),
                transport=self._recording,
                trust_env=False,
            ) as client,
            streamable_http_client(
                self._settings.url, http_client=client, max_sse_event_size=self._settings.hard_limit
            ) as streams,
        ):
            yield streams

    def _failed(self, reason: str, *, unreachable: bool) -> None:
        self._failure = reason
        if unreachable:
            self._unreachable(reason)


class _RecordingTransport(httpx2.AsyncBaseTransport):
    """Sends HTTP requests, and records what happens to those that carry an MCP request.

    An exception would make the SDK end its whole connection, with all other requests on it. So an
    error is recorded, and the SDK gets an HTTP answer that says no more than "failed".
    """

    def __init__(self, settings: UpstreamSettings, failed: Callable[..., None]) -> None:
        self._inner = httpx2.AsyncHTTPTransport(
            trust_env=False,
            limits=_LIMITS,
            socket_options=[(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)],
        )
        self._max_bytes = settings.max_bytes
        self._failed = failed
        self.status = 0
        """The status of the last answer."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        delivery = DELIVERY.get()
        try:
            message = from_json(request.content)
        except ValueError:
            message = None
        # Not a notification, an answer or no body.
        is_request = isinstance(message, dict) and "method" in message and "id" in message
        if delivery is None or not is_request:
            return await self._send_other(request, delivery, is_request=is_request)
        if why := delivery.too_late():  # asked again: the request may have waited for its turn
            delivery.reason = why
            return httpx2.Response(503, json=_FAILED)
        delivery.sent = True
        try:
            response = await self._inner.handle_async_request(request)
        except _NOT_SENT as error:
            delivery.sent = False
            delivery.reason = _reason(error)
            self._failed(delivery.reason, unreachable=True)
            return httpx2.Response(503, json=_FAILED)
        except httpx2.TransportError as error:
            delivery.lose(_reason(error))
            return httpx2.Response(503, json=_FAILED)
        self.status = delivery.status = response.status_code
        delivery.retry_after = response.headers.get("retry-after")
        kind = _content_type(response)
        delivery.json = kind == _JSON
        if response.status_code == 202 or (response.is_success and kind not in (_EVENTS, _JSON)):
            delivery.lose(f"it answered {response.status_code} {kind or 'without content'}")
        return await self._bounded(response, delivery)

    async def _send_other(
        self, request: httpx2.Request, delivery: Delivery | None, *, is_request: bool
    ) -> httpx2.Response:
        """Send a request of the SDK's own (a handshake, a stream), a notification or an answer."""
        timeout = request.extensions.get("timeout")
        if request.method != "GET" and not is_request and isinstance(timeout, dict):
            request.extensions["timeout"] = dict.fromkeys(timeout, _NOTIFY)
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            self._failed(_reason(error), unreachable=isinstance(error, _NOT_SENT))
            return httpx2.Response(503, json=_FAILED)
        if request.method != "GET":
            self.status = response.status_code
        return await self._bounded(response, delivery)

    async def _bounded(
        self, response: httpx2.Response, delivery: Delivery | None
    ) -> httpx2.Response:
        stream: Any = response.stream
        if response.headers.get("content-encoding", "identity") != "identity":
            # We did not ask for it, and the decompressed size would not be bounded here.
            await stream.aclose()
            if delivery is not None:
                delivery.lose("it answered with a content encoding that was not asked for")
            return httpx2.Response(503, json=_FAILED)
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_BoundedBody(stream, _content_type(response), delivery, self._max_bytes),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedBody(httpx2.AsyncByteStream):
    """The body of a response: as a whole, or each of its events, at most `max_bytes`.

    How it ended is recorded. It raises only errors that the SDK attributes to this one request.
    """

    def __init__(
        self, stream: httpx2.AsyncByteStream, kind: str, delivery: Delivery | None, max_bytes: int
    ) -> None:
        self._stream = stream
        self._chunks = aiter(stream)
        self._is_events = kind == _EVENTS
        self._delivery = delivery
        self._max_bytes = max_bytes
        self._refused = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for chunk in self._chunks:
                size += len(chunk)
                if size > self._max_bytes:
                    self._refused = True
                    if self._delivery is not None:
                        self._delivery.too_large = True
                    kind = httpx2.SSEError if self._is_events else httpx2.StreamError
                    raise kind("the answer is too long")
                if self._is_events and (b"\n\n" in chunk or b"\r\n\r\n" in chunk):
                    size = 0
                yield chunk
        except httpx2.SSEError:
            raise
        except httpx2.TransportError as error:
            self._lose(_reason(error))
            if not self._is_events:
                raise httpx2.StreamError("the answer broke off") from None
        if self._is_events:
            self._lose("the stream of events ended before the result")

    def _lose(self, reason: str) -> None:
        if self._delivery is not None:
            self._delivery.lose(reason)

    async def aclose(self) -> None:
        """Close the body, after reading its last bytes if they come soon.

        The SDK closes a stream of events as soon as it has the result. Without the end of the
        stream, the connection could not be used for another request.
        """
        left = self._max_bytes
        try:
            async with asyncio.timeout(_LAST_BYTES):
                while self._is_events and not self._refused and left > 0:
                    left -= len(await anext(self._chunks))
        except (StopAsyncIteration, TimeoutError, httpx2.HTTPError, httpx2.StreamError):
            _log.debug("a stream of events has ended, or did not end in time", exc_info=True)
        finally:
            await self._stream.aclose()


def _content_type(response: httpx2.Response) -> str:
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower()


def _reason(error: Exception) -> str:
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return f"no connection ({str(error) or 'timed out'})"
    return error_line(error)


# --- a program ------------------------------------------------------------------------------------

_CHUNK: Final = 64 * 1024
_GREETINGS: Final = 100
"""Lines that are no messages, which a program may write before its first answer."""
_LONGEST_NOTE: Final = 2_000
_LEAVE, _TERMINATE, _KILLED = 2.0, 1.0, 1.0
"""Seconds to end after its input is closed, after SIGTERM, and after SIGKILL."""
_LAST_OUTPUT: Final = 0.2
"""Seconds in which the output of a program that has ended must have arrived."""


class ProcessTransport:
    """One run of an upstream's command, over its standard input and output.

    Lines are bounded, and the program's whole process group is ended with it. It inherits only a
    few harmless environment variables. Its standard error goes to the log of the upstream.
    """

    def __init__(self, settings: UpstreamSettings, env: Mapping[str, str], mask: Mask) -> None:
        self._settings = settings
        self.hard_limit = settings.hard_limit
        self._env = env
        self._mask = mask
        self._log = logging.getLogger(f"counterseal.upstream.{settings.name}")
        self._last_note = ""
        self.trouble = ""
        """Why the connection was closed by us, or how the program ended."""
        self._greetings = _GREETINGS

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[_MessageReader, _MessageWriter]]:
        """Start the program; return its output and input as message streams.

        Raises NotSentError if it can't be started.
        """
        loop = asyncio.get_running_loop()
        try:
            transport, protocol = await loop.subprocess_exec(
                lambda: _ProcessProtocol(loop, self._settings.hard_limit),
                *self._settings.command,
                env={**get_default_environment(), **self._env},
                cwd=self._settings.cwd,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            command, cwd = self._settings.command[0], self._settings.cwd
            why = f"{command} can't be started: {error.strerror}"
            if isinstance(error, FileNotFoundError):
                why = f"{command}: command not found"
            if cwd is not None and not os.path.isdir(cwd):  # noqa: ASYNC240, PTH112 - text or a Path
                why = f"it can't be started in {cwd}: no such folder"
            raise NotSentError(why) from None
        process = asyncio.subprocess.Process(transport, protocol, loop)
        notes = loop.create_task(self._log_stderr(process.stderr))
        reader = _MessageReader(self, process)
        try:
            yield reader, _MessageWriter(process)
        finally:
            ended_itself = reader.ended and not self.trouble
            await _end_process(process, protocol.exited, at_once=bool(self.trouble))
            await asyncio.wait([notes], timeout=_LAST_OUTPUT)
            transport.close()
            notes.cancel()
            await asyncio.gather(notes, return_exceptions=True)
            if ended_itself:
                code = process.returncode
                how = "ended" if code is None else f"ended with code {code}"
                if code is not None and code < 0:
                    how = f"was ended by signal {-code}"
                last = f": {self._last_note}" if self._last_note else ""
                self.trouble = f"the program {how}{last}"

    async def _log_stderr(self, stderr: asyncio.StreamReader | None) -> None:
        rest = b""
        while stderr is not None and (chunk := await stderr.read(_CHUNK)):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._note(line)
            if len(rest) > _LONGEST_NOTE:
                self._note(rest)
                rest = b""
        self._note(rest)

    def _note(self, line: bytes) -> None:
        text = self._mask.text(line[:_LONGEST_NOTE].decode(errors="replace"))
        text = "".join(char if char.isprintable() else " " for char in text).strip()
        if text:
            self._last_note = text[:200]
            self._log.info("%s", text)

    def parse(self, line: bytes) -> JSONRPCMessage | None:
        """Return the message in a line, or None. Too many other lines end the connection."""
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            self._note(line)
            self._greetings -= 1
            if self._greetings < 0:
                self.trouble = (
                    "it wrote lines that are no messages to its standard output; a server must "
                    "log to standard error"
                )
            return None
        self._greetings = 0
        if len(line) > self._settings.max_bytes and isinstance(message, JSONRPCResponse):
            error = ErrorData(code=INTERNAL_ERROR, message="too large", data=TOO_LARGE)
            return JSONRPCError(jsonrpc="2.0", id=message.id, error=error)
        return message


class _ProcessProtocol(SubprocessStreamProtocol):
    """Notices the end of a program even while one of its children holds the pipes open."""

    def __init__(self, loop: asyncio.AbstractEventLoop, longest_line: int) -> None:
        super().__init__(limit=longest_line, loop=loop)
        self.exited = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._pipes = cast("asyncio.SubprocessTransport", transport)

    def process_exited(self) -> None:
        output = self._pipes.get_pipe_transport(1)
        if output is not None:
            asyncio.get_running_loop().call_later(_LAST_OUTPUT, output.close)
        super().process_exited()
        self.exited.set()


class _MessageStream:
    """What the SDK expects of a message stream beside its messages."""

    async def aclose(self) -> None:
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


class _MessageReader(_MessageStream):
    """The messages that a program writes, until it ends or writes something else."""

    def __init__(self, program: ProcessTransport, process: asyncio.subprocess.Process) -> None:
        self._program = program
        self._stdout = cast("asyncio.StreamReader", process.stdout)
        self.ended = False
        """True once the program has closed its output."""

    def __aiter__(self) -> Self:
        return self

    async def receive(self) -> SessionMessage | Exception:
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def __anext__(self) -> SessionMessage:
        while not self._program.trouble:
            # A read of bytes that are there already does not suspend: a flood would starve the
            # loop.
            await asyncio.sleep(0)
            try:
                line = await self._stdout.readline()
            except ValueError:
                limit = self._program.hard_limit
                self._program.trouble = f"it wrote a line of more than {limit} bytes to its output"
                break
            if not line.endswith(b"\n"):
                self.ended = True
                break
            message = self._program.parse(line) if line.strip() else None
            if message is not None:
                return SessionMessage(message)
        raise StopAsyncIteration


class _MessageWriter(_MessageStream):
    """Messages to the program, written in the task of their sender."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._stdin = cast("asyncio.StreamWriter", process.stdin)

    async def send(self, item: SessionMessage, /) -> None:
        data = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        if self._stdin.is_closing() or self._process.returncode is not None:
            raise anyio.BrokenResourceError
        _mark_sent()
        self._stdin.write(data)
        try:
            await self._stdin.drain()
        except ConnectionError:
            raise anyio.BrokenResourceError from None


def _mark_sent() -> None:
    delivery = DELIVERY.get()
    if delivery is not None:
        delivery.sent = True


async def _end_process(
    process: asyncio.subprocess.Process, exited: asyncio.Event, *, at_once: bool
) -> None:
    """Close the program's input, then send SIGTERM and at last SIGKILL to its process group."""
    with suppress(OSError, RuntimeError):
        cast("asyncio.StreamWriter", process.stdin).close()
    try:
        if not at_once:
            await _wait_for(exited, _LEAVE)
        if not exited.is_set():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGTERM)
            await _wait_for(exited, _TERMINATE)
    finally:
        with suppress(ProcessLookupError, PermissionError):  # its children may outlive it
            os.killpg(process.pid, signal.SIGKILL)
    await _wait_for(exited, _KILLED)


async def _wait_for(exited: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await exited.wait()


# --- a server in this process ---------------------------------------------------------------------


class InProcessTransport:
    """One run of an SDK server in this process, over streams in memory."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        self.trouble = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[Any, _MemoryWriter]]:
        """Run the server; return streams of messages from and to it."""
        server = self._settings.python
        if isinstance(server, MCPServer):
            server = _low_level(server)
        if not isinstance(server, Server):
            raise ValueError(f"{server!r} is not a server of the MCP SDK")
        async with (
            create_client_server_memory_streams() as ((read, write), (server_read, server_write)),
            anyio.create_task_group() as group,
        ):
            done = anyio.Event()

            async def serve() -> None:
                options = server.create_initialization_options()
                try:
                    await server.run(server_read, server_write, options)
                except Exception as error:  # noqa: BLE001 - a third party's server may raise anything
                    self.trouble = f"the server ended with {type(error).__name__}"
                finally:
                    done.set()
                    await server_write.aclose()

            group.start_soon(serve)
            try:
                yield read, _MemoryWriter(write)
            finally:
                await write.aclose()
                with anyio.move_on_after(_LEAVE):
                    await done.wait()
                group.cancel_scope.cancel()


class _MemoryWriter(_MessageStream):
    """Messages to a server in this process."""

    def __init__(self, write: Any) -> None:
        self._write = write

    async def send(self, item: SessionMessage, /) -> None:
        _mark_sent()
        await self._write.send(item)

    async def aclose(self) -> None:
        await self._write.aclose()


def _low_level(server: MCPServer) -> Server[Any]:
    """Return the low-level server of a high-level one, which can be run on any streams.

    It is public as the application of the session manager, which exists once HTTP is set up.
    """
    try:
        return server.session_manager.app
    except RuntimeError:
        server.streamable_http_app()
        return server.session_manager.app
