"""Clients that make calls as fast as they are answered, and what that takes.

`Wire` writes the requests of 2026-07-28 onto sockets and reads no more of an answer than it must,
so that the client takes little of a processor that the servers need too. `Sdk` is the official
client, as a real program would use it, in either revision. Every answer is looked at: a refusal
must not pass for a fast call.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import count
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

from mcp import Client

MODERN, LEGACY = "2026-07-28", "2025-11-25"
TEXT = "a line of text that is given back, "

Caller = Callable[[str, dict[str, Any]], Awaitable[str]]
"""Makes one call of a tool and returns the text that came back."""


class Load(Protocol):
    """A client with so many callers."""

    callers: list[Caller]

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *_: object) -> None: ...


class Wire:
    """As many connections as callers, kept open."""

    def __init__(self, url: str, callers: int) -> None:
        self._url = urlsplit(url)
        self._count = callers
        self._open: list[asyncio.StreamWriter] = []
        self.callers: list[Caller] = []

    async def __aenter__(self) -> Self:
        for _ in range(self._count):
            reader, writer = await asyncio.open_connection(self._url.hostname, self._url.port)
            self._open.append(writer)
            self.callers.append(self._caller(reader, writer))
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._open:
            writer.close()
            await writer.wait_closed()

    def _caller(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Caller:
        numbers = count(1)

        async def call(tool: str, arguments: dict[str, Any]) -> str:
            body = _body(next(numbers), tool, arguments)
            writer.write(self._head(tool, len(body)) + body)
            head = await reader.readuntil(b"\r\n\r\n")
            answer = await reader.readexactly(_length(head))
            result = json.loads(answer).get("result")
            if not head.startswith(b"HTTP/1.1 200") or not result or result.get("isError"):
                sys.exit(f"A call was refused: {(head + answer).decode()}")
            return str(result["content"][0]["text"])

        return call

    def _head(self, tool: str, length: int) -> bytes:
        return (
            f"POST {self._url.path} HTTP/1.1\r\n"
            f"Host: {self._url.netloc}\r\n"
            "Accept: application/json, text/event-stream\r\n"
            "Content-Type: application/json\r\n"
            f"MCP-Protocol-Version: {MODERN}\r\n"
            "Mcp-Method: tools/call\r\n"
            f"Mcp-Name: {tool}\r\n"
            f"Content-Length: {length}\r\n\r\n"
        ).encode()


def _body(number: int, tool: str, arguments: dict[str, Any]) -> bytes:
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    asked = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
    return json.dumps(asked, separators=(",", ":")).encode()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line[15:])
    sys.exit(f"An answer of another kind than was expected: {head.decode()}")


class Sdk:
    """One client with one connection, and its callers at once over that."""

    def __init__(self, url: str, callers: int, revision: str) -> None:
        mode = "legacy" if revision == LEGACY else revision
        self._client = Client(url, mode=mode)
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


_NUMBERS = count()


async def spend(load: Load, tool: str, seconds: float) -> tuple[int, float]:
    """Call for so long, everybody at once: how many calls that made, and the seconds in truth."""
    until = time.perf_counter() + seconds

    async def caller(call: Caller) -> int:
        made = 0
        while time.perf_counter() < until:
            text = f"{TEXT}{next(_NUMBERS)}"  # never the same: each is an operation of its own
            if text not in await call(tool, {"text": text}):
                sys.exit("An answer was another call's.")
            made += 1
        return made

    began = time.perf_counter()
    made = sum(await asyncio.gather(*map(caller, load.callers)))
    return made, time.perf_counter() - began
