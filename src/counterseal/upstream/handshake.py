"""What both sides say of themselves: once, in a handshake, or since 2026-07-28 on every request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import mcp_types
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
)
from pydantic import ValidationError

from counterseal import __version__

__all__ = ["INFO", "shake_hands", "stamp", "stop", "told"]

INFO: Final = mcp_types.Implementation(name="counterseal", version=__version__)
_WIRE_INFO: Final = INFO.model_dump(by_alias=True, mode="json", exclude_none=True)
_LOG_LEVEL: Final = "info"


async def shake_hands(
    session: ClientSession, over: asyncio.Event, seconds: float, *, legacy: bool
) -> str:
    """Agree on the newest revision that both speak. Returns what went wrong, or nothing.

    Given up when time is up, or when the connection is `over`.
    """
    loop = asyncio.get_running_loop()
    ended = loop.create_task(over.wait())
    negotiating = loop.create_task(_negotiate(session, legacy=legacy))
    try:
        await asyncio.wait(
            {ended, negotiating}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if negotiating.done():
            negotiating.result()
            return "it ended in the handshake" if over.is_set() else ""
        return "it ended" if over.is_set() else f"no handshake within {seconds:g} s"
    except (MCPError, ValidationError, RuntimeError) as error:
        return f"no handshake: {told(error)}"
    finally:
        await stop(ended, negotiating)


async def _negotiate(session: ClientSession, *, legacy: bool) -> None:
    """Most servers know only revisions with a handshake; `legacy` is one that is known to be so."""
    if not legacy:
        with suppress(MCPError, ValidationError, RuntimeError):
            await session.discover()
            return
    try:
        await session.initialize()
    except MCPError as error:
        # It answered the first question too late, and takes no handshake any more.
        if error.code != mcp_types.UNSUPPORTED_PROTOCOL_VERSION:
            raise
        await session.discover()


def stamp(
    method: str,
    params: Mapping[str, Any],
    own: Mapping[str, Any],
    traceparent: str | None,
    version: str,
    capabilities: Mapping[str, Any] | None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """The params with their `_meta`, and the headers that go with them over HTTP.

    `own` is what we add for whoever knows it. `capabilities` are told with each request where the
    revision has no handshake; None: it has one.
    """
    meta = {**(params.get("_meta") or {}), **own}
    if traceparent is not None:
        meta["traceparent"] = traceparent
    headers = {MCP_PROTOCOL_VERSION_HEADER: version}
    if capabilities is not None:
        meta[mcp_types.PROTOCOL_VERSION_META_KEY] = version
        meta[mcp_types.CLIENT_INFO_META_KEY] = _WIRE_INFO
        meta[mcp_types.CLIENT_CAPABILITIES_META_KEY] = capabilities
        meta[mcp_types.LOG_LEVEL_META_KEY] = _LOG_LEVEL
        headers[MCP_METHOD_HEADER] = method
        named = params.get(NAME_BEARING_METHODS.get(method, ""))
        if isinstance(named, str):
            headers[MCP_NAME_HEADER] = encode_header_value(named)
    return {**params, "_meta": meta} if meta else dict(params), headers


async def stop(*tasks: asyncio.Task[Any]) -> None:
    """Cancel them, and wait until they are."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def told(error: BaseException) -> str:
    """One line of an exception; of the first in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
