"""The list of an upstream's tools: all pages of it, within bounds; and what a connection has shown.

A call is for a tool in the form that somebody accepted. So each connection is asked for its list
before the first call over it: a program that was started again, or that serves another tenant, may
say something else than the one before.

Since 2026-07-28 a tool's schema may ask that arguments are repeated in headers of the request, for
whoever passes it on to read. What it asks is learned here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import to_json

from counterseal.contract.sources.mcp import Definition
from counterseal.errors import NotSentError, ResponseTooLargeError

__all__ = ["Headers", "Shown", "tools"]

_MOST_PAGES: Final = 100
_MOST_TOOLS: Final = 10_000
_MOST_BYTES: Final = 32 * 1024 * 1024
_log = logging.getLogger(__name__)

Headers = dict[str, dict[tuple[str, ...], str]]
"""By tool: which arguments are repeated in which headers."""
Send = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


class Shown:
    """The tools that an upstream has shown on one connection, as it has them there."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tools: dict[str, dict[str, Any]] | None = None
        self._hashes: dict[str, str | None] = {}
        self._headers: Headers = {}
        self._turn = 0
        self._listing = asyncio.Lock()

    def forget(self) -> None:
        """It says that they have changed."""
        self._tools = None
        self._turn += 1

    async def all(self, send: Send, version: str) -> list[dict[str, Any]]:
        """Ask for all of them."""
        async with self._listing:
            return await self._list(send, version)

    def has_shown(self, tool: str, definition: str) -> bool:
        """Whether the tool is what its hash says, as far as is known without asking."""
        return self._tools is not None and self._hash(self._tools, tool) == definition

    async def check(self, tool: str, definition: str, send: Send, version: str) -> None:
        """NotSentError: on this connection the tool is not what its hash says."""
        if self._tools is None:
            async with self._listing:
                if self._tools is None:  # whoever came first has asked for all of us
                    await self._list(send, version)
        if self._tools is None:
            raise NotSentError(f"upstream {self._name} goes on changing its tools")
        if self._hash(self._tools, tool) != definition:
            raise NotSentError(f"upstream {self._name} has {tool} in a form that nobody accepted")

    def headers(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, str]:
        """What of a call's arguments is repeated in headers."""
        asked = self._headers.get(tool)
        return mcp_param_headers(asked, arguments) if asked else {}

    async def _list(self, send: Send, version: str) -> list[dict[str, Any]]:
        turn = self._turn
        found, self._headers = await tools(self._name, send, version)
        if turn == self._turn:
            # Of two of one name the first counts, here and for whoever accepts them.
            self._tools = {one["name"]: one for one in reversed(found)}
            self._hashes = {}
        return found

    def _hash(self, shown: Mapping[str, dict[str, Any]], tool: str) -> str | None:
        if tool not in self._hashes:
            try:
                self._hashes[tool] = Definition.of(shown.get(tool, {})).hash
            except ValueError:
                self._hashes[tool] = None
        return self._hashes[tool]


async def tools(name: str, send: Send, version: str) -> tuple[list[dict[str, Any]], Headers]:
    """Every tool of the upstream `name`, and what it wants in headers."""
    found: list[dict[str, Any]] = []
    size, cursor = 0, None
    for _ in range(_MOST_PAGES):
        page = await send({} if cursor is None else {"cursor": cursor})
        size += len(to_json(page["tools"]))
        found += page["tools"]
        if len(found) > _MOST_TOOLS or size > _MOST_BYTES:
            raise ResponseTooLargeError(
                f"upstream {name} lists more than {_MOST_TOOLS} tools, or {_MOST_BYTES} bytes"
            )
        cursor = page.get("nextCursor")
        if cursor is None:
            return _usable(name, found) if version in MODERN_PROTOCOL_VERSIONS else (found, {})
    raise ResponseTooLargeError(f"upstream {name} lists its tools on more than {_MOST_PAGES} pages")


def _usable(name: str, found: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], Headers]:
    """Without those that ask for headers that can't be: nobody could call them."""
    kept: list[dict[str, Any]] = []
    wanted: Headers = {}
    for tool in found:
        schema = tool.get("inputSchema")
        wrong = find_invalid_x_mcp_header(schema)
        if wrong is not None:
            _log.warning("upstream %s: the tool %r is left out: %s", name, tool["name"], wrong)
            continue
        kept.append(tool)
        asked = x_mcp_header_map(schema)
        if asked:
            wanted[tool["name"]] = asked
    return kept, wanted
