"""OAuth access tokens: which issuer is trusted, its public keys, and the principal of a token.

A token is accepted if it is a JWT of the configured issuer, for this resource, signed with one of
the issuer's keys, within its time, and if its claims name a principal.

The keys are fetched from the issuer, or from the address in its metadata, and from nowhere else.
Responses are bounded in size and time. While the issuer can't be reached, known keys stay valid for
an hour.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import jiter
import jwt

from counterseal.config.tables import OAuthTable, is_loopback
from counterseal.proposal import Principal, RiskLevel
from counterseal.registry.identities import reserved

_log = logging.getLogger("counterseal.gateway")

_MAX_TOKEN: Final = 16 * 1024
_MAX_NAME: Final = 256
_LEEWAY: Final = 10.0
"""Seconds by which clocks may differ at the beginning of a token's time; its end is exact."""
_KEYS_FRESH: Final = 300.0
"""Seconds after which keys are fetched again."""
_KEYS_TRUSTED: Final = 3600.0
"""Seconds after which keys that could not be fetched again are no longer trusted."""
_FETCH_PAUSE: Final = 10.0
"""Seconds between two attempts to fetch, whatever tokens arrive meanwhile."""
_FETCH_TIMEOUT: Final = 5.0
_MAX_RESPONSE: Final = 256 * 1024
_MAX_KEYS: Final = 100


class IssuerUnavailableError(Exception):
    """Raised when a token can't be checked because its issuer can't be reached."""


class TokenRefusedError(Exception):
    """Raised for a token that is not valid. The message is for the log and quotes no claim."""


# --- the issuer's keys ----------------------------------------------------------------------------


