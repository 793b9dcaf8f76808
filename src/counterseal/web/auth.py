"""From an HTTP request to the principal that makes it, by an API key or an OAuth access token.

`protect` puts the SDK's resource server in front of the MCP endpoint, and `principal_of` tells a
handler who calls. Every request is checked anew, so that a key that was revoked ends with the next
one; but whose credential was good a moment ago goes past the SDK's middleware, by a shorter way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mcp.server.auth.middleware.auth_context import (
    AuthContextMiddleware,
    auth_context_var,
    get_access_token,
)
from mcp.server.auth.middleware.bearer_auth import (
    AuthenticatedUser,
    BearerAuthBackend,
    RequireAuthMiddleware,
)
from mcp.server.auth.routes import build_resource_metadata_url, create_protected_resource_routes
from mcp.server.auth.settings import AuthSettings
from pydantic import AnyHttpUrl
from starlette.authentication import AuthCredentials, AuthenticationError
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from counterseal.proposal import Principal
from counterseal.runtime import Runtime
from counterseal.web.access import Access, OAuth
from counterseal.web.verifying import Good, Identity, UnsureError, Verifier

__all__ = [
    "Access",
    "Door",
    "Good",
    "Identity",
    "OAuth",
    "UnsureError",
    "Verifier",
    "principal_of",
    "protect",
]


def principal_of() -> Principal:
    """Who makes the request that is being handled. RuntimeError where nobody was asked for it."""
    identity = get_access_token()
    if not isinstance(identity, Identity):
        raise RuntimeError("there is no principal here: the endpoint is not behind `protect`")
    return identity.principal


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """An MCP endpoint behind authentication, and what belongs to it."""

    endpoint: ASGIApp
    """To be put on the endpoint's route."""
    routes: tuple[Route, ...]
    """What tells clients where tokens come from, open to all; none where there are no tokens."""
    verifier: Verifier


def protect(
    app: ASGIApp,
    access: Access,
    runtime: Runtime,
    *,
    steady: Callable[[], float] = time.monotonic,
) -> Door:
    """Let nobody reach an MCP endpoint but those whom `access` lets in."""
    verifier = Verifier(access, runtime, steady=steady)
    routes: list[Route] = []
    metadata: AnyHttpUrl | None = None
    scopes: list[str] = []
    if access.oauth is not None:
        scopes = list(access.oauth.required_scopes)
        # Read by the SDK, which keeps an issuer's URL as it is written: clients compare it so.
        issuer = AuthSettings.model_validate(
            {
                "issuer_url": access.oauth.issuer,
                "resource_server_url": access.resource,
                "validate_token_resource": True,
            }
        ).issuer_url
        resource = AnyHttpUrl(access.resource)
        metadata = build_resource_metadata_url(resource)
        routes = create_protected_resource_routes(resource, [issuer], scopes or None)
    guarded = AuthContextMiddleware(RequireAuthMiddleware(app, scopes, metadata))
    backend = _Backend(verifier, access)
    checked = AuthenticationMiddleware(guarded, backend=backend, on_error=_unsure)
    endpoint = _Known(app, checked, verifier, scopes)
    return Door(endpoint=endpoint, routes=tuple(routes), verifier=verifier)


class _Known:
    """Lets those straight in who were let in before, and would be now; others are `checked`."""

    def __init__(
        self, app: ASGIApp, checked: ASGIApp, verifier: Verifier, scopes: Sequence[str]
    ) -> None:
        self._app = app
        self._checked = checked
        self._verifier = verifier
        self._scopes = frozenset(scopes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        good = None
        if len(given) == 1 and given[0][:7].lower() == b"bearer ":
            good = self._verifier.recalled(given[0][7:])
        if good is None or not self._scopes.issubset(good.identity.scopes):
            await self._checked(scope, receive, send)
            return
        identity = good.identity
        user = AuthenticatedUser(identity)
        scope["auth"], scope["user"] = AuthCredentials(identity.scopes), user
        before = auth_context_var.set(user)
        try:
            await self._app(scope, receive, send)
        finally:
            auth_context_var.reset(before)


class _Backend(BearerAuthBackend):
    """The SDK's, which reads the header and asks the verifier; with an eye on odd headers."""

    def __init__(self, verifier: Verifier, access: Access) -> None:
        super().__init__(verifier, resource_server_url=AnyHttpUrl(access.resource))
        who = access.anonymous
        self._anonymous = None if who is None else verifier.anonymous(who)

    async def authenticate(
        self, conn: HTTPConnection
    ) -> tuple[AuthCredentials, AuthenticatedUser] | None:
        given = conn.headers.getlist("authorization")
        if not given and self._anonymous is not None:
            return AuthCredentials(self._anonymous.scopes), AuthenticatedUser(self._anonymous)
        if len(given) > 1:
            return None  # which one is meant, everybody on the way may answer differently
        found: tuple[AuthCredentials, AuthenticatedUser] | None = await super().authenticate(conn)
        return found


def _unsure(_: HTTPConnection, __: AuthenticationError) -> Response:
    told = "It can't be told now whether this credential is good. Try again later."
    return JSONResponse(
        {"error": "temporarily_unavailable", "error_description": told},
        status_code=503,
        headers={"Retry-After": "10"},
    )
