"""The way to an upstream with a URL: the library's streamable HTTP, over a client of our own.

The library would let one broken request bring down all others of its connection, and would not tell
a request that was never sent from one whose answer was lost. So nothing is raised into it that it
does not catch: what goes wrong is written into the request's record (`exchange`), and the library
is handed an answer that says no more than "failed". Answers are bounded here, too.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
from mcp.client.streamable_http import streamable_http_client
from pydantic_core import from_json

from counterseal.upstream.exchange import EXCHANGE, Exchange
from counterseal.upstream.settings import Settings

__all__ = ["Web"]

_CONNECT: Final = 10.0
"""Seconds to reach the server, while it is still certain that nothing was sent."""
_LAST_BYTES: Final = 1.0
"""Seconds in which a server has to end a stream of events after its result."""
_ASIDE: Final = 5.0
"""Seconds for what is no request: while it is sent, nothing else is."""
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
_log = logging.getLogger(__name__)
_EVENTS, _JSON = "text/event-stream", "application/json"


class Web:
    """Requests to one upstream."""

    def __init__(
        self, settings: Settings, headers: Mapping[str, str], unreachable: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._headers = headers
        self._unreachable = unreachable
        self._transport = _Recording(settings, self._missed)
        self._why = ""

    @property
    def refused(self) -> bool:
        """Whether the server does not take our credentials."""
        return self._transport.status == 401

    @property
    def trouble(self) -> str:
        """Why it can't be reached, or what it answered last, when that was no success."""
        status = self._transport.status
        return self._why or (f"it answered with HTTP status {status}" if status >= 300 else "")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        """Streams of messages. Nothing is sent before the first of them."""
        wait = min(self._settings.connect_timeout, _CONNECT)
        async with (
            httpx2.AsyncClient(
                headers={**self._headers, "accept-encoding": "identity"},
                # A call may take as long as its caller waits, and a stream of events for ever.
                timeout=httpx2.Timeout(None, connect=wait, pool=wait),
                transport=self._transport,
                trust_env=False,
            ) as client,
            streamable_http_client(
                self._settings.url,
                http_client=client,
                max_sse_event_size=self._settings.hard_limit,
            ) as streams,
        ):
            yield streams

    def _missed(self, why: str, *, unreachable: bool) -> None:
        self._why = why
        if unreachable:
            self._unreachable(why)


class _Recording(httpx2.AsyncBaseTransport):
    """Sends requests, and writes down what became of those that somebody waits for."""

    def __init__(self, settings: Settings, missed: Callable[..., None]) -> None:
        self._inner = httpx2.AsyncHTTPTransport(
            trust_env=False,
            limits=_LIMITS,
            socket_options=[(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)],
        )
        self._most = settings.max_bytes
        self._missed = missed
        self.status = 0
        """Of the last answer to something that was sent."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = EXCHANGE.get()
        asked = _is_request(request.content)
        if exchange is None or not asked:
            # Of the library's own making, or what follows a request: that it was given up on.
            return await self._aside(request, exchange, asked=asked)
        exchange.sent = True
        try:
            response = await self._inner.handle_async_request(request)
        except _NOT_SENT as error:
            exchange.sent = False
            exchange.trouble = _why(error)
            self._missed(exchange.trouble, unreachable=True)
            return httpx2.Response(503, json=_FAILED)
        except httpx2.TransportError as error:
            exchange.lost = True
            exchange.trouble = _why(error)
            return httpx2.Response(503, json=_FAILED)
        exchange.status = response.status_code
        exchange.retry_after = response.headers.get("retry-after")
        self.status = response.status_code
        kind = _kind(response)
        exchange.in_json = kind == _JSON
        if response.status_code == 202 or (response.is_success and kind not in (_EVENTS, _JSON)):
            exchange.lost = True
            exchange.trouble = f"it answered {response.status_code} {kind or 'without content'}"
        return await self._bounded(response, exchange)

    async def _aside(
        self, request: httpx2.Request, exchange: Exchange | None, *, asked: bool
    ) -> httpx2.Response:
        timeout = request.extensions.get("timeout")
        if request.method != "GET" and not asked and isinstance(timeout, dict):
            request.extensions["timeout"] = dict.fromkeys(timeout, _ASIDE)
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            self._missed(_why(error), unreachable=isinstance(error, _NOT_SENT))
            return httpx2.Response(503, json=_FAILED)
        if request.method != "GET":
            self.status = response.status_code
        return await self._bounded(response, exchange)

    async def _bounded(
        self, response: httpx2.Response, exchange: Exchange | None
    ) -> httpx2.Response:
        stream: Any = response.stream
        if response.headers.get("content-encoding", "identity") != "identity":
            # It was not asked for, and would have to be bounded anew where it is undone.
            await stream.aclose()
            if exchange is not None:
                exchange.lost = True
                exchange.trouble = "it answered in a coding that was not asked for"
            return httpx2.Response(503, json=_FAILED)
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_Bounded(stream, _kind(response), exchange, self._most),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """The body of a response: as a whole, or each of its events, at most `most` bytes.

    How it ended is written into the exchange. It raises only errors that the SDK attributes to
    this one request.
    """

    def __init__(
        self, stream: httpx2.AsyncByteStream, kind: str, exchange: Exchange | None, most: int
    ) -> None:
        self._stream = stream
        self._chunks = aiter(stream)
        self._events = kind == _EVENTS
        self._exchange = exchange
        self._most = most
        self._over = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for chunk in self._chunks:
                size += len(chunk)
                if size > self._most:
                    self._refuse()
                if self._events and (b"\n\n" in chunk or b"\r\n\r\n" in chunk):
                    size = 0
                yield chunk
        except httpx2.SSEError:
            raise
        except httpx2.TransportError as error:
            self._ended(_why(error))
            if not self._events:
                raise httpx2.StreamError("the answer broke off") from None
        if self._events:
            self._ended("the answer ended before it was there")

    def _ended(self, why: str) -> None:
        if self._exchange is not None:
            self._exchange.lost = True
            self._exchange.trouble = why

    def _refuse(self) -> None:
        self._over = True
        if self._exchange is not None:
            self._exchange.too_large = True
        kind = httpx2.SSEError if self._events else httpx2.StreamError
        raise kind("more than is read")

    async def aclose(self) -> None:
        """Close the body, after its last bytes were read if they come soon.

        The SDK closes a stream of events as soon as it has the result. Without the end of the
        stream, the connection could not be used for another request.
        """
        try:
            if self._events and not self._over:
                async with asyncio.timeout(_LAST_BYTES):
                    await self._drain()
        except (TimeoutError, httpx2.HTTPError, httpx2.StreamError):
            _log.debug("a stream of events was not ended in time", exc_info=True)
        finally:
            await self._stream.aclose()

    async def _drain(self) -> None:
        left = self._most
        async for chunk in self._chunks:
            left -= len(chunk)
            if left < 0:
                return


def _is_request(body: bytes) -> bool:
    """Return True for a JSON-RPC request, False for a notification, an answer or no body."""
    try:
        message = from_json(body)
    except ValueError:
        return False
    return isinstance(message, dict) and "method" in message and "id" in message


def _kind(response: httpx2.Response) -> str:
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower()


def _why(error: Exception) -> str:
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return f"nothing answers there ({str(error) or 'not in time'})"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
