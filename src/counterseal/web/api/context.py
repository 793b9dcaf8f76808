"""One request to the API: its context, and what every response to it carries.

`RequestContexts`, the outermost middleware, makes a `RequestContext`, which the others and the
routes find in the request's scope. `ReadResponses` answers HEAD and `If-None-Match`.
`ProblemResponses` answers every exception with a problem. `Cursors` seals positions in lists.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from random import getrandbits
from typing import Final, NamedTuple

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from counterseal.accounts import Person, Session
from counterseal.gateway.catalogue import Catalogue
from counterseal.keys import KeyRing, derived_key
from counterseal.proposal import Principal
from counterseal.runtime import Runtime
from counterseal.views import TenantView
from counterseal.web.api.problems import MEDIA_TYPE, RequestProblemError, problem_of

_log = logging.getLogger("counterseal.gateway")
_KEY: Final = "counterseal.request"
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MAX_MARKED: Final = 1024 * 1024
"""Bytes of a response for which an ETag is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiState:
    """The parts of the server that all requests to the API share."""

    runtime: Runtime
    view_for: Callable[[Person], TenantView]
    catalogue: Catalogue
    cursors: Cursors
    public: str
    """Our URL, without a slash at its end."""


class AgentCaller(NamedTuple):
    """A caller that makes calls, and sees its own."""

    principal: Principal
    credential: str
    """Identifies the credential without revealing it."""

    @property
    def tenant(self) -> str:
        return self.principal.tenant


class PersonCaller(NamedTuple):
    """A caller that looks and decides: a person by a session or a personal key."""

    person: Person
    credential: str
    session: Session | None = None

    @property
    def tenant(self) -> str:
        return self.person.tenant


ApiCaller = AgentCaller | PersonCaller


@dataclass(slots=True, kw_only=True)
class RequestContext:
    """A request on its way through the middleware."""

    state: ApiState
    method: str
    headers: Mapping[str, str]
    """By lower-case name. The values of a repeated header are joined."""
    request_id: str
    caller: ApiCaller | None = None
    """Set by the identity middleware."""
    extra: dict[str, str] = field(default_factory=dict)
    """Headers that middleware adds to the response."""


def context_of(scope: Scope) -> RequestContext:
    """Return the context of a request, which `RequestContexts` has put there."""
    context: RequestContext = scope[_KEY]
    return context


