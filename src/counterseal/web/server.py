"""`counterseal serve`: the gateway over HTTP, from start to end, on stock uvicorn.

The application is plain ASGI and is put together in `web/app.py`; nothing there depends on uvicorn,
and the tests also run it on another server.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from counterseal.accounts.sign_in import network_of
from counterseal.config import ConfigError, Settings
from counterseal.config.tables import is_loopback
from counterseal.gateway.running import Gateway, Tell, gateway, withheld_lines
from counterseal.gateway.upstream_tools import upstream_summaries
from counterseal.proposal import Principal
from counterseal.web.app import Site, site
from counterseal.web.identity import Access, ProtectedEndpoint, principal_of
from counterseal.web.middleware import Rate, RequestLimits

_LOCAL_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
_GRACE_SECONDS: Final = 10.0
"""Seconds that calls under way have to end when the gateway stops."""
_MAX_CONNECTIONS: Final = 1000
_CONNECTIONS_PER_ADDRESS: Final = 256
_BACKLOG: Final = 512
"""Connections that the system accepts before we see them."""
_HANG_UP_SECONDS: Final = 2
"""Seconds after which connections that are still open are closed when the gateway stops."""
MAX_HEAD_BYTES: Final = 32 * 1024
"""Bytes of a request's head after which the parser gives up; an OAuth token may have 16 kB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A gateway that accepts requests."""

    url: str
    mcp_url: str
    health_url: str
    upstreams: list[dict[str, Any]]
    credentials: int
    """Valid API keys."""


async def serve(
    settings: Settings,
    *,
    host: str,
    port: int,
    tls: tuple[Path, Path] | None = None,
    anonymous: Principal | None = None,
    store: str | None = None,
    tell: Tell = lambda _: None,
    ready: Callable[[Running], None] = lambda _: None,
) -> None:
    """Serve until a signal, then stop cleanly. Raises ConfigError if the server can't start.

    `tls` has the files of the certificate and its private key; with them it serves https.
    """
    if tls is not None:
        _check_tls(*tls)
    if anonymous is not None and not is_loopback(f"http://{_bracketed(host)}"):
        raise ConfigError("anonymous access is for loopback only; bind to 127.0.0.1")
    with _bound(host, port) as listening:
        scheme = "http" if tls is None else "https"
        own = f"{scheme}://{_bracketed(host)}:{listening.getsockname()[1]}"
        public = (settings.gateway.public_url or own).rstrip("/")
        oauth = settings.gateway.oauth
        access = Access(resource=f"{public}/mcp", oauth=oauth, anonymous=anonymous)
        endpoints: list[ProtectedEndpoint] = []  # made after the gateway, which needs this check

        async def valid(identity: Any) -> bool:
            return not endpoints or await endpoints[0].verifier.still_valid(identity)

        async with gateway(
            settings, caller=principal_of, console=public, store=store, valid=valid, tell=tell
        ) as running:
            urls = list(dict.fromkeys((public, own)))
            served = site(
                running,
                access,
                _security(settings, own, public),
                urls=urls,
                limits=RequestLimits(credential=Rate.per(settings.gateway.requests_per_second)),
            )
            endpoints.append(served.mcp)
            if anonymous is not None:
                for line in withheld_lines(running.runtime.registry, anonymous):
                    tell(line)
            server = GatewayServer(
                served.app,
                proxies=settings.gateway.trusted_proxies,
                connections_per_address=settings.gateway.connections_per_address,
                stopping=lambda: _finish_calls(running, served, tell),
                tls=tls,
            )
            serving = asyncio.ensure_future(server.serve(sockets=[listening]))
            up = asyncio.ensure_future(server.up.wait())
            await asyncio.wait({serving, up}, return_when=asyncio.FIRST_COMPLETED)
            up.cancel()
            if server.started:
                ready(
                    Running(
                        url=public,
                        mcp_url=f"{public}/mcp",
                        health_url=f"{public}/health",
                        upstreams=upstream_summaries(running.upstreams),
                        credentials=len(running.runtime.registry.credentials),
                    )
                )
            await serving
            tell("stopped")


# --- access ---------------------------------------------------------------------------------------


def _security(settings: Settings, own: str, public: str) -> TransportSecuritySettings:
    """Return the host names that are served, and the origins whose pages may send requests."""
    hosts = [f"{name}:*" for name in _LOCAL_NAMES]
    hosts += [urlsplit(url).netloc for url in (own, public)]
    origins = [f"{urlsplit(own).scheme}://{name}:*" for name in _LOCAL_NAMES]
    origins.append("{0.scheme}://{0.netloc}".format(urlsplit(public)))
    return TransportSecuritySettings(
        allowed_hosts=[*hosts, *settings.gateway.allowed_hosts],
        allowed_origins=[*origins, *settings.gateway.allowed_origins],
    )


def _check_tls(cert: Path, key: Path) -> None:
    """Raise ConfigError if the files can't be used. The server itself would ask for a password."""

    def refuse_password() -> str:
        raise ConfigError(f"{key}: the key has a password; store it without one")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, refuse_password)
    except OSError as error:  # SSLError, too
        reason = getattr(error, "reason", None) or error.strerror or str(error)
        raise ConfigError(f"{cert} and {key} can't be used for https: {reason}") from None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# --- start and stop -------------------------------------------------------------------------------


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY on accepted connections.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    with listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            fix = "choose another port; 0 takes a free one"
            address = f"{_bracketed(host)}:{port}"
            raise ConfigError(f"can't listen on {address}: {reason}; {fix}") from None
        yield listening


