"""HTTP clients for tools (`ctx.http`) that connect only where a contract's egress allows it.

Four checks stand between a tool and the network. Every request is checked, so every hop of a
redirect is (`_check_request`). Every connection goes to an address that was checked: a name is
resolved once, all of its addresses are checked, and one of those is connected to, so that a second
lookup can't give another answer (`Guard`). Right before the first byte of a request, the call must
still be this worker's, and in time (`_Stream`). Every response body is bounded, before and after
decompression (`Body`).

Proxies named by the environment are not used: behind a proxy, the destination can't be checked.

Importing this module loads httpx, which is slow. Import it where a client is made, not at the top
of a module that `counterseal --help` loads.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import Any, Final, NamedTuple, cast

import httpcore
import httpx
from anyio import to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from counterseal.contract.egress import Egress, literal, split_port
from counterseal.errors import EgressError, ResponseTooLargeError, TooLateError

MAX_BYTES: Final = 16 * 1024 * 1024
"""The largest response body, before and after decompression."""
ACCEPTED: Final = "gzip, deflate"
_CODINGS: Final = ("gzip", "x-gzip", "deflate")
_PIECE: Final = 65_536
_PORTS: Final = {"http": 80, "https": 443}
_LIMITS: Final[dict[str, Any]] = {
    "max_connections": 100,
    "max_keepalive_connections": 20,
    "keepalive_expiry": 5.0,
}

# --- response bodies ------------------------------------------------------------------------------


class Body:
    """The body of one response: fed as it arrives, decoded, and cut off at a limit.

    httpx decompresses a whole chunk at once, however large the result; this decodes in pieces.
    """

    def __init__(self, headers: httpx.Headers, limit: int) -> None:
        codings = headers.get("Content-Encoding", "").lower().split(",")
        self.coding = ", ".join(filter(None, (coding.strip() for coding in codings)))
        """The content coding; empty for a body that is sent as it is."""
        if self.coding == "identity":
            self.coding = ""
        self._limit = limit
        self._raw = 0
        self._decoded = 0
        self._stream: Any = None  # zlib does not export the type
        self._pending = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        self._raw = self._bounded(self._raw + len(chunk))
        if not self.coding:
            yield chunk
            return
        if self.coding not in _CODINGS:
            raise httpx.DecodingError(
                f"the response has the content coding {self.coding}; expected {ACCEPTED}"
            )
        try:
            yield from self._decompressed(self._pending + chunk)
        except zlib.error as error:
            raise httpx.DecodingError(
                f"the response is not valid {self.coding}: {error}"
            ) from error

    def finish(self) -> None:
        """Raise DecodingError if the compressed stream is incomplete."""
        if self._stream is not None or self._pending:
            raise httpx.DecodingError(
                f"the response ends in the middle of its {self.coding} stream"
            )

    def _decompressed(self, data: bytes) -> Iterator[bytes]:
        more = True
        while data or more:
            if self._stream is None:
                # The first two bytes tell the format. After a stream, only another one may follow.
                self._pending = data if len(data) < 2 else b""
                if len(data) < 2:
                    return
                self._stream = zlib.decompressobj(self._window(data))
            piece = self._stream.decompress(data, _PIECE)
            self._decoded = self._bounded(self._decoded + len(piece))
            if piece:
                yield piece
            data, more = self._stream.unconsumed_tail, len(piece) == _PIECE
            if self._stream.eof:
                data, more = self._stream.unused_data, False
                self._stream = None

    def _window(self, start: bytes) -> int:
        if self.coding != "deflate":
            return zlib.MAX_WBITS | 16
        # "deflate" means zlib's format, but some servers send the raw stream inside it.
        wrapped = start[0] & 0x0F == 8 and int.from_bytes(start[:2], "big") % 31 == 0
        return zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS

    def _bounded(self, size: int) -> int:
        if size > self._limit:
            raise ResponseTooLargeError(f"the response is larger than {self._limit} bytes")
        return size


# --- connections ----------------------------------------------------------------------------------


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return every address of a name, as the operating system resolves it."""
    lookup = asyncio.get_running_loop().getaddrinfo
    return [str(address[0]) for *_, address in await lookup(host, port, type=socket.SOCK_STREAM)]


