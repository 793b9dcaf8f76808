"""`counterseal mcp`: the gateway over standard input and output, for one client that started it."""

from __future__ import annotations

import secrets
from typing import TextIO

import anyio
from mcp.server.stdio import stdio_server

from counterseal.config import Settings
from counterseal.gateway.running import Tell, gateway
from counterseal.proposal import Principal

__all__ = ["serve_stdio"]


async def serve_stdio(
    settings: Settings,
    principal: Principal,
    *,
    store: str | None = None,
    tell: Tell = lambda _: None,
    stdin: TextIO | None = None,
    stdout: TextIO | None = None,
) -> None:
    """Serve until the client closes the pipe. The process is the session.

    `stdin` and `stdout` are the wire, where the process has put its own aside.
    """
    own = f"http://{settings.gateway.host}:{settings.gateway.port}"
    console = (settings.gateway.public_url or own).rstrip("/")
    wire = [None if one is None else anyio.wrap_file(one) for one in (stdin, stdout)]
    session = secrets.token_urlsafe(18)
    async with (
        gateway(
            settings,
            who=lambda: principal,
            console=console,
            store=store,
            session=session,
            tell=tell,
        ) as running,
        stdio_server(*wire) as (read, write),
    ):
        server = running.front.server
        await server.run(read, write, server.create_initialization_options())
