"""Middleware of the whole site, and the limits on how often a caller may send requests.

Each middleware is plain ASGI and does one thing: `SecurityHeaders` adds headers to every response,
`HeadLimits` bounds the headers of a request, `Availability` refuses requests while the server stops
or is overloaded, `TrustedHosts` refuses other hosts' names. `web/app.py` lists them in their order.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from html import escape
from typing import Final, Self

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from counterseal.accounts.sign_in import network_of
from counterseal.web.problems import RequestProblemError

HEALTH: Final = "/health"
MONITORING: Final = (HEALTH, "/ready", "/metrics")
"""Paths for the programs that watch over the process."""
_MAX_HEADERS: Final = 100
_MAX_HEADER_BYTES: Final = 32 * 1024
_MAX_REQUESTS: Final = 800
"""Requests under way, beyond which further ones are refused. Less than the server's limit on
connections, so that there is always one for `/health`."""
_WRONG_HOST: Final = (
    "This server does not serve the requested host. Open it under its own URL, or add the host to "
    "`allowed_hosts` in [gateway]."
)
_PORT: Final = re.compile(r":[0-9]{1,5}\Z")


@dataclass(slots=True)
class SiteState:
    """State that all requests of a site share."""

    stopping: bool = False
    requests: int = 0
    """Requests under way."""


CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""Only our own files may run or style anything."""
_SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",  # for browsers that don't know frame-ancestors
    "Referrer-Policy": "same-origin",  # addresses hold ids; only our own pages get them
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=()",
    "Cache-Control": "no-store",
}


class HttpMiddleware:
    """Base of middleware: a subclass handles HTTP requests, everything else passes through."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handle = self.handle if scope["type"] == "http" else self._app
        await handle(scope, receive, send)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        await self._app(scope, receive, send)


class SecurityHeaders(HttpMiddleware):
    """Adds the headers that keep other sites out to every response that does not set its own."""

    def __init__(self, app: ASGIApp, *, https: bool = False) -> None:
        super().__init__(app)
        strict = {"Strict-Transport-Security": "max-age=31536000"} if https else {}
        self._headers = {**_SECURITY_HEADERS, **strict}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class HeadLimits(HttpMiddleware):
    """Refuses requests with too many headers, or too large ones.

    The server's parser bounds a head while it arrives; this is the exact limit.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope["headers"]
        size = sum(len(name) + len(value) for name, value in headers)
        size += len(scope["query_string"]) + len(scope["path"])
        app = self._app
        if len(headers) > _MAX_HEADERS or size > _MAX_HEADER_BYTES:
            limits = f"at most {_MAX_HEADERS} headers and {_MAX_HEADER_BYTES:,} bytes"
            message = f"The request's head is too large: {limits} are accepted."
            app = _refusal(scope, 431, message, {"Connection": "close"})
        await app(scope, receive, send)


class Availability(HttpMiddleware):
    """Refuses requests while the server is stopping or overloaded. `/health` always answers."""

    def __init__(
        self, app: ASGIApp, state: SiteState, *, max_requests: int = _MAX_REQUESTS
    ) -> None:
        super().__init__(app)
        self._state = state
        self._max_requests = max_requests

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = self._state
        if scope["path"] == HEALTH:
            await self._app(scope, receive, send)
        elif state.stopping or state.requests >= self._max_requests:
            reason = "stopping" if state.stopping else "overloaded"
            headers = {"Retry-After": "5", "Connection": "close"}
            refusal = _refusal(scope, 503, f"This server is {reason}. Try again in 5 s.", headers)
            await refusal(scope, receive, send)
        else:
            state.requests += 1
            try:
                await self._app(scope, receive, send)
            finally:
                state.requests -= 1


class TrustedHosts(HttpMiddleware):
    """Refuses requests whose `Host` is not ours, which DNS rebinding would send.

    `NAME:*` allows a name with any port and without one. Starlette's middleware of this purpose
    ignores ports, and accepts several `Host` headers.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        super().__init__(app)
        self._exact = frozenset(host.lower() for host in hosts if not host.endswith(":*"))
        self._any_port = frozenset(host[:-2].lower() for host in hosts if host.endswith(":*"))

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        app, hosts = self._app, [value for name, value in scope["headers"] if name == b"host"]
        host = hosts[0].decode("latin-1").lower() if len(hosts) == 1 else ""
        if host not in self._exact and _PORT.sub("", host) not in self._any_port:
            app = _refusal(scope, 421, _WRONG_HOST)
        await app(scope, receive, send)


def _refusal(
    scope: Scope, status: int, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a line of text for programs, a page for people."""
    path = scope["path"]
    if path in ("/mcp", "/v1", *MONITORING) or path.startswith("/v1/"):
        return PlainTextResponse(f"{message}\n", status, headers=headers)
    return bare_page(status, message, headers=headers)