class Network(NamedTuple):
    """How names are resolved and connections opened. The default is the operating system's."""

    resolve: Callable[[str, int], Awaitable[Sequence[str]]] = resolve
    connect: httpcore.AsyncNetworkBackend = httpcore.AnyIOBackend()
    """Gets a checked address in place of the name. TLS still verifies the name."""


class Guard(httpcore.AsyncNetworkBackend):
    """Opens connections only to addresses that the egress rules allow, and no unix sockets."""

    def __init__(self, egress: Egress, network: Network) -> None:
        self._egress = egress
        self._network = network

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        *others, last = await self._addresses(host, port, timeout)
        share = timeout and timeout / (len(others) + 1)
        connect = self._network.connect.connect_tcp
        for address in others:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return _Stream(await connect(address, port, share, local_address, socket_options))
        return _Stream(await connect(last, port, share, local_address, socket_options))

    async def _addresses(self, host: str, port: int, seconds: float | None) -> Sequence[str]:
        """Return the addresses of a host. One forbidden address refuses the whole name."""
        spelled_out = literal(host)
        try:
            async with asyncio.timeout(seconds):
                addresses = (
                    await self._network.resolve(host, port)
                    if spelled_out is None
                    else [str(spelled_out)]
                )
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"{host} was not resolved in time") from error
        except OSError as error:
            raise httpcore.ConnectError(f"{host} can't be resolved: {error}") from error
        for address in addresses:
            self._egress.check_address(host, port, address)
        if not addresses:
            raise httpcore.ConnectError(f"{host} has no address")
        return tuple(dict.fromkeys(addresses))


TooLate = Callable[[], str]
"""Returns why a request may not be sent any more; empty if it may."""
_unsent: ContextVar[list[TooLate]] = ContextVar("unsent")
"""Asked right before the first byte of the request that is sent in this context.

A process may have been suspended since its call was checked, while another one took over.
"""


class _Stream(httpcore.AsyncNetworkStream):
    """A connection that checks a request before its first byte."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self.read = stream.read  # type: ignore[method-assign]
        self.aclose = stream.aclose  # type: ignore[method-assign]
        self.get_extra_info = stream.get_extra_info  # type: ignore[method-assign]

    async def write(
        self,
        buffer: bytes,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
    ) -> None:
        unsent = _unsent.get([])
        if unsent:
            if why := unsent[0]():
                raise TooLateError(f"{why}, so the request was not sent")
            unsent.clear()
        await self._stream.write(buffer, timeout)

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._stream.start_tls(ssl_context, server_hostname, timeout))


class _Pools:
    """Keeps connections between calls, one pool per egress, in the order of their last use."""

    def __init__(self, make: Callable[[Egress], httpcore.AsyncConnectionPool], size: int) -> None:
        self._make = make
        self._size = size
        self._pools: dict[Egress, httpcore.AsyncConnectionPool] = {}
        self._users: Counter[Egress] = Counter()

    def acquire(self, egress: Egress) -> httpcore.AsyncConnectionPool:
        pool = self._pools.pop(egress) if egress in self._pools else self._make(egress)
        self._pools[egress] = pool
        self._users[egress] += 1
        return pool

    async def release(self, egress: Egress) -> None:
        """Close the unused pools beyond the size."""
        self._users[egress] -= 1
        self._users += Counter()  # removes counts of zero
        idle = [other for other in self._pools if other not in self._users]
        surplus = idle[: max(0, len(self._pools) - self._size)]
        for pool in [self._pools.pop(other) for other in surplus]:
            await pool.aclose()

    async def aclose(self) -> None:
        while self._pools:
            await self._pools.popitem()[1].aclose()


# --- requests -------------------------------------------------------------------------------------


class GuardedTransport(httpx.AsyncBaseTransport):
    """Sends one call's requests over guarded connections, and bounds the responses."""

    def __init__(self, pools: _Pools, egress: Egress, too_late: TooLate, max_bytes: int) -> None:
        self._pools = pools
        self._egress = egress
        self._too_late = too_late
        self._max_bytes = max_bytes
        self._pool: httpcore.AsyncConnectionPool | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        _check_request(self._egress, request)
        if self._pool is None:
            self._pool = self._pools.acquire(self._egress)
        token = _unsent.set([self._too_late])
        try:
            with _httpx_errors():
                response = await self._pool.handle_async_request(_core_request(request))
        finally:
            _unsent.reset(token)
        headers = httpx.Headers(response.headers)
        body = Body(headers, self._max_bytes)
        if body.coding and request.method != "HEAD":
            # They describe the encoded body, and the stream yields the decoded one.
            headers.pop("Content-Encoding", None)
            headers.pop("Content-Length", None)
        return httpx.Response(
            response.status,
            headers=headers,
            stream=_BodyStream(response, body),
            extensions={k: v for k, v in response.extensions.items() if k != "network_stream"},
        )

    async def aclose(self) -> None:
        if self._pool is not None:
            self._pool = None
            await self._pools.release(self._egress)


