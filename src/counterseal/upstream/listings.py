"""The list of an upstream's tools, and its notices that a list has changed.

A call is for a tool in the form that an operator accepted. So each connection lists the tools
before its first call: a program that was restarted, or serves another tenant, may offer others.

Since 2026-07-28 a tool's schema may want arguments repeated in headers of the request, and notices
of changes have to be requested, with one request that stays open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

import mcp_types
from mcp.client.session import ClientSession
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from mcp.shared.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import to_json

from counterseal.contract.sources.mcp.definition import Definition
from counterseal.errors import NotSentError, ResponseTooLargeError

_log = logging.getLogger(__name__)

# --- tools ----------------------------------------------------------------------------------------

_MAX_PAGES: Final = 100
_MAX_TOOLS: Final = 10_000
_MAX_BYTES: Final = 32 * 1024 * 1024

_Headers = dict[str, dict[tuple[str, ...], str]]
"""By tool: which arguments are repeated in which headers."""
_Send = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


class ToolList:
    """The tools that an upstream has listed on one connection."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tools: dict[str, dict[str, Any]] | None = None
        self._hashes: dict[str, str | None] = {}
        self._headers: _Headers = {}
        self._changes = 0
        self._lock = asyncio.Lock()

    def forget(self) -> None:
        """Drop the list: the upstream says that it has changed."""
        self._tools = None
        self._changes += 1

    def has(self, tool: str, definition: str) -> bool:
        """Return True if the tool is known to have the definition with this hash."""
        return self._tools is not None and self._hash(self._tools, tool) == definition

    async def check(self, tool: str, definition: str, send: _Send, version: str) -> None:
        """Raise NotSentError if the tool has another definition on this connection."""
        if self._tools is None:
            async with self._lock:
                if self._tools is None:  # another call may have listed them meanwhile
                    await self.refresh(send, version)
        if self._tools is None:
            raise NotSentError(f"upstream {self._name} keeps changing its tools")
        if self._hash(self._tools, tool) != definition:
            raise NotSentError(
                f"upstream {self._name} has changed {tool}, and the change is not accepted yet"
            )

    def headers(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, str]:
        """Return the headers that repeat arguments of a call."""
        wanted = self._headers.get(tool)
        return mcp_param_headers(wanted, arguments) if wanted else {}

    async def refresh(self, send: _Send, version: str) -> list[dict[str, Any]]:
        """Request the list, and return all tools of it."""
        changes = self._changes
        tools, self._headers = await list_tools(self._name, send, version)
        if changes == self._changes:
            # Of two tools with one name the first counts, here and when they are accepted.
            self._tools = {tool["name"]: tool for tool in reversed(tools)}
            self._hashes = {}
        return tools

    def _hash(self, tools: Mapping[str, dict[str, Any]], tool: str) -> str | None:
        if tool not in self._hashes:
            try:
                self._hashes[tool] = Definition.of(tools.get(tool, {})).hash
            except ValueError:
                self._hashes[tool] = None
        return self._hashes[tool]


async def list_tools(name: str, send: _Send, version: str) -> tuple[list[dict[str, Any]], _Headers]:
    """Return every tool of the upstream `name`, and the headers that they want."""
    tools: list[dict[str, Any]] = []
    size, cursor = 0, None
    for _ in range(_MAX_PAGES):
        page = await send({} if cursor is None else {"cursor": cursor})
        size += len(to_json(page["tools"]))
        tools += page["tools"]
        if len(tools) > _MAX_TOOLS or size > _MAX_BYTES:
            raise ResponseTooLargeError(
                f"upstream {name} lists more than {_MAX_TOOLS} tools, or {_MAX_BYTES} bytes"
            )
        cursor = page.get("nextCursor")
        if cursor is None:
            return (
                _with_headers(name, tools) if version in MODERN_PROTOCOL_VERSIONS else (tools, {})
            )
    raise ResponseTooLargeError(f"upstream {name} lists its tools on more than {_MAX_PAGES} pages")


def _with_headers(name: str, tools: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], _Headers]:
    """Leave out tools that want impossible headers, because they can't be called."""
    usable: list[dict[str, Any]] = []
    headers: _Headers = {}
    for tool in tools:
        schema = tool.get("inputSchema")
        problem = find_invalid_x_mcp_header(schema)
        if problem is not None:
            _log.warning("upstream %s: the tool %r is left out: %s", name, tool["name"], problem)
            continue
        usable.append(tool)
        wanted = x_mcp_header_map(schema)
        if wanted:
            headers[tool["name"]] = wanted
    return usable, headers


# --- changes --------------------------------------------------------------------------------------

_RETRY: Final = (1.0, 30.0)
"""Seconds, first and longest, before a lost stream of notices is requested again."""
_KINDS: Final[dict[type, str]] = {
    ToolsListChanged: "tools",
    ResourcesListChanged: "resources",
    PromptsListChanged: "prompts",
    mcp_types.ToolListChangedNotification: "tools",
    mcp_types.ResourceListChangedNotification: "resources",
    mcp_types.PromptListChangedNotification: "prompts",
}


def change_of(message: object) -> str | None:
    """Return what a notice says has changed: `tools`, `resources`, `prompts`, `resource:URI`."""
    if isinstance(message, mcp_types.ResourceUpdatedNotification):
        return f"resource:{message.params.uri}"
    if isinstance(message, ResourceUpdated):
        return f"resource:{message.uri}"
    return _KINDS.get(type(message))


def kinds_of_lists(capabilities: Mapping[str, Any]) -> list[str]:
    """Return the kinds of things that the upstream lists."""
    return [kind for kind in ("tools", "resources", "prompts") if kind in capabilities]


async def watch_changes(
    session: ClientSession,
    capabilities: Mapping[str, Any],
    subscribed: Collection[str],
    on_change: Callable[[str], None],
) -> None:
    """Report changes to `on_change` for as long as the connection lives (2026-07-28)."""
    said = {kind: capabilities.get(kind) for kind in ("tools", "resources", "prompts")}
    kinds = {
        kind: isinstance(each, Mapping) and bool(each.get("listChanged"))
        for kind, each in said.items()
    }
    if not any(kinds.values()) and not subscribed:
        return
    pause, interrupted = _RETRY[0], False
    while True:
        try:
            async with listen(
                session,
                tools_list_changed=kinds["tools"],
                resources_list_changed=kinds["resources"],
                prompts_list_changed=kinds["prompts"],
                resource_subscriptions=sorted(subscribed),
            ) as events:
                if interrupted:  # notices may have been missed
                    for kind in kinds_of_lists(capabilities):
                        on_change(kind)
                pause = _RETRY[0]
                async for event in events:
                    change = change_of(event)
                    if change is not None:
                        on_change(change)
        except MCPError as error:
            if error.code in (mcp_types.METHOD_NOT_FOUND, mcp_types.INVALID_PARAMS):
                _log.info("an upstream gives no notice of changes: %s", error.message)
                return
        except SubscriptionLost:
            pass
        interrupted = True
        await asyncio.sleep(pause)
        pause = min(pause * 2, _RETRY[1])


async def subscribe_to_resources(session: ClientSession, subscribed: Collection[str]) -> None:
    """Subscribe to each resource on a new connection (revisions before 2026-07-28)."""
    for uri in sorted(subscribed):
        request = mcp_types.SubscribeRequest(params=mcp_types.SubscribeRequestParams(uri=uri))
        try:
            await session.send_request(request, mcp_types.EmptyResult)
        except MCPError as error:
            _log.info("no more notices of changes of a resource: %s", error.message)