TITLES: Final = {
    400: "Invalid request",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    408: "Request timeout",
    409: "Not possible now",
    413: "Too large",
    415: "Not a form",
    421: "Wrong host",
    422: "Not possible",
    429: "Too many requests",
    500: "Internal error",
    503: "Temporarily unavailable",
}


def bare_page(status: int, message: str, *, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error page without session, files and scripts, for requests refused early."""
    title = escape(TITLES.get(status, TITLES[500]))
    text = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"</head><body><main><h1>{title}</h1><p>{escape(message)}</p></main></body></html>\n"
    )
    return HTMLResponse(text, status, headers)


# --- bodies ---------------------------------------------------------------------------------------


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """Return a request's body. Raises RequestProblemError or ClientDisconnect."""
    announced, close = request.headers.get("content-length", ""), {"Connection": "close"}
    body = bytearray()
    size, chunks = int(announced[:20]) if announced.isdecimal() else 0, request.stream()
    try:
        async with asyncio.timeout(seconds):
            while size <= limit:
                chunk = await anext(chunks, None)
                if chunk is None:
                    return bytes(body)
                body += chunk
                size = len(body)
    except TimeoutError:
        detail = f"The body did not arrive within {seconds:g} s."
        raise RequestProblemError("request-timeout", detail, headers=close) from None
    detail = f"The body must be at most {limit:,} bytes."
    raise RequestProblemError("too-large", detail, headers=close)


# --- rates ----------------------------------------------------------------------------------------

_MAX_BUCKETS: Final = 10_000
"""The most buckets that are kept; beyond it, the one idle longest is dropped, and its caller starts
with a full one."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate limit: `per_second` on average, `burst` at once."""

    per_second: float
    burst: int

    def __post_init__(self) -> None:
        if not (self.per_second > 0 and self.burst >= 1):
            raise ValueError("a rate must allow more than 0 requests a second, and a burst of 1")

    @classmethod
    def per(cls, second: float) -> Self:
        """Return a rate with a burst of five seconds' requests."""
        return cls(second, max(1, round(5 * second)))


CREDENTIAL_RATE: Final = Rate.per(500.0)
ADDRESS_RATE: Final = Rate(5.0, 100)
"""For requests without a valid credential, which may be guesses."""


class RequestLimits:
    """Token buckets: one for each credential, and one for each address without one.

    They are kept in memory, for one process. Rates in contracts and budgets of tenants are limits
    of the runtime, for all processes.
    """

    def __init__(
        self,
        *,
        credential: Rate = CREDENTIAL_RATE,
        address: Rate = ADDRESS_RATE,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._credentials = _Buckets("credential", credential, steady)
        self._addresses = _Buckets("address", address, steady)

    def count_credential(self, name: str) -> str | None:
        """Count a request of a known caller. Raises RequestProblemError.

        Returns the `RateLimit` header to send: what is left, once that is less than half.
        """
        return self._credentials.take(name)

    def count_address(self, address: str) -> None:
        """Count a request of an unknown caller. Raises RequestProblemError."""
        self._addresses.take(network_of(address))


class _Buckets:
    def __init__(self, name: str, rate: Rate, steady: Callable[[], float]) -> None:
        self._name = name
        self._rate = rate
        self._steady = steady
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Tokens left in each bucket, and as of when."""

    def take(self, caller: str) -> str | None:
        now, full = self._steady(), float(self._rate.burst)
        left, since = self._buckets.pop(caller, (full, now))
        left = min(full, left + (now - since) * self._rate.per_second)
        allowed = left >= 1.0
        self._buckets[caller] = (left - 1.0 if allowed else left, now)
        if len(self._buckets) > _MAX_BUCKETS:
            self._buckets.popitem(last=False)
        if allowed and left > full / 2:
            return None
        left = left - 1.0 if allowed else left
        until_next = 0 if left >= 1.0 else math.ceil((1.0 - left) / self._rate.per_second)
        header = f'"{self._name}";r={int(left)};t={until_next}'
        if allowed:
            return header
        window = max(1, math.ceil(self._rate.burst / self._rate.per_second))
        headers = {
            "Retry-After": str(max(1, until_next)),
            "RateLimit-Policy": f'"{self._name}";q={self._rate.burst};w={window}',
            "RateLimit": header,
        }
        detail = f"Too many requests. Try again in {max(1, until_next)} s."
        raise RequestProblemError("rate-limited", detail, headers=headers)
