"""Clients that call as fast as they are answered. Each answer is looked at: refusals are fast, too.

`Sdk` is the official client as a real program would use it; `Wire` is the one that takes little.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from itertools import count
from typing import Any, Protocol, Self

from mcp import Client

from benchmarks._gateway_wire import LEGACY, MODERN, Caller, Wire

TEXT = "a line of text that is given back, "


class Load(Protocol):
    """A client with so many callers."""

    callers: list[Caller]

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *_: object) -> None: ...


class Sdk:
    """One client with one connection, and its callers at once over that."""

    def __init__(self, url: str, callers: int, revision: str) -> None:
        self._client = Client(url, mode="legacy" if revision == LEGACY else revision)
        self._revision = revision
        self._stack = AsyncExitStack()
        self.callers: list[Caller] = [self._call] * callers

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._client)
        if self._client.protocol_version != self._revision:
            sys.exit(f"{self._client.protocol_version} was agreed on, not {self._revision}.")
        await self._client.list_tools()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _call(self, tool: str, arguments: dict[str, Any]) -> str:
        result = await self._client.call_tool(tool, arguments)
        if result.is_error:
            sys.exit(f"A call was refused: {result}")
        return str(getattr(result.content[0], "text", ""))


CLIENTS: Mapping[str, Callable[[str, int], Load]] = {
    f"bare sockets, {MODERN}": lambda url, callers: Wire(url, callers, MODERN),
    f"bare sockets, {LEGACY}": lambda url, callers: Wire(url, callers, LEGACY),
    f"SDK client, {MODERN}": lambda url, callers: Sdk(url, callers, MODERN),
    f"SDK client, {LEGACY}": lambda url, callers: Sdk(url, callers, LEGACY),
}
BARE = [name for name in CLIENTS if name.startswith("bare")]

_numbers = count()


async def spend(load: Load, tool: str, seconds: float) -> tuple[int, float]:
    """Call for so long, everybody at once: how many calls that made, and the seconds in truth."""
    until = time.perf_counter() + seconds

    async def caller(call: Caller) -> int:
        made = 0
        while time.perf_counter() < until:
            text = f"{TEXT}{next(_numbers)}"  # never the same: each is an operation of its own
            if text not in await call(tool, {"text": text}):
                sys.exit("An answer was another call's.")
            made += 1
        return made

    began = time.perf_counter()
    made = sum(await asyncio.gather(*map(caller, load.callers)))
    return made, time.perf_counter() - began