async def _finish_calls(running: Gateway, served: Site, tell: Tell) -> None:
    """Wait for the calls under way. The reconciler settles those that take longer."""
    tell("stopping; a second signal ends it at once")
    running.server.notifications.close()
    served.close()
    calls, submissions = running.server.calls.running, served.submissions.running
    count = calls.count + submissions.count
    if count:
        tell(f"waiting for {count} calls under way")
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE_SECONDS):
            await asyncio.gather(calls.idle(), submissions.idle())


class GatewayServer(uvicorn.Server):
    """Stock uvicorn with the gateway's settings.

    The first signal ends it after the calls under way, a second one at once. Connections on which
    a request does not arrive in time are closed, and so are those beyond `ConnectionLimits`.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        proxies: Sequence[str] = (),
        stopping: Callable[[], Awaitable[None]] | None = None,
        slow_clients: SlowClients | None = None,
        keep_alive: int = 5,
        max_connections: int = _MAX_CONNECTIONS,
        connections_per_address: int = _CONNECTIONS_PER_ADDRESS,
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        limits = ConnectionLimits(max_connections, connections_per_address, proxies)

        class Connection(H11Protocol):  # h11 bounds heads: docs/decisions/0029
            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                limits.make_room(self)

        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            http=Connection,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            backlog=_BACKLOG,
            proxy_headers=bool(proxies),  # otherwise a caller could claim another address
            forwarded_allow_ips=list(proxies),
            timeout_keep_alive=keep_alive,
            timeout_graceful_shutdown=_HANG_UP_SECONDS,
            ssl_certfile=None if tls is None else tls[0],
            ssl_keyfile=None if tls is None else tls[1],
        )
        super().__init__(config)
        self._stopping = stopping
        self._slow_clients = slow_clients or SlowClients()
        self._ending: asyncio.Task[None] | None = None
        self.up = asyncio.Event()
        """Set when the server accepts connections."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # once a second
            self._slow_clients.close_overdue(self.server_state.connections)
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            with suppress(NotImplementedError, RuntimeError, ValueError):  # not on every platform
                loop.add_signal_handler(number, self.end)
        try:
            yield
        finally:
            for number in signals:
                with suppress(NotImplementedError, RuntimeError, ValueError):
                    loop.remove_signal_handler(number)

    def end(self) -> None:
        """Stop gracefully; called again, stop at once."""
        if self._ending is not None:
            self.should_exit = self.force_exit = True
            return
        self._ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        try:
            if self._stopping is not None:
                await self._stopping()
        finally:
            self.should_exit = True


def _waits(connection: H11Protocol) -> bool:
    """Return whether a connection has no request, or one that has not arrived in whole."""
    request: Any = connection.cycle  # None before the first request
    return request is None or request.response_complete or request.more_body


class ConnectionLimits:
    """Bounds the connections that wait for a request: of each address, and of all together.

    A connection beyond a limit takes the place of the oldest one that waits: of its own address, or
    of the address that has most of them. A client that opens many connections so closes its own,
    and a new one is always accepted, which keeps `/health` answering. Requests under way are
    bounded by `Availability`. A trusted proxy speaks for many clients, so it has no limit of its
    own.
    """

    def __init__(self, total: int, per_address: int, proxies: Sequence[str] = ()) -> None:
        self._total = total
        self._per_address = per_address
        self._proxies = tuple(map(ip_network, proxies))
        self._order: WeakKeyDictionary[H11Protocol, int] = WeakKeyDictionary()
        self._numbers = itertools.count()

    def make_room(self, new: H11Protocol) -> None:
        """Close a connection that waits if there is one too many with the new one."""
        self._order[new] = next(self._numbers)
        if len(new.connections) <= min(self._total, self._per_address):
            return
        there = [one for one in self._order if not one.transport.is_closing()]
        waiting = [one for one in there if _waits(one)]
        addresses = Counter(_address(one) for one in waiting)
        crowded = _address(new)
        host = ip_address(new.client[0]) if new.client else None
        proxy = host is not None and any(host in network for network in self._proxies)
        if addresses[crowded] <= self._per_address or proxy:
            if len(there) <= self._total:
                return
            crowded = addresses.most_common(1)[0][0]
        own = [one for one in waiting if _address(one) == crowded]
        min(own, key=self._order.__getitem__).transport.close()


def _address(connection: H11Protocol) -> str:
    return network_of(connection.client[0]) if connection.client else ""


class SlowClients:
    """Closes connections on which a whole request has not arrived within `seconds`.

    uvicorn has no time limit for a request's head or body, so a client could keep connections busy
    with nothing. Routes have their own, shorter limit for bodies and answer 408; this one covers
    requests that never reach a route. It looks at all connections once a second, so requests pay
    nothing for it.
    """

    def __init__(self, seconds: float = 30.0, *, clock: Callable[[], float] = monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._waiting: dict[Any, tuple[object, float]] = {}
        """Connections that wait for a request: the request before it, and since when."""

    def close_overdue(self, connections: Collection[Any]) -> None:
        """Close those of uvicorn's connections whose time is over."""
        now, before = self._clock(), self._waiting
        self._waiting = {}
        for connection in connections:
            if not _waits(connection):
                continue  # a whole request is being answered, which may take as long as it takes
            last = connection.cycle
            previous, since = before.get(connection, (last, now))
            if previous is not last:
                since = now
            self._waiting[connection] = (last, since)
            if now - since >= self._seconds:
                connection.transport.close()
