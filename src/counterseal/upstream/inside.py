"""The way to an upstream in this process: a server of the library's, on streams in memory."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Any, Self

import anyio
from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage

from counterseal.upstream.exchange import EXCHANGE
from counterseal.upstream.settings import Settings

__all__ = ["Inside"]

_LEAVE = 2.0


class Inside:
    """One run of a server in this process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.trouble = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[Any, _Marking]]:
        """Streams of messages to and from the server."""
        server = _found(self._settings.python)
        async with (
            create_client_server_memory_streams() as ((read, write), (its_read, its_write)),
            anyio.create_task_group() as group,
        ):
            done = anyio.Event()

            async def serve() -> None:
                try:
                    await server.run(its_read, its_write, server.create_initialization_options())
                except Exception as error:  # noqa: BLE001 - somebody else's server may raise anything
                    self.trouble = f"the server ended with {type(error).__name__}"
                finally:
                    done.set()
                    await its_write.aclose()

            group.start_soon(serve)
            try:
                yield read, _Marking(write)
            finally:
                await write.aclose()
                with anyio.move_on_after(_LEAVE):
                    await done.wait()
                group.cancel_scope.cancel()


def _found(named: Any) -> Server[Any]:
    """The server that a text names. ValueError: there is none."""
    server = named
    if isinstance(named, str):
        module, _, attribute = named.partition(":")
        if not attribute:
            raise ValueError(f"{named!r} names no server; write package.module:server")
        try:
            server = attrgetter(attribute)(importlib.import_module(module))
        except (ImportError, AttributeError) as error:
            raise ValueError(f"{named}: {error}") from None
    if isinstance(server, MCPServer):
        server = _low_level(server)
    if not isinstance(server, Server):
        raise ValueError(f"{named!r} is no server of MCP's library")
    return server


def _low_level(server: MCPServer) -> Server[Any]:
    """Return the low-level server, which can be run on any streams, of a high-level one.

    It is public as the application of the session manager, which exists once HTTP is set up.
    """
    try:
        return server.session_manager.app
    except RuntimeError:
        server.streamable_http_app()
        return server.session_manager.app


class _Marking:
    """Messages to the server; who sends one is told that it left."""

    def __init__(self, write: Any) -> None:
        self._write = write

    async def send(self, item: SessionMessage, /) -> None:
        exchange = EXCHANGE.get()
        if exchange is not None:
            exchange.sent = True
        await self._write.send(item)

    async def aclose(self) -> None:
        await self._write.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()
