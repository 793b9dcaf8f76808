"""One server with the stateless path and one without it, and what both answer."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any, NamedTuple

import httpx2
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp

from counterseal.gateway.server import McpServer
from tests.gateway.served import BOT, Served, serving

MODERN = "2026-07-28"
INFO = {"name": "test", "version": "1"}
_OWN = re.compile(r"\b([a-z]+_)?[0-9a-f]{16,64}\b|\bv1\.[0-9A-Za-z_-]+")
"""What is never the same twice: ids of calls, traces and approvals, and what is sealed."""
_MARKED = re.compile(r"(untrusted-data )\S+")
_KEPT = ("content-type", "cache-control", "x-accel-buffering", "allow", "www-authenticate")


class Pair(NamedTuple):
    """Two servers with the same tools."""

    short: Served
    long: Served
    paths: list[Any]

    @property
    def taken(self) -> int:
        """How many calls took the stateless path."""
        return self.paths[0].taken


@contextlib.asynccontextmanager
async def both(monkeypatch: Any, tools: Any, **options: Any) -> Any:
    paths: list[Any] = []
    endpoint = McpServer.endpoint

    def short(self: McpServer, manager: Any, security: Any) -> Any:
        paths.append(endpoint(self, manager, security))
        return paths[-1]

    async with contextlib.AsyncExitStack() as stack:
        monkeypatch.setattr(McpServer, "endpoint", short)
        first = await stack.enter_async_context(serving(tools(), **options))
        monkeypatch.setattr(
            McpServer, "endpoint", lambda _, manager, __: StreamableHTTPASGIApp(manager)
        )
        second = await stack.enter_async_context(serving(tools(), **options))
        yield Pair(first, second, paths)


def modern(name: Any = "add", arguments: Any = None, **more: Any) -> dict[str, Any]:
    """A request of 2026-07-28, as arguments for a client. `more` goes into its `_meta`."""
    can = more.pop("can", {})
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": INFO,
        "io.modelcontextprotocol/clientCapabilities": can,
        **more,
    }
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": str(name)}
    params: dict[str, Any] = {"name": name, "_meta": meta}
    if arguments is not None:
        params["arguments"] = arguments
    message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    return {"headers": headers, "message": message}


async def answers(pair: Pair, request: dict[str, Any]) -> tuple[Any, Any]:
    """What each of the two says to one request, without what is never the same."""
    return (
        plain(await asked(pair.short, request)),
        plain(await asked(pair.long, request)),
    )


async def asked(served: Served, request: dict[str, Any]) -> httpx2.Response:
    """The answer of one of them."""
    async with served.http(BOT) as http:
        return await post(http, served.url, request, dict(request["headers"]))


async def post(http: Any, url: str, request: dict[str, Any], headers: Any) -> httpx2.Response:
    content = request.get("content") or json.dumps(request["message"]).encode()
    pairs = [*{"Content-Type": "application/json", **headers}.items(), *request.get("twice", ())]
    return await http.post(url, content=content, headers=pairs)


def plain(answer: httpx2.Response) -> dict[str, Any]:
    kept = {name: answer.headers.get(name) for name in _KEPT if name in answer.headers}
    return {"status": answer.status_code, "headers": kept, "told": told(answer)}


def told(answer: httpx2.Response) -> Any:
    """What an answer says: a list of messages, or a text that is none."""
    text = answer.text
    if "text/event-stream" in answer.headers.get("content-type", ""):
        lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        return [json.loads(_masked(line)) for line in lines]
    try:
        return [json.loads(_masked(text))]
    except ValueError:
        return text


def _masked(text: str) -> str:
    return _OWN.sub("#", _MARKED.sub(r"\1#", text))
