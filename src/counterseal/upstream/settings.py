"""What is configured of one upstream: how it is reached, with which credentials and bounds.

Values of `env` and `headers` may name credentials as `{secret:name}`. They are resolved for the
tenant whose call it is, so an upstream that names one has connections of its own for every tenant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from counterseal.contract.bindings import Placeholder, Template, template

__all__ = ["RELAYS", "Settings"]

RELAYS: Final = frozenset({"elicitation", "sampling", "roots"})
"""What an upstream may ask back of the client in front, where it is let."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One upstream. It is a `command`, or a `url`, or `python`: exactly one of them."""

    name: str
    command: tuple[str, ...] = ()
    """A program that speaks MCP over its standard input and output, with its arguments."""
    url: str = ""
    """Of a server that speaks MCP over streamable HTTP."""
    python: Any = None
    """`package.module:server`, a server of the SDK's in this process; or the server itself."""
    env: Mapping[str, str] = field(default_factory=dict)
    """For a command: what it is given beside the few variables that are safe for anybody."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """For a URL: sent with every request."""
    cwd: str | Path | None = None
    """For a command: where it is started."""
    relay: frozenset[str] = frozenset()
    """What it may ask back of the client in front: some of RELAYS."""
    connections: int = 4
    """At most so many at once (for each tenant, where a secret is named). One serves many calls;
    more are opened only where a call needs one for itself."""
    tenants: tuple[str, ...] = ()
    """For whom. With the credentials of the first its tools are listed."""
    max_bytes: int = 10 * _MIB
    """An answer that is longer is refused."""
    hard_limit: int = 32 * _MIB
    """What is longer is not even read to its end: the connection is given up."""
    connect_timeout: float = 30.0
    """Seconds until it has to be there: its start and its handshake."""
    request_timeout: float = 60.0
    """Seconds for what is no call: a list, a resource, a prompt."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"an upstream can't be called {self.name!r}: a small letter, then up to 31 small "
                "letters, digits, - or _"
            )
        ways = [bool(self.command), bool(self.url), self.python is not None]
        if sum(ways) != 1:
            raise ValueError(f"upstream {self.name}: give one of command, url and python")
        if (self.env or self.cwd) and not self.command:
            raise ValueError(f"upstream {self.name}: env and cwd are for a command")
        if self.headers and not self.url:
            raise ValueError(f"upstream {self.name}: headers are for a url")
        unknown = sorted(set(self.relay) - RELAYS)
        if unknown:
            raise ValueError(
                f"upstream {self.name}: relay can't hold {unknown[0]!r}; it knows "
                f"{', '.join(sorted(RELAYS))}"
            )
        if self.connections < 1 or not 0 < self.max_bytes <= self.hard_limit:
            raise ValueError(
                f"upstream {self.name}: connections must be at least 1, and max_bytes more than 0 "
                "and not over hard_limit"
            )
        _ = self.secrets  # a template that can't be read is refused here

    @cached_property
    def _templates(self) -> dict[str, Template]:
        written: dict[str, Template] = {}
        for key, value in {**self.env, **self.headers}.items():
            try:
                written[key] = template(value)
            except ValueError as error:
                raise ValueError(f"upstream {self.name}: {key}: {error}") from None
            other = [found for found in written[key].placeholders if not found.secret]
            if other:
                raise ValueError(
                    f"upstream {self.name}: {key}: {other[0]} is not known here; "
                    "a credential is written {secret:name}"
                )
        return written

    @cached_property
    def secrets(self) -> frozenset[str]:
        """The credentials that it needs."""
        return frozenset(
            found.name for one in self._templates.values() for found in one.placeholders
        )

    def filled(self, values: Mapping[str, str]) -> dict[str, str]:
        """`env`, or `headers`, with credentials in the place of their names."""
        return {
            key: "".join(
                values[part.name] if isinstance(part, Placeholder) else part for part in one.parts
            )
            for key, one in self._templates.items()
        }
