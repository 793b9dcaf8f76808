"""The settings of one upstream: how it is reached, with which credentials and limits.

Values of `env` and `headers` may name credentials as `{secret:name}`. They are resolved for the
tenant of each call, so an upstream that names one has separate connections for every tenant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from counterseal.contract.bindings import Placeholder, Template, template

RELAYS: Final = frozenset({"elicitation", "sampling", "roots"})
"""Kinds of questions that an upstream can be allowed to ask the client in front."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")
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
    """`package.module:server`, a server of the SDK in this process; or the server itself."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for a command, beside the SDK's list of harmless ones."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that are sent with every request to a URL."""
    cwd: str | Path | None = None
    """The working directory of a command."""
    relay: frozenset[str] = frozenset()
    """The questions it may ask the client in front: a subset of RELAYS."""
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

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"invalid upstream name {self.name!r}: expected a small letter, then up to 31 "
                "small letters, digits, - or _"
            )
        transports = [bool(self.command), bool(self.url), self.python is not None]
        if sum(transports) != 1:
            raise ValueError(f"upstream {self.name}: give one of command, url and python")
        if (self.env or self.cwd) and not self.command:
            raise ValueError(f"upstream {self.name}: env and cwd need a command")
        if self.headers and not self.url:
            raise ValueError(f"upstream {self.name}: headers need a url")
        unknown = sorted(set(self.relay) - RELAYS)
        if unknown:
            raise ValueError(
                f"upstream {self.name}: relay can't contain {unknown[0]!r}; allowed are "
                f"{', '.join(sorted(RELAYS))}"
            )
        if self.connections < 1 or not 0 < self.max_bytes <= self.hard_limit:
            raise ValueError(
                f"upstream {self.name}: connections must be at least 1, and max_bytes more than 0 "
                "and at most hard_limit"
            )
        _ = self.secrets  # raises ValueError for a template that can't be read

    @cached_property
    def _templates(self) -> dict[str, Template]:
        templates: dict[str, Template] = {}
        for key, value in {**self.env, **self.headers}.items():
            try:
                templates[key] = template(value)
            except ValueError as error:
                raise ValueError(f"upstream {self.name}: {key}: {error}") from None
            other = [part for part in templates[key].placeholders if not part.secret]
            if other:
                raise ValueError(
                    f"upstream {self.name}: {key}: unknown placeholder {other[0]}; "
                    "a credential is written {secret:name}"
                )
        return templates

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
