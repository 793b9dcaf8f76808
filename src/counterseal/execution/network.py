"""HTTP clients for tools (`ctx.http`) that connect only where a contract's egress allows it.

Four checks stand between a tool and the network. Every request is checked, so every hop of a
redirect is (`_check_request`). Every connection goes to an address that was checked: a name is
resolved once, all of its addresses are checked, and one of those is connected to, so that a second
lookup can't give another answer (`Guard`). Right before the first byte of a request, the call must
still be this worker's, and in time (`first_byte`). Every response body is bounded, before and after
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
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

import httpcore
import httpx

from counterseal.contract.egress import Egress, literal, split_port
from counterseal.errors import EgressError, ResponseTooLargeError, TooLateError

MAX_BYTES: Final = 16 * 1024 * 1024
"""The largest response body, before and after decompression."""
ACCEPTED: Final = "gzip, deflate"
_CODINGS: Final = ("gzip", "x-gzip", "deflate")
_PIECE: Final = 65_536
_PORTS: Final = {"http": 80, "https": 443}
_DEADLINE: Final = "counterseal.deadline"
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


def resolve_sync(host: str, port: int) -> Sequence[str]:
    """Return every address of a name, as the operating system resolves it."""
    records = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in records]


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return every address of a name without blocking the event loop."""
    return await asyncio.get_running_loop().run_in_executor(None, resolve_sync, host, port)


class Network(NamedTuple):
    """How names are resolved and connections opened. The default is the operating system's."""

    resolve: Callable[[str, int], Awaitable[Sequence[str]]] = resolve
    resolve_sync: Callable[[str, int], Sequence[str]] = resolve_sync
    connect: httpcore.AsyncNetworkBackend = httpcore.AnyIOBackend()
    """Gets a checked address in place of the name. TLS still verifies the name."""
    connect_sync: httpcore.NetworkBackend = httpcore.SyncBackend()


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
        addresses = _literal(host) or await self._lookup(host, port, timeout)
        *others, last = _checked(self._egress, host, port, addresses)
        share = timeout and timeout / (len(others) + 1)
        connect = self._network.connect.connect_tcp
        for address in others:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return _Stream(await connect(address, port, share, local_address, socket_options))
        return _Stream(await connect(last, port, share, local_address, socket_options))

    async def _lookup(self, host: str, port: int, seconds: float | None) -> Sequence[str]:
        try:
            async with asyncio.timeout(seconds):
                return await self._network.resolve(host, port)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"{host} was not resolved in time") from error
        except OSError as error:
            raise httpcore.ConnectError(f"{host} can't be resolved: {error}") from error


class SyncGuard(httpcore.NetworkBackend):
    """`Guard` for threads. A name lookup takes as long as the operating system lets it."""

    def __init__(self, egress: Egress, network: Network) -> None:
        self._egress = egress
        self._network = network

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        addresses = _literal(host) or self._lookup(host, port)
        *others, last = _checked(self._egress, host, port, addresses)
        timeout = _remaining(timeout, httpcore.ConnectTimeout)
        share = timeout and timeout / (len(others) + 1)
        connect = self._network.connect_sync.connect_tcp
        for address in others:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return _SyncStream(connect(address, port, share, local_address, socket_options))
        return _SyncStream(connect(last, port, share, local_address, socket_options))

    def _lookup(self, host: str, port: int) -> Sequence[str]:
        try:
            return self._network.resolve_sync(host, port)
        except OSError as error:
            raise httpcore.ConnectError(f"{host} can't be resolved: {error}") from error


def _literal(host: str) -> Sequence[str]:
    """Return the address that a host spells out, in any notation; empty for a name."""
    address = literal(host)
    return () if address is None else (str(address),)


def _checked(egress: Egress, host: str, port: int, addresses: Sequence[str]) -> Sequence[str]:
    """Return the addresses if all are allowed. One forbidden address refuses the whole name."""
    for address in addresses:
        egress.check_address(host, port, address)
    if not addresses:
        raise httpcore.ConnectError(f"{host} has no address")
    return tuple(dict.fromkeys(addresses))


# A task is cancelled at its deadline. A thread can't be: each read has its own timeout, so a server
# that sends a byte now and then could hold a thread for ever. Threads check the deadline instead.
_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


@contextmanager
def deadline(moment: float | None) -> Iterator[None]:
    """Bound all reads and writes inside by a moment of the monotonic clock."""
    token = _deadline.set(moment)
    try:
        yield
    finally:
        _deadline.reset(token)


