"""What an upstream tells by itself: that its tools, prompts or resources have changed.

Before 2026-07-28 it just tells. Since then it has to be asked to, with one request that stays open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import mcp_types
from mcp.client.session import ClientSession
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)

__all__ = ["listed", "listen_on", "noticed", "subscribe_on"]

_AGAIN: Final = (1.0, 30.0)
_KINDS: Final[dict[type, str]] = {
    ToolsListChanged: "tools",
    ResourcesListChanged: "resources",
    PromptsListChanged: "prompts",
    mcp_types.ToolListChangedNotification: "tools",
    mcp_types.ResourceListChangedNotification: "resources",
    mcp_types.PromptListChangedNotification: "prompts",
}
_log = logging.getLogger(__name__)


def noticed(message: object) -> str | None:
    """What a notification says has changed: `tools`, `resources`, `prompts`, `resource:URI`."""
    if isinstance(message, mcp_types.ResourceUpdatedNotification):
        return f"resource:{message.params.uri}"
    if isinstance(message, ResourceUpdated):
        return f"resource:{message.uri}"
    return _KINDS.get(type(message))


def listed(capabilities: Mapping[str, Any]) -> list[str]:
    """What the upstream has lists of."""
    return [kind for kind in ("tools", "resources", "prompts") if kind in capabilities]


async def listen_on(
    session: ClientSession,
    capabilities: Mapping[str, Any],
    subscribed: Collection[str],
    changed: Callable[[str], None],
) -> None:
    """Pass on what changes, for as long as the connection lives."""
    told = {kind: _tells(capabilities, kind) for kind in ("tools", "resources", "prompts")}
    if not any(told.values()) and not subscribed:
        return
    pause, missed = _AGAIN[0], False
    while True:
        try:
            async with listen(
                session,
                tools_list_changed=told["tools"],
                resources_list_changed=told["resources"],
                prompts_list_changed=told["prompts"],
                resource_subscriptions=sorted(subscribed),
            ) as events:
                if missed:
                    for kind in listed(capabilities):
                        changed(kind)
                pause = _AGAIN[0]
                async for event in events:
                    what = noticed(event)
                    if what is not None:
                        changed(what)
        except MCPError as error:
            if error.code in (mcp_types.METHOD_NOT_FOUND, mcp_types.INVALID_PARAMS):
                _log.info("an upstream tells of no changes: %s", error.message)
                return
        except SubscriptionLost:
            pass
        missed = True
        await asyncio.sleep(pause)
        pause = min(pause * 2, _AGAIN[1])


async def subscribe_on(session: ClientSession, subscribed: Collection[str]) -> None:
    """Before 2026-07-28: ask for each resource anew, on a connection that does not know of it."""
    for uri in sorted(subscribed):
        request = mcp_types.SubscribeRequest(params=mcp_types.SubscribeRequestParams(uri=uri))
        try:
            await session.send_request(request, mcp_types.EmptyResult)
        except MCPError as error:
            _log.info("changes of a resource are not told any more: %s", error.message)


def _tells(capabilities: Mapping[str, Any], kind: str) -> bool:
    said = capabilities.get(kind)
    return isinstance(said, Mapping) and bool(said.get("listChanged"))
