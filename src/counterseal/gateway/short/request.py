"""A request that goes the short way, as those see it who know only requests of the SDK's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import mcp_types as types
from mcp.server.connection import Connection
from mcp.shared.exceptions import NoBackChannelError

from counterseal.gateway.short.answer import Answer
from counterseal.gateway.short.reading import Asked

__all__ = ["ShortRequest"]

_HERE: Final = object()


class ShortRequest:
    """Stands for the SDK's `ServerRequestContext`, and for the session in it.

    It can tell the client something, on its own answer; it can't ask anything.
    """

    __slots__ = (
        "_answer",
        "_connection",
        "client_capabilities",
        "meta",
        "method",
        "params",
        "protocol_version",
        "request",
        "request_id",
        "session",
    )

    one_way = True

    def __init__(
        self, asked: Asked, version: str, answer: Answer, connection: Connection | None
    ) -> None:
        self.method = "tools/call"
        self.request_id = asked.id
        self.params: Mapping[str, Any] = asked.params
        self.meta = asked.meta
        self.protocol_version = version
        self.request = _HERE
        self.session = self
        self._answer = answer
        self._connection = connection
        self.client_capabilities = (
            asked.capabilities if connection is None else connection.client_capabilities
        )

    async def send_notification(
        self, notification: types.ServerNotification, related_request_id: Any = None
    ) -> None:
        told = notification.model_dump(by_alias=True, mode="json", exclude_none=True)
        await self._answer.event({"jsonrpc": "2.0", **told})

    async def send_request(self, request: types.ServerRequest, *_: Any, **__: Any) -> Any:
        raise NoBackChannelError(request.method)
