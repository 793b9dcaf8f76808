"""The middleware of the API, in the order of a request, and the context that it passes on.

`RequestContexts` makes a `RequestContext`, which the others and the routes find in the request's
scope. `ReadResponses` answers HEAD and `If-None-Match`, `ProblemResponses` every exception with a
problem. `CallerIdentity` finds out who sends a request: an agent's credential makes calls and reads
its own, a person's session or personal key reads and decides, and the two never mix.
It limits how often a caller may send requests; `JsonBodies` bounds what it may send.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from random import getrandbits
from typing import Any, Final, NamedTuple

import jiter
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from counterseal.accounts import People, Person, Role, Session, check_csrf
from counterseal.errors import StoreError
from counterseal.gateway.catalogue import Catalogue
from counterseal.observation import Observation
from counterseal.operations.auditor import Owner
from counterseal.proposal import Principal
from counterseal.registry.identities import PERSON_MARK
from counterseal.views import TenantView
from counterseal.views.base import NotFoundError
from counterseal.web.identity import (
    CANNOT_CHECK,
    Access,
    CannotVerifyError,
    VerifiedIdentity,
    Verifier,
    same_origin,
    session_cookie,
)
from counterseal.web.middleware import HttpMiddleware, RequestLimits, read_body
from counterseal.web.problems import MEDIA_TYPE, RequestProblemError, problem_of

_log = logging.getLogger("counterseal.gateway")

# --- the context of a request ---------------------------------------------------------------------

_KEY: Final = "counterseal.request"
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiState:
    """The parts of the server that all requests to the API share."""

    view_for: Callable[[Person], TenantView]
    catalogue: Catalogue
    report_outcome: Callable[..., Awaitable[Observation]]
    """Settles a call that its client has carried out."""
    cursor_key: bytes
    """Signs positions in lists."""
    public: str
    """Our URL, without a slash at its end."""


class ApiCaller(NamedTuple):
    """The sender of a request: an agent, which makes calls and sees its own, or a person.

    An agent has a principal. What it may read, it reads as a viewer of its tenant.
    """

    credential: str
    """Identifies the credential without revealing it."""
    person: Person
    principal: Principal | None = None

    @property
    def owner(self) -> Owner | None:
        """The agent whose calls the caller may see, and its user; None: all calls of the tenant.

        An agent without a user sees all of its own calls.
        """
        return None if self.principal is None else (self.principal.agent, self.principal.user)

    def must_own(self, kind: str, agent: str | None, user: str | None) -> None:
        """Raise NotFoundError if the caller is an agent and the object is not its own."""
        if self.owner is not None and (agent != self.owner[0] or self.owner[1] not in (None, user)):
            raise NotFoundError(kind)

    def limited(self, agent: str | None, user: str | None) -> tuple[str | None, str | None] | None:
        """Return these filters, limited to what the caller may see; None: they match nothing."""
        own, bound = self.owner or (agent, None)
        if agent not in (None, own) or (bound is not None and user not in (None, bound)):
            return None
        return own, bound or user


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


class RequestContexts(HttpMiddleware):
    """Makes the context of each request, and sends its id with the response."""

    def __init__(self, app: ASGIApp, state: ApiState) -> None:
        super().__init__(app)
        self._state = state

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _joined(scope["headers"])
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req_{getrandbits(96):024x}"
        context = RequestContext(
            state=self._state, method=scope["method"], headers=headers, request_id=request_id
        )

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                response = MutableHeaders(scope=message)
                response["X-Request-Id"] = request_id
                response.update(context.extra)
            await send(message)

        await self._app({**scope, _KEY: context}, receive, send_with_headers)


def _joined(raw: list[tuple[bytes, bytes]]) -> Mapping[str, str]:
    """Return headers by name; values of a repeated one are joined, so that neither counts alone."""
    headers: dict[str, str] = {}
    for name, value in raw:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        if key in headers:
            text = f"{headers[key]}{'; ' if key == 'cookie' else ', '}{text}"
        headers[key] = text
    return headers


# --- responses ------------------------------------------------------------------------------------

_MAX_ETAG_BYTES: Final = 1024 * 1024
"""The longest response that gets an ETag."""


class ReadResponses(HttpMiddleware):
    """Answers HEAD like GET without a body, and 304 where the caller has the same response.

    What is read may be cached by the caller alone, and must be revalidated.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await self._app(scope, receive, send)
            return
        context, start = context_of(scope), None

        async def send_read(message: Message) -> None:
            """Hold back the start of the response until the first part of its body has come."""
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            if message["type"] == "http.response.body":
                body = message.get("body", b"")
                if start is not None:
                    whole = not message.get("more_body", False)
                    body = _completed(context, start, body, whole=whole)
                    await send(start)
                    start = None
                message = {**message, "body": b"" if context.method == "HEAD" else body}
            await send(message)

        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send_read)


