"""The settings of one upstream: how it is reached, with which credentials and limits.

The configuration has checked them (`config/tables.py`). Values of `env` and `headers` may name
credentials as `{secret:name}`. They are resolved for the tenant of each call, so an upstream that
names one has separate connections for every tenant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from counterseal.contract.bindings import Placeholder, Template, template

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class UpstreamSettings:
    """One upstream. It has exactly one of `command`, `url` and `python`."""

    name: str
    command: tuple[str, ...] = ()
    """A program and its arguments; it speaks MCP over its standard input and output."""
    url: str = ""
    """The address of a server that speaks MCP over streamable HTTP."""
    python: Any = None
    """A server of the SDK in this process."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for a command, beside the SDK's list of harmless ones."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that are sent with every request to a URL."""
    cwd: str | Path | None = None
    """The working directory of a command."""
    relay: frozenset[str] = frozenset()
    """The questions it may ask the client in front: elicitation, sampling, roots."""
    connections: int = 4
    """The most connections at once (for each tenant, where a secret is named). One connection
    serves many calls; more are opened only where a call needs one of its own."""
    tenants: tuple[str, ...] = ()
    """The tenants that may use it. Its tools are listed with the credentials of the first."""
    max_bytes: int = 10 * _MIB
    """The longest answer; a longer one is refused."""
    hard_limit: int = 32 * _MIB
    """The most bytes that are read of one message. The connection is closed after that."""
    connect_timeout: float = 30.0
    """Seconds for the start and the handshake."""
    request_timeout: float = 60.0
    """Seconds for a request that is no tool call: a list, a resource, a prompt."""

    @cached_property
    def _templates(self) -> dict[str, Template]:
        return {key: template(value) for key, value in {**self.env, **self.headers}.items()}

    @cached_property
    def secrets(self) -> frozenset[str]:
        """The names of the credentials that `env` and `headers` need."""
        return frozenset(
            part.name for value in self._templates.values() for part in value.placeholders
        )

    def resolved(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return `env` or `headers` with these credentials filled in."""
        return {
            key: "".join(
                values[part.name] if isinstance(part, Placeholder) else part for part in value.parts
            )
            for key, value in self._templates.items()
        }
