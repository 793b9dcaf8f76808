"""Connections that are opened only where a contract's egress lets them.

A name is looked up once for a connection, every address that it has is judged, and one of those is
connected to: nothing is looked up again in between, so a name can't change its mind. Certificates
are still checked against the name.

Loads httpcore: see `network`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, NoReturn

import httpcore

from counterseal.contract.egress import Egress, literal
from counterseal.errors import EgressError

__all__ = ["Guard", "Network", "SyncGuard", "within"]


async def look_up(host: str, port: int) -> Sequence[str]:
    """The system's answer: every address of a name."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def look_up_sync(host: str, port: int) -> Sequence[str]:
    """The same for threads."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class Network(NamedTuple):
    """How names are looked up and connections opened. The default is the system's."""

    resolve: Callable[[str, int], Awaitable[Sequence[str]]] = look_up
    resolve_sync: Callable[[str, int], Sequence[str]] = look_up_sync
    connect: httpcore.AsyncNetworkBackend = httpcore.AnyIOBackend()
    """Is given a judged address in place of the name."""
    connect_sync: httpcore.NetworkBackend = httpcore.SyncBackend()


class Guard(httpcore.AsyncNetworkBackend):
    """Opens a connection only to an address that was judged."""

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
        answers = _spelled(host) or await self._resolve(host, port, timeout)
        *first, last = _judged(self._egress, host, port, answers)
        share = timeout and timeout / (len(first) + 1)
        connect = self._network.connect.connect_tcp
        for address in first:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await connect(address, port, share, local_address, socket_options)
        return await connect(last, port, share, local_address, socket_options)

    async def _resolve(self, host: str, port: int, seconds: float | None) -> Sequence[str]:
        try:
            async with asyncio.timeout(seconds):
                return await self._network.resolve(host, port)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"{host} was not looked up in time") from error
        except OSError as error:
            raise httpcore.ConnectError(f"{host} can't be looked up: {error}") from error

    async def connect_unix_socket(self, path: str, *_: Any, **__: Any) -> NoReturn:
        raise EgressError(f"{path}: a tool's client connects to no unix socket")


class SyncGuard(httpcore.NetworkBackend):
    """The same for threads. A lookup takes as long as the system lets it."""

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
        answers = _spelled(host) or self._resolve(host, port)
        *first, last = _judged(self._egress, host, port, answers)
        timeout = _left(timeout)
        share = timeout and timeout / (len(first) + 1)
        connect = self._network.connect_sync.connect_tcp
        for address in first:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return _Timed(connect(address, port, share, local_address, socket_options))
        return _Timed(connect(last, port, share, local_address, socket_options))

    def _resolve(self, host: str, port: int) -> Sequence[str]:
        try:
            return self._network.resolve_sync(host, port)
        except OSError as error:
            raise httpcore.ConnectError(f"{host} can't be looked up: {error}") from error

    def connect_unix_socket(self, path: str, *_: Any, **__: Any) -> NoReturn:
        raise EgressError(f"{path}: a tool's client connects to no unix socket")


def _spelled(host: str) -> Sequence[str]:
    """An address needs no lookup, and an odd spelling of one gets none."""
    address = literal(host)
    return () if address is None else (str(address),)


def _judged(egress: Egress, host: str, port: int, answers: Sequence[str]) -> Sequence[str]:
    """All of them, or none: a name with one forbidden address among its own is up to something."""
    for address in answers:
        egress.check_address(host, port, address)
    if not answers:
        raise httpcore.ConnectError(f"{host} has no address")
    return tuple(dict.fromkeys(answers))


# --- a thread's time ------------------------------------------------------------------------------

# A task is cancelled when its time is over. A thread can't be: a server that sends a byte now and
# then would hold it for as long as it likes, because every read has a timeout of its own.
_until: ContextVar[float | None] = ContextVar("until", default=None)


@contextmanager
def within(until: float | None) -> Iterator[None]:
    """What is read and written in here ends at that time, on the monotonic clock."""
    token = _until.set(until)
    try:
        yield
    finally:
        _until.reset(token)


def _left(timeout: float | None) -> float | None:
    until = _until.get()
    if until is None:
        return timeout
    left = until - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout("the call's time is over")
    return left if timeout is None else min(left, timeout)


class _Timed(httpcore.NetworkStream):
    """A thread's connection: no read or write lasts longer than the call that it is for."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        return _Timed(self._stream.start_tls(ssl_context, server_hostname, _left(timeout)))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
