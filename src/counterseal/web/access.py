"""Who is let in, as settings: whose tokens are believed, and who needs none.

Plain data that checks itself. `auth` acts on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from counterseal.config.tables import ALGORITHMS, is_loopback
from counterseal.proposal import Principal

__all__ = ["CLAIMS", "Access", "OAuth", "url_fault"]

CLAIMS: Final[Mapping[str, str]] = MappingProxyType(
    {"tenant": "tenant", "agent": "client_id", "user": "sub", "roles": "roles"}
)
"""Where a token says who its bearer is, unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuth:
    """An authorization server whose JWT access tokens are believed. ValueError names a fault."""

    issuer: str
    audience: str = ""
    """Whom a token has to be for; empty: our resource."""
    jwks_url: str = ""
    """Where its keys are; empty: as its metadata says."""
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    required_scopes: tuple[str, ...] = ()
    """What every token must hold. API keys are made by operators, and need none of them."""
    claims: Mapping[str, str] = field(default_factory=lambda: CLAIMS)
    """Which claim says what. A name with dots leads into objects, unless a claim is called that."""

    def __post_init__(self) -> None:
        for name, url in (("issuer", self.issuer), ("jwks_url", self.jwks_url)):
            fault = url_fault(url) if url or name == "issuer" else None
            if fault is not None:
                raise ValueError(f"{name}: {fault}")
        unknown = set(self.algorithms) - set(ALGORITHMS)
        if unknown or not self.algorithms:
            # With a shared secret, whoever can check a token can make one.
            raise ValueError(f"algorithms: takes some of {', '.join(ALGORITHMS)}")
        if not {"tenant", "agent"} <= self.claims.keys() <= CLAIMS.keys():
            raise ValueError("claims: takes tenant and agent, and perhaps user and roles")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who is let in to one MCP endpoint. API keys always are."""

    resource: str
    """The endpoint's public URL: what tokens have to be for."""
    oauth: OAuth | None = None
    anonymous: Principal | None = None
    """Who comes without any credential. Only for an endpoint that is bound to loopback."""


def url_fault(url: str) -> str | None:
    """Why keys can't be fetched from there, if so."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.netloc:
        return None
    if parts.scheme == "http" and is_loopback(url):
        return None
    return f"{url!r} is not an https URL; plain http is for loopback only"