class RequestContexts:
    """Makes the context of each request, and sends its id with the response."""

    def __init__(self, app: ASGIApp, state: ApiState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = _joined(scope["headers"])
        context = RequestContext(
            state=self._state,
            method=scope["method"],
            headers=headers,
            request_id=_request_id(headers.get("x-request-id")),
        )

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                response = MutableHeaders(scope=message)
                response["X-Request-Id"] = context.request_id
                response.update(context.extra)
            await send(message)

        await self._app({**scope, _KEY: context}, receive, send_with_headers)


class ReadResponses:
    """Answers HEAD like GET without a body, and 304 where the caller has the same response.

    What is read may be cached by the caller alone, and must be revalidated.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] == "POST":
            await self._app(scope, receive, send)
            return
        response = _ReadResponse(scope, send)
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, response.send)


class ProblemResponses:
    """Answers what routes and middleware raise with a problem. Faults of ours are logged."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = ended = False

        async def watched_send(message: Message) -> None:
            nonlocal started, ended
            started = True
            await send(message)
            ended = message["type"] == "http.response.body" and not message.get("more_body")

        try:
            await self._app(scope, receive, watched_send)
        except ClientDisconnect:
            return
        except Exception as error:
            request_id = context_of(scope).request_id
            problem = problem_of(error)
            if problem is None or started:
                _log.exception("request %s failed", request_id)
                problem = RequestProblemError(
                    "internal", "The error is logged under this request's id."
                )
            if started and not ended:
                raise  # the server must cut the connection: the response is incomplete
            if not started:
                response = Response(
                    problem.body(request_id),
                    problem.kind.status,
                    headers=problem.headers,
                    media_type=MEDIA_TYPE,
                )
                await response(scope, receive, send)


class _ReadResponse:
    """Holds back the start of a response until the first part of its body has come."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._context = context_of(scope)
        self._send = send
        self._start: Message | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        if message["type"] == "http.response.body":
            body = message.get("body", b"")
            start, self._start = self._start, None
            if start is not None:
                whole = not message.get("more_body", False)
                body = self._complete(start, body, whole=whole)
                await self._send(start)
            message = {**message, "body": b"" if self._context.method == "HEAD" else body}
        await self._send(message)

    def _complete(self, start: Message, body: bytes, *, whole: bool) -> bytes:
        """Add the headers of a read response, and return the body to send."""
        headers = MutableHeaders(scope=start)
        headers.setdefault("X-Content-Type-Options", "nosniff")
        headers.setdefault("Cache-Control", "private, no-cache")
        headers.setdefault("Vary", "Authorization, Cookie")
        reads = self._context.method in ("GET", "HEAD")
        if not whole or start["status"] != 200 or not reads or len(body) > _MAX_MARKED:
            return body
        tag = f'"{sha256(body).hexdigest()[:32]}"'
        headers["ETag"] = tag
        if not _matches(self._context.headers.get("if-none-match"), tag):
            return body
        start["status"] = 304
        del headers["content-type"]
        del headers["content-length"]
        return b""


def _request_id(given: str | None) -> str:
    """Return the caller's request id if it is well-formed, else a new one."""
    if given is None or _REQUEST_ID.fullmatch(given) is None:
        return f"req_{getrandbits(96):024x}"
    return given


def _joined(raw: list[tuple[bytes, bytes]]) -> Mapping[str, str]:
    """Return headers by name; values of a repeated one are joined, so that neither counts alone."""
    headers: dict[str, str] = {}
    for name, value in raw:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        if key in headers:
            text = f"{headers[key]}{'; ' if key == 'cookie' else ', '}{text}"
        headers[key] = text
    return headers


def _matches(given: str | None, tag: str) -> bool:
    if given is None:
        return False
    if given.strip() == "*":
        return True
    return any(one.strip().removeprefix("W/") == tag for one in given.split(","))


# --- cursors --------------------------------------------------------------------------------------

_MAC_BYTES: Final = 16
_MAX_CURSOR: Final = 2000


class Cursors:
    """Seals positions in lists, so that a cursor is good for one tenant and one list only.

    Without a session or vault key in the ring, cursors are good in this process only.
    """

    def __init__(self, ring: KeyRing | None) -> None:
        self._key = derived_key(ring, "api cursors") or os.urandom(32)

    def seal(self, tenant: str, subject: str, position: str | None) -> str | None:
        """Return the cursor for a position."""
        if position is None:
            return None
        raw = position.encode()
        sealed = self._mac(tenant, subject, raw) + raw
        return base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    def open(self, tenant: str, subject: str, cursor: str | None) -> str | None:
        """Return the position of a cursor. Raises RequestProblemError for one of another list."""
        if cursor is None:
            return None
        try:
            raw = cursor.encode("ascii") if len(cursor) <= _MAX_CURSOR else b""
            sealed = base64.b64decode(raw + b"=" * (-len(raw) % 4), b"-_", validate=True)
            position = sealed[_MAC_BYTES:].decode()
        except (ValueError, binascii.Error):
            raise _invalid_cursor() from None
        mac = self._mac(tenant, subject, sealed[_MAC_BYTES:])
        if not hmac.compare_digest(sealed[:_MAC_BYTES], mac):
            raise _invalid_cursor()
        return position

    def _mac(self, tenant: str, subject: str, position: bytes) -> bytes:
        about = f"{tenant}\0{subject}\0".encode()
        return hmac.digest(self._key, about + position, "sha256")[:_MAC_BYTES]


def _invalid_cursor() -> RequestProblemError:
    detail = "cursor: not a cursor of this list. Leave it out to start at the first page."
    return RequestProblemError("invalid-cursor", detail, param="/cursor", where="query")
