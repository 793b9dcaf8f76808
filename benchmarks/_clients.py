"""A client of a server that is measured, as people have it: httpx, the MCP SDK, OpenAI Agents.

`_clients.py mcp URL --in-flight 32` runs in the environment that has the client, as a worker of the
benchmark. Every call sends another text, and its answer must hold it: refusals are fast, too.
"""

# mypy: ignore-errors
# ruff: noqa: PLC0415 - each client imports what only its own environment has

from __future__ import annotations

import argparse
import os
import sys
from contextlib import AsyncExitStack
from itertools import count
from typing import Any

from benchmarks._house.served import Call, Run, at_once, serve

STACK = AsyncExitStack()
"""Connections that stay open until the process ends."""
PACKAGES = {"httpx": "httpx", "mcp": "mcp", "openai-agents": "openai-agents"}
MODES = {"2025-11-25": "legacy", "2026-07-28": "2026-07-28"}
_numbers = count()


def _headers(options: argparse.Namespace) -> dict[str, str]:
    return {"Authorization": f"Bearer {options.key}"} if options.key else {}


async def by_httpx(options: argparse.Namespace) -> Any:
    import httpx

    limits = httpx.Limits(max_connections=options.in_flight)
    headers = _headers(options)
    client = httpx.AsyncClient(headers=headers, limits=limits, trust_env=False, timeout=60)
    await STACK.enter_async_context(client)

    async def call(text: str) -> str:
        body = {"tool": options.tool, "arguments": {"text": text}}
        return (await client.post(options.url, json=body)).raise_for_status().text

    return call


async def by_mcp(options: argparse.Namespace) -> Any:
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    http = httpx2.AsyncClient(headers=_headers(options), trust_env=False, timeout=60)
    await STACK.enter_async_context(http)
    transport = streamable_http_client(options.url, http_client=http)
    client = Client(transport, mode=MODES[options.revision])
    await STACK.enter_async_context(client)

    async def call(text: str) -> str:
        return str(await client.call_tool(options.tool, {"text": text}))

    return call


async def by_openai_agents(options: argparse.Namespace) -> Any:
    from agents.mcp import MCPServerStreamableHttp

    server = MCPServerStreamableHttp({"url": options.url, "headers": _headers(options)})
    client = await STACK.enter_async_context(server)

    async def call(text: str) -> str:
        return str(await client.call_tool(options.tool, {"text": text}))

    return call


CLIENTS = {"httpx": by_httpx, "mcp": by_mcp, "openai-agents": by_openai_agents}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", choices=list(CLIENTS))
    parser.add_argument("url")
    parser.add_argument("--in-flight", type=int, default=1)
    parser.add_argument("--tool", default="echo")
    parser.add_argument("--revision", default="2026-07-28")
    parser.add_argument("--key", default="")
    options = parser.parse_args()

    async def prepare() -> Run:
        ask = await CLIENTS[options.client](options)

        async def call() -> None:
            text = f"line {os.getpid()}-{next(_numbers)}."
            answer = await ask(text)
            if text not in answer:
                sys.exit(f"A call was refused: {answer[:300]}")

        callers: list[Call] = [call] * options.in_flight
        return await at_once(callers)

    serve(prepare, [PACKAGES[options.client]])


if __name__ == "__main__":
    main()