def _remaining(
    timeout: float | None, error: type[Exception] = httpcore.ReadTimeout
) -> float | None:
    moment = _deadline.get()
    if moment is None:
        return timeout
    remaining = moment - time.monotonic()
    if remaining <= 0:
        raise error("the deadline of the call has passed")
    return remaining if timeout is None else min(remaining, timeout)


TooLate = Callable[[], str]
"""Returns why a request may not be sent any more; empty if it may."""
_unsent: ContextVar[list[TooLate]] = ContextVar("unsent")


@contextmanager
def first_byte(too_late: TooLate) -> Iterator[None]:
    """Ask `too_late` right before the first byte of the request that is sent inside.

    A process may have been suspended since its call was checked, while another one took over.
    """
    token = _unsent.set([too_late])
    try:
        yield
    finally:
        _unsent.reset(token)


def _check_first_byte() -> None:
    unsent = _unsent.get([])
    if unsent:
        if why := unsent[0]():
            raise TooLateError(f"{why}, so the request was not sent")
        unsent.clear()


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
        _check_first_byte()
        await self._stream.write(buffer, timeout)

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._stream.start_tls(ssl_context, server_hostname, timeout))


class _SyncStream(httpcore.NetworkStream):
    """`_Stream` for threads, whose reads and writes end at the deadline of the call."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream
        self.close = stream.close  # type: ignore[method-assign]
        self.get_extra_info = stream.get_extra_info  # type: ignore[method-assign]

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _remaining(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        _check_first_byte()
        self._stream.write(buffer, _remaining(timeout))

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        timeout = _remaining(timeout, httpcore.ConnectTimeout)
        return _SyncStream(self._stream.start_tls(ssl_context, server_hostname, timeout))


# --- requests -------------------------------------------------------------------------------------


class GuardedTransport(httpx.AsyncBaseTransport):
    """Sends checked requests over guarded connections, and bounds the responses."""

    def __init__(
        self, egress: Egress, network: Network, *, tls: ssl.SSLContext, max_bytes: int
    ) -> None:
        guard = Guard(egress, network)
        self._pool = httpcore.AsyncConnectionPool(tls, network_backend=guard, **_LIMITS)
        self._egress = egress
        self._max_bytes = max_bytes

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        _check_request(self._egress, request)
        with _httpx_errors():
            response = await self._pool.handle_async_request(_core_request(request))
        body = Body(httpx.Headers(response.headers), self._max_bytes)
        return _response(request, response, body, _BodyStream(response, body))

    async def aclose(self) -> None:
        await self._pool.aclose()


class SyncGuardedTransport(httpx.BaseTransport):
    """`GuardedTransport` for threads; a request ends at the deadline in its extensions."""

    def __init__(
        self, egress: Egress, network: Network, *, tls: ssl.SSLContext, max_bytes: int
    ) -> None:
        guard = SyncGuard(egress, network)
        self._pool = httpcore.ConnectionPool(tls, network_backend=guard, **_LIMITS)
        self._egress = egress
        self._max_bytes = max_bytes

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        _check_request(self._egress, request)
        moment = request.extensions.get(_DEADLINE)
        with deadline(moment), _httpx_errors():
            response = self._pool.handle_request(_core_request(request))
        body = Body(httpx.Headers(response.headers), self._max_bytes)
        return _response(request, response, body, _SyncBodyStream(response, body, moment))

    def close(self) -> None:
        self._pool.close()


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
    return httpcore.Request(
        method=request.method,
        url=httpcore.URL(
            scheme=request.url.raw_scheme,
            host=request.url.raw_host,
            port=request.url.port,
            target=request.url.raw_path,
        ),
        headers=request.headers.raw,
        content=request.stream,
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


def _response(
    request: httpx.Request,
    response: httpcore.Response,
    body: Body,
    stream: httpx.AsyncByteStream | httpx.SyncByteStream,
) -> httpx.Response:
    headers = httpx.Headers(response.headers)
    if body.coding and request.method != "HEAD":
        # They describe the encoded body, and the stream yields the decoded one.
        headers.pop("Content-Encoding", None)
        headers.pop("Content-Length", None)
    extensions = {k: v for k, v in response.extensions.items() if k != "network_stream"}
    return httpx.Response(response.status, headers=headers, stream=stream, extensions=extensions)


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


class _SyncBodyStream(httpx.SyncByteStream):
    def __init__(self, response: httpcore.Response, body: Body, moment: float | None) -> None:
        self._response = response
        self._body = body
        self._moment = moment

    def __iter__(self) -> Iterator[bytes]:
        chunks = iter(self._response.iter_stream())
        while True:
            with deadline(self._moment), _httpx_errors():
                chunk = next(chunks, None)
            if chunk is None:
                break
            yield from self._body.feed(chunk)
        self._body.finish()

    def close(self) -> None:
        with _httpx_errors():
            self._response.close()


# --- clients --------------------------------------------------------------------------------------

T = TypeVar("T")


class _TransportCache(Generic[T]):
    """Keeps transports between calls, one per egress, in the order of their last use."""

    def __init__(self, make: Callable[[Egress], T], size: int) -> None:
        self._make = make
        self._size = size
        self._transports: dict[Egress, T] = {}
        self._users: Counter[Egress] = Counter()
        self._lock = threading.Lock()

    def acquire(self, egress: Egress) -> T:
        with self._lock:
            transport = self._transports.pop(egress, None) or self._make(egress)
            self._transports[egress] = transport
            self._users[egress] += 1
            return transport

    def release(self, egress: Egress) -> list[T]:
        """Return the unused transports beyond the cache's size, to be closed."""
        with self._lock:
            self._users[egress] -= 1
            self._users += Counter()  # removes counts of zero
            idle = [other for other in self._transports if other not in self._users]
            surplus = idle[: max(0, len(self._transports) - self._size)]
            return [self._transports.pop(other) for other in surplus]

    def clear(self) -> list[T]:
        with self._lock:
            transports = list(self._transports.values())
            self._transports.clear()
            return transports


