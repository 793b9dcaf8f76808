"""`ctx.http`: clients that connect only where a contract's egress lets them.

Every request is judged, so every hop of a redirect is; `connections` judges where its name leads,
and `bodies` bounds what comes back. Proxies that the environment names are not used: behind one,
nobody could tell where a request goes.

Importing this module loads httpx. Import it where a client is made, not at the top of a module
that `counterseal --help` loads.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cached_property
from typing import Any, Final, Generic, TypeVar, cast

import httpcore
import httpx

from counterseal.contract.egress import Egress, split_port
from counterseal.errors import EgressError
from counterseal.execution.network.bodies import ACCEPTED, Body
from counterseal.execution.network.connections import Guard, Network, SyncGuard, within

__all__ = ["MAX_BYTES", "Clients", "Network", "SyncTransport", "Transport"]

MAX_BYTES: Final = 16 * 1024 * 1024
_PORTS: Final = {"http": 80, "https": 443}
_UNTIL: Final = "counterseal.until"
_LIMITS: Final[dict[str, Any]] = {
    "max_connections": 100,
    "max_keepalive_connections": 20,
    "keepalive_expiry": 5.0,
}

# --- requests and responses -----------------------------------------------------------------------


class Transport(httpx.AsyncHTTPTransport):
    """httpx's own, over guarded connections, with judged requests and bounded responses."""

    def __init__(
        self, egress: Egress, network: Network, *, tls: ssl.SSLContext, max_bytes: int
    ) -> None:
        super().__init__(verify=tls, trust_env=False)
        guard = Guard(egress, network)
        self._pool = httpcore.AsyncConnectionPool(tls, network_backend=guard, **_LIMITS)
        self._egress = egress
        self._max_bytes = max_bytes

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        _judge(self._egress, request)
        response = await super().handle_async_request(request)
        body = Body(response.headers, self._max_bytes)
        return _answer(request, response, body, _Stream(response.stream, body))


class SyncTransport(httpx.HTTPTransport):
    """The same for threads."""

    def __init__(
        self, egress: Egress, network: Network, *, tls: ssl.SSLContext, max_bytes: int
    ) -> None:
        super().__init__(verify=tls, trust_env=False)
        guard = SyncGuard(egress, network)
        self._pool = httpcore.ConnectionPool(tls, network_backend=guard, **_LIMITS)
        self._egress = egress
        self._max_bytes = max_bytes

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        _judge(self._egress, request)
        until = request.extensions.get(_UNTIL)
        with within(until):
            response = super().handle_request(request)
        body = Body(response.headers, self._max_bytes)
        return _answer(request, response, body, _SyncStream(response.stream, body, until))


def _judge(egress: Egress, request: httpx.Request) -> None:
    scheme, host = request.url.scheme, request.url.raw_host.decode("ascii")
    default = _PORTS.get(scheme, 0)
    egress.check_url(scheme, host, request.url.port or default)
    named = request.headers.get("Host", "")
    if named != request.url.netloc.decode("ascii"):
        # One server may answer for many names, and this header says which is meant.
        try:
            host, port = split_port(named)
        except ValueError as error:
            raise EgressError(f"Host: {named!r}: {error}") from None
        egress.check_url(scheme, host, port or default)
    # Connections are shared between calls, so each must have been checked for the URL's own name.
    request.extensions.pop("sni_hostname", None)
    if request.headers.get("Accept-Encoding") != "identity":
        request.headers["Accept-Encoding"] = ACCEPTED


def _answer(
    request: httpx.Request,
    response: httpx.Response,
    body: Body,
    stream: httpx.AsyncByteStream | httpx.SyncByteStream,
) -> httpx.Response:
    headers = response.headers.copy()
    if body.coding and request.method != "HEAD":
        # They speak of what was sent, and the stream gives what that meant.
        headers.pop("Content-Encoding", None)
        headers.pop("Content-Length", None)
    extensions = {k: v for k, v in response.extensions.items() if k != "network_stream"}
    return httpx.Response(
        response.status_code, headers=headers, stream=stream, extensions=extensions
    )


class _Stream(httpx.AsyncByteStream):
    def __init__(self, stream: Any, body: Body) -> None:
        self._stream = cast("httpx.AsyncByteStream", stream)
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            for piece in self._body.feed(chunk):
                yield piece
        self._body.finish()

    async def aclose(self) -> None:
        await self._stream.aclose()


