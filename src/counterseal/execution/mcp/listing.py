"""The list of an upstream's tools: all pages of it, within bounds.

Since 2026-07-28 a tool's schema may ask that arguments are repeated in headers of the request, for
whoever passes it on to read. What it asks is learned here.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import to_json

from counterseal.errors import ResponseTooLargeError

__all__ = ["Headers", "headers", "tools"]

_MOST_PAGES: Final = 100
_MOST_TOOLS: Final = 10_000
_MOST_BYTES: Final = 32 * 1024 * 1024
_log = logging.getLogger(__name__)

Headers = dict[str, dict[tuple[str, ...], str]]
"""By tool: which arguments are repeated in which headers."""


async def tools(
    name: str,
    send: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]],
    version: Callable[[], str],
) -> tuple[list[dict[str, Any]], Headers]:
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
            return _usable(name, found) if version() in MODERN_PROTOCOL_VERSIONS else (found, {})
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


def headers(wanted: Headers, tool: str, arguments: Mapping[str, Any]) -> dict[str, str]:
    """What of a call's arguments is repeated in headers."""
    asked = wanted.get(tool)
    return mcp_param_headers(asked, arguments) if asked else {}