def _completed(context: RequestContext, start: Message, body: bytes, *, whole: bool) -> bytes:
    """Add the headers of a read response, and return the body to send."""
    headers = MutableHeaders(scope=start)
    headers.setdefault("Cache-Control", "private, no-cache")
    headers.setdefault("Vary", "Authorization, Cookie")
    reads = context.method in ("GET", "HEAD")
    if not whole or start["status"] != 200 or not reads or len(body) > _MAX_ETAG_BYTES:
        return body
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    headers["ETag"] = tag
    known = context.headers.get("if-none-match", "").split(",")
    if not any(one.strip().removeprefix("W/") in ("*", tag) for one in known):
        return body
    start["status"] = 304
    del headers["content-type"]
    del headers["content-length"]
    return b""


class ProblemResponses(HttpMiddleware):
    """Answers what routes and middleware raise with a problem. Faults of ours are logged."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
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
            request_id, problem = context_of(scope).request_id, problem_of(error)
            if problem is None or started:
                _log.exception("request %s failed", request_id)
                detail = "The error is logged under this request's id."
                problem = RequestProblemError("internal", detail)
            if started and not ended:
                raise  # the server must cut the connection: the response is incomplete
            if not started:
                body, status = problem.body(request_id), problem.kind.status
                response = Response(body, status, problem.headers, media_type=MEDIA_TYPE)
                await response(scope, receive, send)


# --- callers --------------------------------------------------------------------------------------

DOCUMENT: Final = "/v1/openapi.json"
"""The one path that needs no credential."""
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_CSRF_HEADER: Final = "x-csrf-token"
_MAX_HEADER: Final = 16 * 1024 + 16
_REALM: Final = 'Bearer realm="counterseal"'
_NOT_VALID: Final = "The credential is not valid, or no longer valid."
_MISSING: Final = (
    "Send an API key or a token as `Authorization: Bearer …` (`counterseal keys issue` makes a"
    " key), or sign in."
)


class CallerIdentity(HttpMiddleware):
    """Finds out who sends a request, refuses unknown callers, and limits how often others send.

    A request with an `Authorization` header is judged by that header alone, whatever cookie comes
    with it. Requests without a valid credential are counted by address, so that keys can't be
    guessed. `origins` are those of our own pages.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Access,
        verifier: Verifier,
        people: People,
        origins: Collection[str],
        limits: RequestLimits,
    ) -> None:
        super().__init__(app)
        self._verifier = verifier
        self._people = people
        self._origins = tuple(origins)
        self._limits = limits
        self._required_scopes = frozenset(access.oauth.required_scopes if access.oauth else ())
        principal = access.anonymous
        self._anonymous = None if principal is None else verifier.anonymous(principal)
        self._https = access.resource.startswith("https:")

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        context, client = context_of(scope), scope.get("client")
        address = client[0] if client else ""
        if scope["path"] == DOCUMENT and context.method in ("GET", "HEAD"):
            self._limits.count_address(address)
        else:
            try:
                context.caller = await self._identify(HTTPConnection(scope), context)
            except RequestProblemError as problem:
                if problem.code == "unauthenticated":
                    self._limits.count_address(address)
                raise
            left = self._limits.count_credential(context.caller.credential)
            if left is not None:
                context.extra["RateLimit"] = left
        await self._app(scope, receive, send)

    async def _identify(self, connection: HTTPConnection, context: RequestContext) -> ApiCaller:
        """Return the caller of a request. Raises RequestProblemError, also for a forged form."""
        authorization = context.headers.get("authorization")
        try:
            if authorization is not None:
                return await self._by_header(authorization)
            secret = session_cookie(connection, https=self._https)
            session = await self._people.sessions.read(secret)
        except (CannotVerifyError, StoreError):
            retry = {"Retry-After": "10"}
            raise RequestProblemError("unavailable", CANNOT_CHECK, headers=retry) from None
        if session is None:
            # Anonymous callers are accepted where that is allowed, but not another site's page.
            if self._anonymous is not None and same_origin(context.headers, self._origins):
                return self._agent(self._anonymous)
            raise _unauthenticated(_MISSING, sent=False)
        if context.method not in _SAFE_METHODS:
            self._refuse_forged(session, context.headers)
        return ApiCaller(f"session:{session.session_id}", session.person)

    async def _by_header(self, authorization: str) -> ApiCaller:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token or len(authorization) > _MAX_HEADER:
            raise _unauthenticated("Authorization must be `Bearer` and one API key or token.")
        if token.startswith(PERSON_MARK):
            person = await self._people.by_key(token)
            if person is None:
                raise _unauthenticated(_NOT_VALID)
            return ApiCaller(f"person:{person.tenant}:{person.name}", person)
        identity = await self._verifier.verify_token(token)
        if identity is None:
            raise _unauthenticated(_NOT_VALID)
        return self._agent(identity)

    def _agent(self, identity: VerifiedIdentity) -> ApiCaller:
        if not self._required_scopes.issubset(identity.scopes):
            needed = " ".join(sorted(self._required_scopes))
            challenge = f'{_REALM}, error="insufficient_scope", scope="{needed}"'
            detail = f"The token must have these scopes: {needed}."
            raise RequestProblemError(
                "scope-required", detail, headers={"WWW-Authenticate": challenge}
            )
        principal, roles = identity.principal, frozenset({Role.VIEWER.value})
        viewer = Person(name=principal.agent, tenant=principal.tenant, roles=roles)
        return ApiCaller(identity.token, viewer, principal)

    def _refuse_forged(self, session: Session, headers: Mapping[str, str]) -> None:
        if not same_origin(headers, self._origins):
            raise RequestProblemError("csrf", "The request comes from another site's page.")
        if not check_csrf(session, headers.get(_CSRF_HEADER)):
            detail = f"{_CSRF_HEADER}: must be the token of this session."
            raise RequestProblemError("csrf", detail, param=f"/{_CSRF_HEADER}", where="header")


