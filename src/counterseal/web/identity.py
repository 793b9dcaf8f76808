"""Who sends a request: an agent with an API key or an OAuth access token, or a person's browser.

`Verifier` checks credentials; `protect` puts the SDK's resource server, which asks it, in front of
the MCP endpoint; `principal_of` tells a handler who calls. Every request is checked: a revoked key
ends with the next request on this worker, and within a second on others. Browsers have the cookie
of a session, and say which page a request comes from.
"""

from __future__ import annotations

import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final
from urllib.parse import urlsplit

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

from counterseal.accounts import SESSION_SECONDS
from counterseal.canonical import canonical
from counterseal.config.tables import OAuthTable
from counterseal.errors import StoreError
from counterseal.operations.operator import RegistryFollower
from counterseal.proposal import Principal
from counterseal.registry.identities import MARK, IssuedKey
from counterseal.runtime import Runtime
from counterseal.web.oauth import IssuerUnavailableError, TokenRefusedError, Tokens

_log = logging.getLogger("counterseal.gateway")

_KEYS: Final = "counterseal:keys"
_ANONYMOUS: Final = "counterseal:anonymous"
"""Stand in the place of an issuer, which is always a URL."""
_TOKEN_SECONDS: Final = 60.0
"""Seconds for which a valid token is not checked again."""
_MAX_REMEMBERED: Final = 4096
CANNOT_CHECK: Final = "The credential can't be checked at the moment. Try again later."


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Which credentials an MCP endpoint accepts beside API keys."""

    resource: str
    """The endpoint's public URL: the audience of tokens."""
    oauth: OAuthTable | None = None
    anonymous: Principal | None = None
    """The principal of requests without a credential. Only for an endpoint bound to loopback."""


class VerifiedIdentity(AccessToken):
    """The verified credential of a request. `token` names the credential; it is not its secret."""

    principal: InstanceOf[Principal]


class CannotVerifyError(AuthenticationError):
    """Raised while a credential can't be checked. The request is refused, without blame."""