def _check_request(egress: Egress, request: httpx.Request) -> None:
    scheme, host = request.url.scheme, request.url.raw_host.decode("ascii")
    default = _PORTS.get(scheme, 0)
    egress.check_url(scheme, host, request.url.port or default)
    named = request.headers.get("Host", "")
    if named != request.url.netloc.decode("ascii"):
        # One server may answer for many names, and this header chooses among them.
        try:
            host, port = split_port(named)
        except ValueError as error:
            raise EgressError(f"Host: {named!r}: {error}") from None
        egress.check_url(scheme, host, port or default)
    # Calls share connections, so each must have been verified for the name in its URL.
    request.extensions.pop("sni_hostname", None)
    if request.headers.get("Accept-Encoding") != "identity":
        request.headers["Accept-Encoding"] = ACCEPTED


def _core_request(request: httpx.Request) -> httpcore.Request:
    stream = request.stream
    return httpcore.Request(
        method=request.method,
        url=httpcore.URL(
            scheme=request.url.raw_scheme,
            host=request.url.raw_host,
            port=request.url.port,
            target=request.url.raw_path,
        ),
        headers=request.headers.raw,
        content=stream if isinstance(stream, httpx.AsyncByteStream) else _read_apart(stream),
        extensions=request.extensions,
    )


@contextmanager
def _httpx_errors() -> Iterator[None]:
    """Raise httpcore's exceptions as httpx's exceptions of the same name."""
    try:
        yield
    except Exception as error:
        names = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "httpcore")
        known = (getattr(httpx, name, None) for name in names)
        kind = next((kind for kind in known if kind is not None), None)
        if kind is None:
            raise
        raise kind(str(error)) from error


async def _read_apart(stream: httpx.SyncByteStream) -> AsyncIterator[bytes]:
    """Yield the chunks of a body that a sync tool makes, which may take its time."""
    chunks = iter(stream)
    while (chunk := await to_thread.run_sync(next, chunks, None)) is not None:
        yield chunk


class _BodyStream(httpx.AsyncByteStream):
    def __init__(self, response: httpcore.Response, body: Body) -> None:
        self._response = response
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _httpx_errors():
            async for chunk in self._response.aiter_stream():
                for piece in self._body.feed(chunk):
                    yield piece
        self._body.finish()

    async def aclose(self) -> None:
        with _httpx_errors():
            await self._response.aclose()


# --- requests from threads ------------------------------------------------------------------------


