"""The tables `[gateway]` and `[gateway.oauth]`: where it listens, and whom it believes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from counterseal.config.tables import Name, Table
from counterseal.config.upstreams import is_loopback, web_fault
from counterseal.contract.egress import literal

__all__ = ["ALGORITHMS", "ClaimsTable", "GatewayTable", "OAuthTable"]

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""All of them are checked with a public key: whoever can check a token can't make one."""

_HOST: Final = re.compile(r"[A-Za-z0-9._-]+")
_ALLOWED: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:([0-9]{1,5}|\*))?")


class ClaimsTable(Table):
    """Which claim of a token says what. Scopes come from `scope` or `scp`."""

    tenant: Name = "tenant"
    agent: Name = "client_id"
    user: Name = "sub"
    roles: Name = "roles"


class OAuthTable(Table):
    """Whose bearer tokens are believed."""

    issuer: Name
    audience: Name | None = None
    """Whom a token has to be for; left out: the address of the endpoint."""
    jwks_url: Name | None = None
    """Where the issuer's keys are; left out: as its metadata says."""
    algorithms: tuple[str, ...] = Field(default=("RS256", "ES256", "EdDSA"), min_length=1)
    required_scopes: tuple[Name, ...] = ()
    claims: ClaimsTable = ClaimsTable()

    @model_validator(mode="after")
    def _usable(self) -> OAuthTable:
        for fault in self._faults():
            raise ValueError(fault)
        return self

    def _faults(self) -> Iterator[str]:
        for name in ("issuer", "jwks_url"):
            url = getattr(self, name)
            if url is None:
                continue
            if fault := web_fault(url):
                yield f"{name}: {fault}"
            elif urlsplit(url).scheme == "http" and not is_loopback(url):
                yield f"{name}: {url!r} would be asked in the open; keys are fetched over https"
        if urlsplit(self.issuer).query:
            yield f"issuer: {self.issuer!r} holds a query; an issuer has none"
        for name in self.algorithms:
            if name not in ALGORITHMS:
                yield f"algorithms: {name!r} is none of {', '.join(ALGORITHMS)}"


class GatewayTable(Table):
    """Where `counterseal serve` listens, and what stands in its answers."""

    host: Name = "127.0.0.1"
    port: Annotated[int, Field(strict=True, ge=0, le=65_535)] = 8787
    """0 takes any that is free."""
    public_url: Name | None = None
    """How clients and people reach it; left out: http and the host and port that it listens on."""
    allowed_hosts: tuple[Name, ...] = ()
    """Names that it may be called by, beside this machine's own and that of `public_url`."""
    allowed_origins: tuple[Name, ...] = ()
    """Web pages that may call it, by their origin."""
    trusted_proxies: tuple[Name, ...] = ()
    """Addresses or networks of proxies that are believed whom a request comes from."""
    approval_wait_seconds: Annotated[float, Field(ge=0, le=300, allow_inf_nan=False)] = 20
    """A call waits at most so long for a person."""
    lock: Name = "counterseal.lock"
    """The file of accepted definitions, as seen from the configuration file."""
    oauth: OAuthTable | None = None

    @model_validator(mode="after")
    def _usable(self) -> GatewayTable:
        for fault in self._faults():
            raise ValueError(fault)
        return self

    def _faults(self) -> Iterator[str]:
        if not _HOST.fullmatch(self.host) and literal(self.host) is None:
            yield f"host: {self.host!r} is no host; write a name or an address, without a port"
        if self.public_url is not None:
            if fault := web_fault(self.public_url):
                yield f"public_url: {fault}"
            elif urlsplit(self.public_url).query:
                yield f"public_url: {self.public_url!r} holds a query; write where it begins"
        for name in self.allowed_hosts:
            if not _ALLOWED.fullmatch(name):
                yield f"allowed_hosts: {name!r} is not of the form host, host:port or host:*"
        for name in self.allowed_origins:
            parts = None if web_fault(name) else urlsplit(name)
            if parts is None or parts.path or parts.query:
                yield f"allowed_origins: {name!r} is not of the form https://host or with :port"
        for name in filter(_is_no_network, self.trusted_proxies):
            yield f"trusted_proxies: {name!r} is no address and no network like 10.0.0.0/8"


def _is_no_network(name: str) -> bool:
    try:
        ip_network(name)
    except ValueError:
        return True
    return False
