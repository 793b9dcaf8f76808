"""OAuth access tokens: whether one is good, and who its bearer is.

A token is a JWT of the configured issuer, for this resource, signed with one of the issuer's keys,
within its time; its claims name a principal. Everything else is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple

import jwt

from counterseal.proposal import Principal
from counterseal.registry.identities import reserved
from counterseal.web.access import OAuth
from counterseal.web.issuer import Issuer

__all__ = ["RefusedTokenError", "Tokens", "Verified", "principal_from"]

_LONGEST: Final = 16 * 1024
_LONGEST_NAME: Final = 256
_LEEWAY: Final = 10.0
"""Seconds by which clocks may differ where a token begins. Its end is its end."""


class RefusedTokenError(Exception):
    """Why a token is refused, for the log. Says nothing of what is in it but names of claims."""


class Verified(NamedTuple):
    """A token that was found good."""

    principal: Principal
    subject: str | None
    expires_at: int
    mark: str
    """Something to know it by that does not tell it."""


class Tokens:
    """Checks tokens. To remember which were good is the verifier's."""

    def __init__(
        self,
        oauth: OAuth,
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

    async def verify(self, text: str) -> Verified:
        """RefusedTokenError; IssuerError when that can't be told now."""
        mark = sha256(text.encode(errors="replace")).hexdigest()
        found = self._read(await self._checked(text), mark)
        if found.expires_at <= self._clock():
            raise RefusedTokenError("it has expired")
        return found

    async def _checked(self, text: str) -> Mapping[str, Any]:
        """The claims of a token that is what it says."""
        if len(text) > _LONGEST:
            raise RefusedTokenError(f"it is longer than {_LONGEST:,} characters")
        try:
            header = jwt.get_unverified_header(text)
            algorithm = header.get("alg")
            if algorithm not in self._oauth.algorithms:
                raise RefusedTokenError("its algorithm is not allowed")
            key = await self._issuer.key(header.get("kid"), algorithm)
            if key is None:
                raise RefusedTokenError("its issuer has no such key")
            claims: Mapping[str, Any] = jwt.decode(
                text,
                key,
                algorithms=[algorithm],
                audience=self._audiences,
                issuer=self._oauth.issuer,
                leeway=_LEEWAY,
                options={
                    "require": ["exp", "iss", "aud"],
                    "enforce_minimum_key_length": True,
                },
            )
        except (jwt.PyJWTError, ValueError, OverflowError) as error:
            raise RefusedTokenError(type(error).__name__) from None
        return claims

    def _read(self, claims: Mapping[str, Any], mark: str) -> Verified:
        subject = claims.get("sub")
        return Verified(
            principal_from(claims, self._oauth.claims),
            subject if isinstance(subject, str) else None,
            int(claims["exp"]),
            mark,
        )


def principal_from(claims: Mapping[str, Any], names: Mapping[str, str]) -> Principal:
    """The principal that a token's claims name. RefusedTokenError when they name none."""
    tenant, agent, user = (_name(claims, names, one) for one in ("tenant", "agent", "user"))
    if tenant is None or agent is None:
        raise RefusedTokenError("it names no tenant, or no agent")
    roles = _claim(claims, names["roles"]) if "roles" in names else None
    scopes = claims.get("scope", claims.get("scp"))
    try:
        principal = Principal(
            tenant=tenant,
            agent=agent,
            user=user,
            roles=[roles] if isinstance(roles, str) else roles or (),
            scopes=scopes.split() if isinstance(scopes, str) else scopes or (),
        )
    except (TypeError, ValueError):
        raise RefusedTokenError("its tenant, agent, user, roles or scopes are none") from None
    wrong = reserved(principal)
    if wrong is not None:
        raise RefusedTokenError(wrong)
    return principal


def _name(claims: Mapping[str, Any], names: Mapping[str, str], which: str) -> str | None:
    found = _claim(claims, names[which]) if which in names else None
    if found is None:
        return None
    if not isinstance(found, str) or len(found) > _LONGEST_NAME:
        raise RefusedTokenError(f"its claim for the {which} is no short text")
    return found


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """A claim that is called that, else where the dots in its name lead."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