class Issuer:
    """The public keys of one issuer, by their id."""

    def __init__(self, oauth: OAuthTable, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._oauth = oauth
        self._clock = clock
        self._keys: tuple[Mapping[str, Any], ...] = ()
        self._fetched: float | None = None
        self._tried: float | None = None
        self._fetching = asyncio.Lock()

    async def key(self, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
        """Return the key that a token's header names; None if the issuer has no such key.

        Raises IssuerUnavailableError when the known keys are too old to be trusted.
        """
        key = self._find(kid, algorithm)
        if key is None or self._age() >= _KEYS_FRESH:
            await self._refresh()
            key = self._find(kid, algorithm)
        if self._age() >= _KEYS_TRUSTED:
            raise IssuerUnavailableError(f"can't fetch the keys of {self._oauth.issuer}")
        return key

    def _age(self) -> float:
        return float("inf") if self._fetched is None else self._clock() - self._fetched

    def _find(self, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
        keys = []
        for key in self._keys:
            signs = key.get("use", "sig") == "sig" and key.get("alg", algorithm) == algorithm
            if signs and kid in (None, key.get("kid")):
                with suppress(jwt.PyJWTError):  # of another kind than the algorithm needs
                    keys.append(jwt.PyJWK(dict(key), algorithm))
        return keys[0] if len(keys) == 1 else None  # of several, a token has to name one

    async def _refresh(self) -> None:
        """Fetch the keys, unless that was tried just now. A failure keeps the known ones."""
        async with self._fetching:
            if self._tried is not None and self._clock() - self._tried < _FETCH_PAUSE:
                return
            try:
                async with (
                    asyncio.timeout(_FETCH_TIMEOUT),
                    httpx.AsyncClient(trust_env=False) as client,
                ):
                    keys = await self._fetch(client)
            except (OSError, ValueError, TimeoutError, httpx.HTTPError, httpx.InvalidURL) as error:
                reason = str(error) or type(error).__name__
                _log.warning("can't fetch the keys of %s: %s", self._oauth.issuer, reason)
            else:
                self._keys, self._fetched = keys, self._clock()
            finally:
                self._tried = self._clock()

    async def _fetch(self, client: httpx.AsyncClient) -> tuple[Mapping[str, Any], ...]:
        url = self._oauth.jwks_url or await self._discover(client)
        keys = (await _fetch_object(client, url)).get("keys")
        if not isinstance(keys, list) or len(keys) > _MAX_KEYS:
            raise ValueError(f"{url} must have `keys`, a list of at most {_MAX_KEYS}")
        return tuple(key for key in keys if isinstance(key, dict))

    async def _discover(self, client: httpx.AsyncClient) -> str:
        """Return the address of the keys from the issuer's metadata (RFC 8414, else OpenID)."""
        first_error: Exception | None = None
        parts = urlsplit(self._oauth.issuer)
        origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
        for url in (
            f"{origin}/.well-known/oauth-authorization-server{path}",
            f"{origin}{path}/.well-known/openid-configuration",
        ):
            try:
                metadata = await _fetch_object(client, url)
            except (ValueError, httpx.HTTPError) as error:
                first_error = first_error or error
                continue
            if metadata.get("issuer") != self._oauth.issuer:
                raise ValueError(f"{url} names another issuer: {metadata.get('issuer')!r}")
            keys = str(metadata.get("jwks_uri", ""))
            parts = urlsplit(keys)
            secure = parts.scheme == "https" and parts.netloc
            if not secure and not (parts.scheme == "http" and is_loopback(keys)):
                raise ValueError(
                    f"jwks_uri in {url}: {keys!r} is not an https URL; plain http is for loopback "
                    "only"
                )
            return keys
        raise ValueError(f"the issuer's metadata can't be read: {first_error}")


async def _fetch_object(client: httpx.AsyncClient, url: str) -> dict[str, Any]:
    """Return the JSON object at a URL. Raises ValueError if it is none, or too large."""
    # Without compression, so that a small response can't become a large one.
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    async with client.stream("GET", url, headers=headers) as response:
        if response.status_code != httpx.codes.OK:
            raise ValueError(f"{url} answers {response.status_code}")
        body = b""
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > _MAX_RESPONSE:
                raise ValueError(f"{url} answers with more than {_MAX_RESPONSE:,} bytes")
    value = jiter.from_json(body)
    if not isinstance(value, dict):
        raise ValueError(f"{url} does not answer with a JSON object")
    return value


# --- tokens ---------------------------------------------------------------------------------------


class Tokens:
    """Checks tokens. The verifier remembers which were valid."""

    def __init__(
        self,
        oauth: OAuthTable,
        resource: str,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._oauth = oauth
        audience = (oauth.audience or resource).rstrip("/")
        self._audiences = (audience, f"{audience}/")
        self._issuer = Issuer(oauth, clock=steady)
        self._clock = clock

    async def verify(self, text: str) -> tuple[Principal, str | None, int]:
        """Return the principal, the subject and the expiry of a token.

        Raises TokenRefusedError, or IssuerUnavailableError.
        """
        claims = await self._checked_claims(text)
        principal = _principal(claims, self._oauth.claims.model_dump())
        if int(claims["exp"]) <= self._clock():
            raise TokenRefusedError("the token has expired")
        subject = claims.get("sub")
        return principal, subject if isinstance(subject, str) else None, int(claims["exp"])

    async def _checked_claims(self, text: str) -> Mapping[str, Any]:
        """Return the claims of a token after checking its signature, issuer, audience and time."""
        if len(text) > _MAX_TOKEN:
            raise TokenRefusedError(f"the token is longer than {_MAX_TOKEN:,} characters")
        try:
            header = jwt.get_unverified_header(text)
            algorithm = header.get("alg")
            if algorithm not in self._oauth.algorithms:
                raise TokenRefusedError("the token's algorithm is not allowed")
            key = await self._issuer.key(header.get("kid"), algorithm)
            if key is None:
                raise TokenRefusedError("the issuer has no key with the token's id")
            claims: Mapping[str, Any] = jwt.decode(
                text,
                key,
                algorithms=[algorithm],
                audience=self._audiences,
                issuer=self._oauth.issuer,
                leeway=_LEEWAY,
                options={"require": ["exp", "iss", "aud"], "enforce_minimum_key_length": True},
            )
        except (jwt.PyJWTError, ValueError, OverflowError) as error:
            raise TokenRefusedError(type(error).__name__) from None
        return claims


def _principal(claims: Mapping[str, Any], names: Mapping[str, str | None]) -> Principal:
    """Return the principal that a token's claims name. Raises TokenRefusedError."""
    tenant, agent, user = (_name(claims, names, key) for key in ("tenant", "agent", "user"))
    if tenant is None or agent is None:
        raise TokenRefusedError("the token names no tenant, or no agent")
    level = _name(claims, names, "risk_level")
    if level is None and names["risk_level"] is not None:
        raise TokenRefusedError("the token names no risk level")
    roles = _claim(claims, names["roles"])
    scopes = claims.get("scope", claims.get("scp"))
    try:
        principal = Principal(
            tenant=tenant,
            agent=agent,
            user=user,
            roles=[roles] if isinstance(roles, str) else roles or (),
            scopes=scopes.split() if isinstance(scopes, str) else scopes or (),
            risk_level=level or RiskLevel.LOW,
        )
    except (TypeError, ValueError):
        raise TokenRefusedError(
            "the token has an invalid tenant, agent, user, role, scope or risk level"
        ) from None
    fault = reserved(principal)
    if fault is not None:
        raise TokenRefusedError(fault)
    return principal


def _name(claims: Mapping[str, Any], names: Mapping[str, str | None], key: str) -> str | None:
    value = _claim(claims, names[key])
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > _MAX_NAME:
        raise TokenRefusedError(
            f"the claim for the {key} must be a text of at most {_MAX_NAME} characters"
        )
    return value


def _claim(claims: Mapping[str, Any], name: str | None) -> Any:
    """Return the claim of that name, else the value that the dots in the name lead to."""
    if name is None:
        return None
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
