"""Calls over HTTP that are answered at once: sent past the library, which takes over all others.

What is not plainly a result when it comes goes on as the library's own request, under its number:
it is never sent a second time. Cancelling is the same on both ways.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from mcp.shared.dispatcher import CallOptions, Dispatcher

from counterseal.upstream.exchange import Exchange
from counterseal.upstream.web import Web

__all__ = ["AtOnce"]


class AtOnce:
    """The calls of one connection. `modern`: in its revision, who hangs up has said enough."""

    def __init__(self, way: Web, dispatcher: Dispatcher[Any], *, modern: bool) -> None:
        self._way = way
        self._dispatcher = dispatcher
        self._modern = modern
        self._count = 0
        self._telling: set[asyncio.Task[None]] = set()

    async def result(
        self, method: str, params: dict[str, Any], options: CallOptions, exchange: Exchange
    ) -> dict[str, Any] | None:
        """The result of a call, if it comes plainly. None: the library goes on with the request."""
        if method != "tools/call" or _is_traced():
            return None
        self._count += 1
        number = options["request_id"] = f"call-{self._count}"
        if "on_progress" in options:
            params["_meta"] = {**params.get("_meta", {}), "progressToken": number}
        try:
            return await self._way.result(number, method, params, options["headers"], exchange)
        except asyncio.CancelledError:
            if exchange.sent and not self._modern:
                self._call_off(number)
            raise

    def _call_off(self, number: str) -> None:
        gone = {"requestId": number, "reason": "caller cancelled"}
        telling = self._dispatcher.notify("notifications/cancelled", gone)
        task = asyncio.get_running_loop().create_task(telling)
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)


def _is_traced() -> bool:
    """Whether somebody may want to see a span of each request, which the library makes."""
    return "opentelemetry.sdk" in sys.modules