class Verifier(TokenVerifier):
    """Checks API keys of this runtime and tokens of the configured issuer.

    A key is looked up in the registry each time. A valid token is remembered for a minute, by its
    digest.
    """

    def __init__(
        self, access: Access, runtime: Runtime, *, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._access = access
        self._runtime = runtime
        # As clients read it in our metadata, and request tokens for it.
        self._resource = str(AnyHttpUrl(access.resource))
        self._tokens: Tokens | None = None
        if access.oauth is not None:
            self._tokens = Tokens(access.oauth, self._resource, clock=runtime.clock, steady=steady)
        self._steady = steady
        self._changes = RegistryFollower(runtime, steady)
        self._misses = RegistryFollower(runtime, steady)
        self._verified: OrderedDict[str, tuple[VerifiedIdentity, int, float]] = OrderedDict()
        """Tokens by their digest: the identity, when it expires, and when it is checked again, by
        the monotonic clock. A digest, so that the time of a lookup reveals nothing about a secret.
        """

    async def verify_token(self, token: str) -> VerifiedIdentity | None:
        """Return the identity of a credential; None if it is not valid. Raises CannotVerifyError.

        The name is the SDK's.
        """
        try:
            return await (self._by_key if token.startswith(MARK) else self._by_token)(token)
        except TokenRefusedError as error:
            _log.info("a credential was refused: %s", error)
            return None
        except (IssuerUnavailableError, StoreError) as error:
            raise CannotVerifyError(str(error)) from error

    async def still_valid(self, identity: AccessToken) -> bool:
        """Return whether a request with this identity would be accepted now. For streams."""
        if not isinstance(identity, VerifiedIdentity):
            return False
        if identity.expires_at is not None and identity.expires_at <= self._runtime.clock():
            return False
        if (identity.claims or {}).get("iss") != _KEYS:
            return True
        try:
            await self._changes.refresh()
        except StoreError:
            return False
        return self._runtime.registry.credential(identity.subject or "") is not None

    def anonymous(self, principal: Principal) -> VerifiedIdentity:
        """Return the identity of requests without a credential, where those are accepted."""
        return self._identity(principal, _ANONYMOUS, "anonymous", None, None)

    async def _by_key(self, text: str) -> VerifiedIdentity:
        key = IssuedKey.read(text)
        if key is None:
            raise TokenRefusedError("the API key is incomplete")
        registry = self._runtime.registry
        await self._changes.refresh()
        if registry.credential(key.key_id) is None:
            await self._misses.refresh()  # another worker may have issued it just now
        credential = registry.credential(key.key_id)
        if credential is None:
            raise TokenRefusedError(f"API key {key.key_id} is unknown or revoked")
        if not credential.matches(key):
            raise TokenRefusedError(f"API key {key.key_id} comes with a wrong secret")
        if credential.expired(datetime.fromtimestamp(self._runtime.clock(), UTC)):
            raise TokenRefusedError(f"API key {key.key_id} has expired")
        expires_at = credential.expires_at
        until = None if expires_at is None else int(expires_at.timestamp())
        name = f"{MARK}{key.key_id}"
        return self._identity(credential.principal, _KEYS, name, key.key_id, until)

    async def _by_token(self, text: str) -> VerifiedIdentity:
        oauth = self._access.oauth
        if self._tokens is None or oauth is None:
            raise TokenRefusedError("not an API key, and no token issuer is configured")
        digest = sha256(text.encode(errors="replace")).hexdigest()
        if digest in self._verified:
            identity, until, again_at = self._verified[digest]
            if self._runtime.clock() < until and self._steady() < again_at:
                return identity
            del self._verified[digest]
        again_at = self._steady() + _TOKEN_SECONDS
        principal, subject, until = await self._tokens.verify(text)
        identity = self._identity(principal, oauth.issuer, digest, subject, until)
        self._verified[digest] = identity, until, again_at
        if len(self._verified) > _MAX_REMEMBERED:
            self._verified.popitem(last=False)
        return identity

    def _identity(
        self, principal: Principal, issuer: str, name: str, subject: str | None, until: int | None
    ) -> VerifiedIdentity:
        scopes = set(principal.scopes)
        oauth = self._access.oauth
        if oauth is not None and issuer != oauth.issuer:
            scopes.update(oauth.required_scopes)  # required of tokens only
        return VerifiedIdentity(
            token=name,
            # The SDK recognises the owner of a session by these three: client, issuer, subject.
            client_id=canonical([principal.tenant, principal.agent, principal.user]).decode(),
            claims={"iss": issuer},
            subject=subject,
            scopes=sorted(scopes),
            expires_at=until,
            resource=self._resource,
            principal=principal,
        )


# --- the MCP endpoint -----------------------------------------------------------------------------


def principal_of() -> Principal:
    """Return the principal of the MCP request being handled. Raises RuntimeError without one."""
    identity = get_access_token()
    if not isinstance(identity, VerifiedIdentity):
        raise RuntimeError("no principal: the endpoint is not behind `protect`")
    return identity.principal


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectedEndpoint:
    """An MCP endpoint behind authentication."""

    endpoint: ASGIApp
    routes: tuple[Route, ...]
    """Public metadata that tells clients where tokens come from; none without an issuer."""
    verifier: Verifier


def protect(
    app: ASGIApp, access: Access, runtime: Runtime, *, steady: Callable[[], float] = time.monotonic
) -> ProtectedEndpoint:
    """Put the SDK's bearer authentication in front of an MCP endpoint."""
    verifier = Verifier(access, runtime, steady=steady)
    routes: list[Route] = []
    metadata: AnyHttpUrl | None = None
    scopes: list[str] = []
    if access.oauth is not None:
        scopes = list(access.oauth.required_scopes)
        # Parsed by the SDK, which keeps the issuer's URL as written: clients compare it so.
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
    endpoint = AuthenticationMiddleware(
        AuthContextMiddleware(RequireAuthMiddleware(app, scopes, metadata)),
        backend=_Backend(verifier, access),
        on_error=_cannot_verify,
    )
    return ProtectedEndpoint(endpoint=endpoint, routes=tuple(routes), verifier=verifier)


class _Backend(BearerAuthBackend):
    """The SDK's bearer authentication, with anonymous access and at most one header."""

    def __init__(self, verifier: Verifier, access: Access) -> None:
        super().__init__(verifier, resource_server_url=AnyHttpUrl(access.resource))
        principal = access.anonymous
        self._anonymous = None if principal is None else verifier.anonymous(principal)

    async def authenticate(
        self, conn: HTTPConnection
    ) -> tuple[AuthCredentials, AuthenticatedUser] | None:
        given = conn.headers.getlist("authorization")
        if not given and self._anonymous is not None:
            return AuthCredentials(self._anonymous.scopes), AuthenticatedUser(self._anonymous)
        if len(given) > 1:
            return None  # each party on the way could read another one of them
        result: tuple[AuthCredentials, AuthenticatedUser] | None = await super().authenticate(conn)
        return result


def _cannot_verify(_: HTTPConnection, __: AuthenticationError) -> Response:
    return JSONResponse(
        {"error": "temporarily_unavailable", "error_description": CANNOT_CHECK},
        status_code=503,
        headers={"Retry-After": "10"},
    )


# --- browsers -------------------------------------------------------------------------------------

_PATH: Final = re.compile(r"/(?:[!#-\[\]-~]*)")
"""Printable ASCII, without spaces, quotes and backslashes."""
_MAX_PATH: Final = 2000
_PORTS: Final = {"http": 80, "https": 443}


def cookie_name(*, https: bool) -> str:
    """Return the name of the session's cookie.

    Browsers accept a `__Host-` cookie only over https, and from exactly this host.
    """
    return "__Host-counterseal" if https else "counterseal"


def session_cookie(connection: HTTPConnection, *, https: bool) -> str | None:
    """Return the session's secret from the request's cookies.

    None if there are several: another site may have set the second one.
    """
    name = cookie_name(https=https)
    sent = "; ".join(connection.headers.getlist("cookie"))
    if sum(part.strip().startswith(f"{name}=") for part in sent.split(";")) != 1:
        return None
    return connection.cookies.get(name)


def set_session_cookie(response: Response, secret: str, *, https: bool) -> None:
    """Have the browser keep the session's secret. Plain http is for loopback only."""
    response.set_cookie(
        cookie_name(https=https),
        secret,
        max_age=int(SESSION_SECONDS),
        path="/",
        secure=https,
        httponly=True,
        samesite="lax",
    )


def drop_session_cookie(response: Response, *, https: bool) -> None:
    """Have the browser forget the session."""
    response.delete_cookie(
        cookie_name(https=https), path="/", secure=https, httponly=True, samesite="lax"
    )


def safe_next(url: str | None, otherwise: str = "/") -> str:
    r"""Return where to go after signing in: the URL if it is a path of ours, else `otherwise`.

    Refused is everything that a browser reads as another host: `//host`, `/\host`, a scheme, a line
    break.
    """
    if not url or len(url) > _MAX_PATH or _PATH.fullmatch(url) is None:
        return otherwise
    path = url.partition("?")[0].partition("#")[0]
    if "//" in path or path.rstrip("/") in ("/sign-in", "/sign-out"):
        return otherwise
    return url


def origin_of(url: str) -> str | None:
    """Return a URL's origin as browsers write it; None if it has none."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not parts.hostname:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    shown = "" if port in (None, _PORTS[parts.scheme]) else f":{port}"
    return f"{parts.scheme}://{host}{shown}"


def same_origin(headers: Mapping[str, str], own: Collection[str]) -> bool:
    """Return whether a request that changes something comes from one of our own pages.

    `own` are our origins. Browsers say where a request comes from; a client that says nothing is no
    browser, and sends no cookies but its own.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site not in ("same-origin", "none"):
        return False
    if origin is None or (origin == "null" and site is not None):
        return True  # a page that sends no referrer says `null`, also to itself
    known = {origin_of(one) for one in own} - {None}
    return origin_of(origin) in known