def _unauthenticated(detail: str, *, sent: bool = True) -> RequestProblemError:
    """Return the problem; `sent` says whether the request carried a credential."""
    challenge = f'{_REALM}, error="invalid_token"' if sent else _REALM
    return RequestProblemError("unauthenticated", detail, headers={"WWW-Authenticate": challenge})


# --- bodies ---------------------------------------------------------------------------------------

MAX_BYTES: Final = 1024 * 1024
_BODY_METHODS: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class JsonBodies(HttpMiddleware):
    """Reads bodies within a size and a time, and refuses what is not JSON.

    The application gets the whole body in one message. `lenient` are paths whose route checks the
    JSON itself.
    """

    def __init__(self, app: ASGIApp, seconds: float, lenient: tuple[str, ...] = ()) -> None:
        super().__init__(app)
        self._seconds = seconds
        self._lenient = lenient

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in _BODY_METHODS:
            await self._app(scope, receive, send)
            return
        headers = context_of(scope).headers
        body = await read_body(Request(scope, receive), MAX_BYTES, self._seconds)
        if body and not _is_json(headers.get("content-type", "")):
            detail = "Content-Type must be application/json, in UTF-8."
            raise RequestProblemError(
                "unsupported-media-type", detail, param="/content-type", where="header"
            )
        if body and scope["path"] not in self._lenient:
            try:
                strict_json(body)
            except ValueError as error:
                raise malformed_json(error) from None
        first: Message | None = {"type": "http.request", "body": body, "more_body": False}

        async def receive_again() -> Message:
            nonlocal first
            if first is None:
                return await receive()
            message, first = first, None
            return message

        await self._app(scope, receive_again, send)


def _is_json(media_type: str) -> bool:
    kind, _, more = media_type.lower().partition(";")
    charset = more.strip().replace('"', "")
    return kind.strip() == "application/json" and charset in ("", "charset=utf-8")


def strict_json(data: bytes) -> Any:
    """Return a JSON value. Raises ValueError, also for a duplicate key and for NaN."""
    return jiter.from_json(data, allow_inf_nan=False, cache_mode="none", catch_duplicate_keys=True)


def malformed_json(error: ValueError) -> RequestProblemError:
    """Return the problem, with the parser's reason and place."""
    reason = str(error).replace("Detected duplicate", "duplicate").partition(" column ")[0]
    detail = f"The body is not valid JSON: {reason[:200]}."
    return RequestProblemError("malformed-json", detail, param="", where="body")
