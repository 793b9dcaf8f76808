"""From an HTTP request to the principal that makes it, by an API key or an OAuth access token.

`protect` puts the SDK's resource server in front of the MCP endpoint, and `principal_of` tells a
handler who calls. Every request is checked anew, so that a key that was revoked ends with the next
one. What is in a credential goes no further than this room.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from mcp.server.auth.middleware.auth_context import AuthContextMiddleware, get_access_token
from mcp.server.auth.middleware.bearer_auth import (
    AuthenticatedUser,
    BearerAuthBackend,
    RequireAuthMiddleware,
)
from mcp.server.auth.provider import AccessToken, TokenVerifier
from mcp.server.auth.routes import build_resource_metadata_url, create_protected_resource_routes
from mcp.server.auth.settings import AuthSettings
from pydantic import AnyHttpUrl, InstanceOf
from starlette.authentication import AuthCredentials, AuthenticationError
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from counterseal.canonical import canonical
from counterseal.errors import StoreError
from counterseal.gateway.access import Access, OAuth
from counterseal.gateway.issuer import IssuerError
from counterseal.gateway.tokens import RefusedTokenError, Tokens
from counterseal.operating import News
from counterseal.proposal import Principal
from counterseal.registry.credentials import MARK, Key
from counterseal.runtime import Runtime

__all__ = [
    "Access",
    "Door",
    "Identity",
    "OAuth",
    "Verifier",
    "principal_of",
    "protect",
]

_log = logging.getLogger("counterseal.gateway")

_KEYS: Final = "counterseal:keys"
_ANONYMOUS: Final = "counterseal:anonymous"
"""In the place of an issuer, which is always a URL."""


class Identity(AccessToken):
    """What a request was let in with. `token` is a name for the credential, not the credential."""

    principal: InstanceOf[Principal]


class UnsureError(AuthenticationError):
    """Whether a credential is good can't be told now: nobody is let in, and it is not its fault."""


class Verifier(TokenVerifier):
    """Tells whose credential it is: an API key of this runtime, or a token of the issuer."""

    def __init__(
        self,
        access: Access,
        runtime: Runtime,
        *,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access
        self._runtime = runtime
        # As clients read it in our metadata, and ask for tokens for it.
        self._resource = str(AnyHttpUrl(access.resource))
        self._tokens: Tokens | None = None
        if access.oauth is not None:
            self._tokens = Tokens(access.oauth, self._resource, clock=runtime.clock, steady=steady)
        self._news = News(runtime, steady)
        self._doubts = News(runtime, steady)

    async def verify_token(self, token: str) -> Identity | None:
        """None for a credential that is not good. UnsureError when that can't be told."""
        try:
            if token.startswith(MARK):
                return await self._by_key(token)
            return await self._by_token(token)
        except RefusedTokenError as error:
            _log.info("a credential was refused: %s", error)
            return None
        except (IssuerError, StoreError) as error:
            raise UnsureError(str(error)) from error

    async def still_valid(self, identity: AccessToken) -> bool:
        """Whether a request with it would be let in now: for streams, which outlast requests."""
        if not isinstance(identity, Identity):
            return False
        if identity.expires_at is not None and identity.expires_at <= self._runtime.clock():
            return False
        if _issuer(identity) != _KEYS:
            return True
        try:
            await self._news.heard()
        except StoreError:
            return False
        return self._runtime.registry.credential(identity.subject or "") is not None

    def anonymous(self, principal: Principal) -> Identity:
        """Somebody without a credential, where that is allowed."""
        return self._identity(principal, _ANONYMOUS, "anonymous", None, None)

    async def _by_key(self, text: str) -> Identity:
        key = Key.read(text)
        if key is None:
            raise RefusedTokenError("it is no whole API key")
        registry = self._runtime.registry
        await self._news.heard()
        if registry.credential(key.key_id) is None:
            await self._doubts.heard()  # it may have been issued just now, elsewhere
        found = registry.credential(key.key_id)
        if found is None:
            raise RefusedTokenError(f"API key {key.key_id} is not in force")
        if not found.matches(key):
            raise RefusedTokenError(f"API key {key.key_id} comes with a wrong secret")
        if found.expired(datetime.fromtimestamp(self._runtime.clock(), UTC)):
            raise RefusedTokenError(f"API key {key.key_id} has expired")
        until = None if found.expires_at is None else int(found.expires_at.timestamp())
        name = f"{MARK}{key.key_id}"
        return self._identity(found.principal, _KEYS, name, key.key_id, until)

    async def _by_token(self, text: str) -> Identity:
        if self._tokens is None or self._access.oauth is None:
            raise RefusedTokenError("it is no API key, and no issuer of tokens is configured")
        found = await self._tokens.verify(text)
        return self._identity(
            found.principal, self._access.oauth.issuer, found.mark, found.subject, found.expires_at
        )

    def _identity(
        self, principal: Principal, issuer: str, name: str, subject: str | None, until: int | None
    ) -> Identity:
        scopes = set(principal.scopes)
        if self._access.oauth is not None and issuer != self._access.oauth.issuer:
            scopes.update(self._access.oauth.required_scopes)  # these are asked of tokens only
        return Identity(
            token=name,
            # By these three the SDK knows whose session it is: client, issuer, subject.
            client_id=canonical([principal.tenant, principal.agent, principal.user]).decode(),
            claims={"iss": issuer},
            subject=subject,
            scopes=sorted(scopes),
            expires_at=until,
            resource=self._resource,
            principal=principal,
        )


def _issuer(identity: AccessToken) -> str | None:
    return (identity.claims or {}).get("iss")


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
    endpoint = AuthenticationMiddleware(guarded, backend=backend, on_error=_unsure)
    return Door(endpoint=endpoint, routes=tuple(routes), verifier=verifier)


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
