"""A client that takes next to nothing: requests are written onto sockets, answers barely read.

It sends what the SDK's client sends, in either revision, so that what is measured is the server and
not the client, with which it shares the processors.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, Self
from urllib.parse import urlsplit

from benchmarks._house.environments import Unavailable
from benchmarks._servers import Served

MODERN, LEGACY = "2026-07-28", "2025-11-25"
INFO = {"name": "bench", "version": "1"}
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": INFO,
    "io.modelcontextprotocol/clientCapabilities": {},
}

Caller = Callable[[str, dict[str, Any]], Awaitable[str]]
"""Makes one call of a tool and returns the text that came back."""


class Wire:
    """As many connections as callers, kept open; in 2025-11-25 all of one session."""

    def __init__(self, served: Served, callers: int, revision: str) -> None:
        parts = urlsplit(served.url)
        self._tools = served.tools
        self._where = (parts.hostname, parts.port)
        self._start = f" {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        self._modern = revision == MODERN
        own = "".join(f"{name}: {value}\r\n" for name, value in served.headers.items())
        self._headers = f"{own}MCP-Protocol-Version: {revision}\r\n"
        self._numbers = count(1)
        self._lines = [_Line() for _ in range(callers)]
        self.callers: list[Caller] = [self._caller(line) for line in self._lines]

    async def __aenter__(self) -> Self:
        for line in self._lines:
            await line.open(*self._where)
        if not self._modern:
            params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": INFO}
            head, _ = await self._lines[0].exchange(self._request("initialize", params))
            session = head.lower().partition(b"mcp-session-id:")[2].partition(b"\r\n")[0]
            if session:  # not everybody keeps one
                self._headers += f"Mcp-Session-Id: {session.decode().strip()}\r\n"
            told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            await self._lines[0].exchange(self._message("POST", told))
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if not self._modern and kind is None:
            await self._lines[0].exchange(self._message("DELETE"))
        for line in self._lines:
            await line.close()

    def _caller(self, line: _Line) -> Caller:
        async def call(tool: str, arguments: dict[str, Any]) -> str:
            head, answer = await line.exchange(self._call(tool, arguments))
            result = json.loads(answer).get("result") if answer else None
            if not head.startswith(b"HTTP/1.1 200") or not result or result.get("isError"):
                raise Unavailable(f"a call was refused: {(head[:40] + answer[:300]).decode()}")
            return str(result["content"][0]["text"])

        return call

    def _call(self, tool: str, arguments: dict[str, Any]) -> bytes:
        name = self._tools + tool
        params: dict[str, Any] = {"name": name, "arguments": arguments}
        if not self._modern:
            return self._request("tools/call", params)
        params["_meta"] = META
        return self._request(
            "tools/call", params, f"Mcp-Method: tools/call\r\nMcp-Name: {name}\r\n"
        )

    def _request(self, method: str, params: dict[str, Any], headers: str = "") -> bytes:
        number = next(self._numbers)
        asked = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        return self._message("POST", asked, headers)

    def _message(self, verb: str, content: dict[str, Any] | None = None, more: str = "") -> bytes:
        body = b"" if content is None else json.dumps(content, separators=(",", ":")).encode()
        head = (
            f"{verb}{self._start}{self._headers}{more}"
            "Accept: application/json, text/event-stream\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


class _Line:
    """One connection."""

    async def open(self, host: str | None, port: int | None) -> None:
        self._reader, self._writer = await asyncio.open_connection(host, port)

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def exchange(self, request: bytes) -> tuple[bytes, bytes]:
        """The answer's head, and its content: of events the data of the last."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        low = head.lower()
        if b"transfer-encoding: chunked" in low:
            content = await self._chunks()
        else:
            length = low.partition(b"content-length:")[2].partition(b"\r\n")[0]
            content = await self._reader.readexactly(int(length or 0))
        if b"text/event-stream" in low:
            content = content.rpartition(b"data: ")[2].partition(b"\r\n")[0]
        return head, content

    async def _chunks(self) -> bytes:
        parts = []
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            parts.append((await self._reader.readexactly(size + 2))[:-2])
        await self._reader.readuntil(b"\r\n")
        return b"".join(parts)
