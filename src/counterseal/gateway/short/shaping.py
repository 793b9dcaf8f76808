"""A result of ours in the form that a revision has for it."""

from __future__ import annotations

import logging
from typing import Any

import mcp_types as types
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types.methods import serialize_server_result
from pydantic import ValidationError

from counterseal.gateway.short.reading import MODERN

__all__ = ["Shaping"]

_log = logging.getLogger("counterseal.gateway")


class Shaping:
    """Does what the SDK does with what a handler returns, without a look at what can't be wrong."""

    def __init__(self, server: Server[Any]) -> None:
        self._server_info = server.server_info_stamp

    def shaped(self, result: dict[str, Any], version: str) -> dict[str, Any]:
        """MCPError when that is no result."""
        if not _is_ours(result):
            try:
                result = serialize_server_result("tools/call", version, result)
            except ValidationError:
                _log.exception("a tool's blocks are none")
                raise MCPError(
                    code=types.INTERNAL_ERROR, message="Handler returned an invalid result"
                ) from None
        if version != MODERN:
            result.pop("resultType", None)
            return result
        meta = result.get("_meta") or {}
        result["_meta"] = {**meta, types.SERVER_INFO_META_KEY: self._server_info}
        return result


def _is_ours(result: dict[str, Any]) -> bool:
    """Whether `answering` has made all of its parts: one text, facts, and perhaps an object."""
    content = result.get("content")
    structured = result.get("structuredContent")
    return (
        content is not None
        and len(content) == 1
        and content[0]["type"] == "text"
        and (structured is None or type(structured) is dict)
    )