class _SharedTransport(httpx.AsyncBaseTransport):
    """One call's use of a cached transport: closing it releases the transport."""

    def __init__(
        self, cache: _TransportCache[GuardedTransport], egress: Egress, too_late: TooLate
    ) -> None:
        self._cache = cache
        self._egress = egress
        self._too_late = too_late
        self._transport = cache.acquire(egress)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        with first_byte(self._too_late):
            return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        for surplus in self._cache.release(self._egress):
            await surplus.aclose()


class _SyncSharedTransport(httpx.BaseTransport):
    def __init__(
        self,
        cache: _TransportCache[SyncGuardedTransport],
        egress: Egress,
        too_late: TooLate,
        seconds: float,
    ) -> None:
        self._cache = cache
        self._egress = egress
        self._too_late = too_late
        self._transport = cache.acquire(egress)
        self._moment = time.monotonic() + seconds

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.extensions[_DEADLINE] = self._moment
        with first_byte(self._too_late):
            return self._transport.handle_request(request)

    def close(self) -> None:
        for surplus in self._cache.release(self._egress):
            surplus.close()


@cache
def _tls(_file: str | None, _folder: str | None) -> ssl.SSLContext:
    """Return the TLS context of this process; the environment may choose whom to trust."""
    return httpx.create_ssl_context()


class Clients:
    """Gives each call its own client, over connections that are kept between calls.

    A runtime has one, for one event loop; sync clients may be used from any thread. Headers and
    cookies belong to one call, and closing a client closes no connection that another call uses.
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
        self._cache = _TransportCache(self._transport, keep)
        self._sync_cache = _TransportCache(self._sync_transport, keep)

    def client(
        self, egress: Egress, too_late: TooLate = str, *, seconds: float
    ) -> httpx.AsyncClient:
        """Return a client for one call, which closes it at its end."""
        shared = _SharedTransport(self._cache, egress, too_late)
        return httpx.AsyncClient(transport=shared, trust_env=False, timeout=seconds)

    def sync_client(
        self, egress: Egress, too_late: TooLate = str, *, seconds: float
    ) -> httpx.Client:
        """Return a client for one call in a thread; its requests end in so many seconds."""
        shared = _SyncSharedTransport(self._sync_cache, egress, too_late, seconds)
        return httpx.Client(transport=shared, trust_env=False, timeout=seconds)

    async def aclose(self) -> None:
        for transport in self._cache.clear():
            await transport.aclose()
        self.close()

    def close(self) -> None:
        """Close the connections of sync clients, where there is no event loop."""
        for transport in self._sync_cache.clear():
            transport.close()

    def _transport(self, egress: Egress) -> GuardedTransport:
        return GuardedTransport(egress, self._network, tls=self._tls, max_bytes=self._max_bytes)

    def _sync_transport(self, egress: Egress) -> SyncGuardedTransport:
        return SyncGuardedTransport(egress, self._network, tls=self._tls, max_bytes=self._max_bytes)