class _SyncTransport(httpx.BaseTransport):
    """A transport for a thread, whose requests run on the event loop of a portal.

    A task is cancelled at its deadline. A thread can't be, so each of its steps ends at the
    deadline of the call, even if a server sends a byte now and then.
    """

    def __init__(self, portal: BlockingPortal, inner: GuardedTransport, seconds: float) -> None:
        self._portal = portal
        self._inner = inner
        self._until = time.monotonic() + seconds

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response: httpx.Response = self.run(self._inner.handle_async_request, request)
        response.stream = _SyncBodyStream(self, cast("httpx.AsyncByteStream", response.stream))
        return response

    def run(self, step: Callable[..., Awaitable[Any]], *args: Any, bounded: bool = True) -> Any:
        async def until_the_deadline() -> Any:
            seconds = self._until - time.monotonic() if bounded else None
            try:
                async with asyncio.timeout(seconds):
                    return await step(*args)
            except TimeoutError as error:
                raise httpx.ReadTimeout("the deadline of the call has passed") from error

        return self._portal.call(until_the_deadline)

    def close(self) -> None:
        self.run(self._inner.aclose, bounded=False)


class _SyncBodyStream(httpx.SyncByteStream):
    def __init__(self, transport: _SyncTransport, stream: httpx.AsyncByteStream) -> None:
        self._run = transport.run
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        chunks = aiter(self._stream)
        while (chunk := self._run(anext, chunks, None)) is not None:
            yield chunk

    def close(self) -> None:
        self._run(self._stream.aclose, bounded=False)


# --- clients --------------------------------------------------------------------------------------


@cache
def _tls(_file: str | None, _folder: str | None) -> ssl.SSLContext:
    """Return the TLS context of this process; the environment may choose whom to trust."""
    return httpx.create_ssl_context()


class Clients:
    """Gives each call its own client, over connections that are kept between calls.

    A runtime has one, for one event loop. Sync clients may be used from any thread: their requests
    run on an event loop of their own. Headers and cookies belong to one call, and closing a client
    closes no connection that another call uses.
    """

    def __init__(
        self,
        network: Network | None = None,
        *,
        max_bytes: int = MAX_BYTES,
        tls: ssl.SSLContext | None = None,
        keep: int = 32,
    ) -> None:
        self._network = network or Network()
        self._max_bytes = max_bytes
        # Made here and not for the first request: it takes tens of milliseconds.
        self._tls = tls or _tls(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        self._pools = _Pools(self._pool, keep)
        self._sync_pools = _Pools(self._pool, keep)
        self._lock = threading.Lock()
        self._portal: BlockingPortal | None = None
        self._stop = ExitStack()

    def client(
        self, egress: Egress, too_late: TooLate = str, *, seconds: float
    ) -> httpx.AsyncClient:
        """Return a client for one call, which closes it at its end."""
        transport = GuardedTransport(self._pools, egress, too_late, self._max_bytes)
        return httpx.AsyncClient(transport=transport, trust_env=False, timeout=seconds)

    def sync_client(
        self, egress: Egress, too_late: TooLate = str, *, seconds: float
    ) -> httpx.Client:
        """Return a client for one call in a thread; its requests end in `seconds`."""
        with self._lock:
            if self._portal is None:
                self._portal = self._stop.enter_context(start_blocking_portal())
        inner = GuardedTransport(self._sync_pools, egress, too_late, self._max_bytes)
        transport = _SyncTransport(self._portal, inner, seconds)
        return httpx.Client(transport=transport, trust_env=False, timeout=seconds)

    async def aclose(self) -> None:
        await self._pools.aclose()
        self.close()

    def close(self) -> None:
        """Close the connections of sync clients, where there is no event loop."""
        with self._lock:
            if self._portal is not None:
                self._portal.call(self._sync_pools.aclose)
                self._portal = None
                self._stop.close()

    def _pool(self, egress: Egress) -> httpcore.AsyncConnectionPool:
        guard = Guard(egress, self._network)
        return httpcore.AsyncConnectionPool(self._tls, network_backend=guard, **_LIMITS)
