"""Who sends a request to the API, and how often: the middleware for identity and for limits.

An agent's credential makes calls and reads its own; a person's session or personal key reads and
decides. The two never mix. A request with an `Authorization` header is judged by that header alone,
whatever cookie comes with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from counterseal.accounts import People, Session, check_csrf
from counterseal.errors import StoreError
from counterseal.registry.identities import PERSON_MARK
from counterseal.web.api.context import AgentCaller, ApiCaller, PersonCaller, context_of
from counterseal.web.api.problems import RequestProblemError
from counterseal.web.browser import same_origin, session_cookie
from counterseal.web.identity import (
    CANNOT_CHECK,
    Access,
    CannotVerifyError,
    VerifiedIdentity,
    Verifier,
)
from counterseal.web.middleware import RequestLimits

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


class CallerIdentity:
    """Finds out who sends a request, and refuses unknown callers.

    Requests without a valid credential are counted by address, so that keys can't be guessed.
    """

    def __init__(self, app: ASGIApp, callers: Callers, limits: RequestLimits) -> None:
        self._app = app
        self._callers = callers
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            context, client = context_of(scope), scope.get("client")
            address = client[0] if client else ""
            if scope["path"] == DOCUMENT and context.method in ("GET", "HEAD"):
                self._limits.count_address(address)
            else:
                try:
                    context.caller = await self._callers.identify(
                        HTTPConnection(scope), context.headers, context.method
                    )
                except RequestProblemError as problem:
                    if problem.code == "unauthenticated":
                        self._limits.count_address(address)
                    raise
        await self._app(scope, receive, send)


class CallerLimits:
    """Limits how often a credential may send requests, and tells the caller what is left."""

    def __init__(self, app: ASGIApp, limits: RequestLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            context = context_of(scope)
            if context.caller is not None:
                left = self._limits.count_credential(context.caller.credential)
                if left is not None:
                    context.extra["RateLimit"] = left
        await self._app(scope, receive, send)


class Callers:
    """Identifies callers. `origins` are those of our own pages."""

    def __init__(
        self, access: Access, verifier: Verifier, people: People, origins: Collection[str]
    ) -> None:
        self._verifier = verifier
        self._people = people
        self._origins = tuple(origins)
        self._required_scopes = frozenset(access.oauth.required_scopes if access.oauth else ())
        principal = access.anonymous
        self._anonymous = None if principal is None else verifier.anonymous(principal)
        self._https = access.resource.startswith("https:")

    async def identify(
        self, connection: HTTPConnection, headers: Mapping[str, str], method: str
    ) -> ApiCaller:
        """Return the caller of a request. Raises RequestProblemError, also for a forged form."""
        authorization = headers.get("authorization")
        try:
            if authorization is not None:
                return await self._by_header(authorization)
            secret = session_cookie(connection, https=self._https)
            session = await self._people.session(secret)
        except (CannotVerifyError, StoreError):
            retry = {"Retry-After": "10"}
            raise RequestProblemError("unavailable", CANNOT_CHECK, headers=retry) from None
        if session is None:
            return self._without_credential(headers)
        if method not in _SAFE_METHODS:
            self._refuse_forged(session, headers)
        return PersonCaller(session.person, f"session:{session.session_id}", session)

    async def _by_header(self, authorization: str) -> ApiCaller:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token or len(authorization) > _MAX_HEADER:
            raise _unauthenticated("Authorization must be `Bearer` and one API key or token.")
        if token.startswith(PERSON_MARK):
            person = await self._people.by_key(token)
            if person is None:
                raise _unauthenticated(_NOT_VALID)
            return PersonCaller(person, f"person:{person.tenant}:{person.name}")
        identity = await self._verifier.verify_token(token)
        if identity is None:
            raise _unauthenticated(_NOT_VALID)
        return self._agent(identity)

    def _agent(self, identity: VerifiedIdentity) -> AgentCaller:
        if not self._required_scopes.issubset(identity.scopes):
            needed = " ".join(sorted(self._required_scopes))
            headers = {
                "WWW-Authenticate": f'{_REALM}, error="insufficient_scope", scope="{needed}"'
            }
            detail = f"The token must have these scopes: {needed}."
            raise RequestProblemError("scope-required", detail, headers=headers)
        return AgentCaller(identity.principal, identity.token)

    def _without_credential(self, headers: Mapping[str, str]) -> ApiCaller:
        """Return the anonymous caller where that is allowed, but not for another site's page."""
        if self._anonymous is not None and same_origin(headers, self._origins):
            return self._agent(self._anonymous)
        raise _unauthenticated(_MISSING, sent=False)

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