class _SyncStream(httpx.SyncByteStream):
    def __init__(self, stream: Any, body: Body, until: float | None) -> None:
        self._stream = cast("httpx.SyncByteStream", stream)
        self._body = body
        self._until = until

    def __iter__(self) -> Iterator[bytes]:
        chunks = iter(self._stream)
        while True:
            with within(self._until):
                chunk = next(chunks, None)
            if chunk is None:
                break
            yield from self._body.feed(chunk)
        self._body.finish()

    def close(self) -> None:
        self._stream.close()


# --- lending --------------------------------------------------------------------------------------

T = TypeVar("T")


class _Shelf(Generic[T]):
    """The transports that are kept, one for an egress, the latest used last."""

    def __init__(self, make: Callable[[Egress], T], keep: int) -> None:
        self._make = make
        self._keep = keep
        self._kept: dict[Egress, T] = {}
        self._users: Counter[Egress] = Counter()
        self._lock = threading.Lock()

    def take(self, egress: Egress) -> T:
        with self._lock:
            transport = self._kept.pop(egress, None) or self._make(egress)
            self._kept[egress] = transport
            self._users[egress] += 1
            return transport

    def give_back(self, egress: Egress) -> list[T]:
        """Those that are too many to keep and that nobody uses: they are to be closed."""
        with self._lock:
            self._users[egress] -= 1
            self._users += Counter()  # forgets the zeros
            idle = [other for other in self._kept if other not in self._users]
            surplus = idle[: max(0, len(self._kept) - self._keep)]
            return [self._kept.pop(other) for other in surplus]

    def clear(self) -> list[T]:
        with self._lock:
            transports = list(self._kept.values())
            self._kept.clear()
            return transports


class _Lent(httpx.AsyncBaseTransport):
    """A kept transport in the hands of one call: closing it gives it back."""

    def __init__(self, shelf: _Shelf[Transport], egress: Egress) -> None:
        self._shelf = shelf
        self._egress = egress
        self._transport = shelf.take(egress)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        for surplus in self._shelf.give_back(self._egress):
            await surplus.aclose()


class _SyncLent(httpx.BaseTransport):
    def __init__(self, shelf: _Shelf[SyncTransport], egress: Egress, seconds: float) -> None:
        self._shelf = shelf
        self._egress = egress
        self._transport = shelf.take(egress)
        self._until = time.monotonic() + seconds

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.extensions[_UNTIL] = self._until
        return self._transport.handle_request(request)

    def close(self) -> None:
        for surplus in self._shelf.give_back(self._egress):
            surplus.close()


class Clients:
    """Lends each call clients of its own over connections that are kept between calls.

    One for a runtime, used from one event loop; sync clients from any thread. A client's headers
    and cookies are its call's alone, and closing it closes no connection that another may use.
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
        self._given_tls = tls
        self._shelf = _Shelf(self._transport, keep)
        self._sync_shelf = _Shelf(self._sync_transport, keep)

    def client(self, egress: Egress, *, seconds: float) -> httpx.AsyncClient:
        """For one call. Whoever asked closes it when the call is over."""
        lent = _Lent(self._shelf, egress)
        return httpx.AsyncClient(transport=lent, trust_env=False, timeout=seconds)

    def sync_client(self, egress: Egress, *, seconds: float) -> httpx.Client:
        """The same for a thread: `seconds` from now, whatever it still reads is given up."""
        lent = _SyncLent(self._sync_shelf, egress, seconds)
        return httpx.Client(transport=lent, trust_env=False, timeout=seconds)

    async def aclose(self) -> None:
        for transport in self._shelf.clear():
            await transport.aclose()
        self.close()

    def close(self) -> None:
        """Close the connections of sync clients, where there is no event loop."""
        for transport in self._sync_shelf.clear():
            transport.close()

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        # The environment may say whom to trust (SSL_CERT_FILE), just not where to connect.
        return self._given_tls or httpx.create_ssl_context()

    def _transport(self, egress: Egress) -> Transport:
        return Transport(egress, self._network, tls=self._tls, max_bytes=self._max_bytes)

    def _sync_transport(self, egress: Egress) -> SyncTransport:
        return SyncTransport(egress, self._network, tls=self._tls, max_bytes=self._max_bytes)
