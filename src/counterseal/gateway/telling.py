"""Who is told that something changed: each caller of its own catalogue, and of what it listens to.

Clients of 2025-11-25 are told on their connection, those of 2026-07-28 on the streams that they
opened for it. A caller is told only when what it may see itself has changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)

from counterseal.gateway.asking import LEVELS
from counterseal.gateway.catalogue import Catalogue
from counterseal.gateway.relaying import Followed
from counterseal.proposal import Principal
from counterseal.telemetry import measure

__all__ = ["ClientConnection", "Telling"]

_log = logging.getLogger("counterseal.gateway")


@dataclass(eq=False, kw_only=True)
class ClientConnection:
    """A connection of 2025-11-25, from its first notification to its end."""

    params: types.InitializeRequestParams
    """What its client said in the handshake. The SDK has one such object for each connection."""
    session: ServerSession
    principal: Principal
    names: object
    log_level: str = LEVELS[0]
    followed: dict[str, Followed] = field(default_factory=dict)
    """The resources that the client has subscribed to, by URI."""


@dataclass(eq=False)
class _Audience:
    """All streams of one principal, of 2026-07-28."""

    bus: InMemorySubscriptionBus
    handler: ListenHandler
    names: object
    open: int = 0


class Telling:
    """Knows who listens."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._connections: dict[int, ClientConnection] = {}
        """By the identity of their `params`, which they keep alive."""
        self._audiences: dict[Principal, _Audience] = {}

    # --- who listens ------------------------------------------------------------------------------

    def connection(self, ctx: ServerRequestContext[Any, Any]) -> ClientConnection | None:
        """Return the connection of 2025-11-25 that a request came over."""
        return self._connections.get(id(ctx.session.client_params))

    @contextmanager
    def connected(
        self, ctx: ServerRequestContext[Any, Any], principal: Principal
    ) -> Iterator[ClientConnection | None]:
        """Notify a connection of changes within this context. None: it is notified already."""
        params, began = ctx.session.client_params, monotonic()
        if params is None or id(params) in self._connections:
            yield None
            return
        names = self._catalogue.names(principal)
        connection = ClientConnection(
            params=params, session=ctx.session, principal=principal, names=names
        )
        self._connections[id(params)] = connection
        try:
            yield connection
        finally:
            del self._connections[id(params)]
            about = {"mcp.protocol.version": ctx.protocol_version}
            measure("mcp.server.session.duration", monotonic() - began, about)

    async def listen(
        self,
        ctx: ServerRequestContext[Any, Any],
        params: types.SubscriptionsListenRequestParams,
        principal: Principal,
    ) -> types.SubscriptionsListenResult:
        """One stream of a client of 2026-07-28, until one of the two ends it."""
        audience = self._audiences.get(principal)
        if audience is None:
            bus = InMemorySubscriptionBus()
            names = self._catalogue.names(principal)
            audience = _Audience(bus, ListenHandler(bus), names)
            self._audiences[principal] = audience
        audience.open += 1
        try:
            return await audience.handler(ctx, params)
        finally:
            audience.open -= 1
            if not audience.open and self._audiences.get(principal) is audience:
                del self._audiences[principal]

    def close(self) -> None:
        """End all streams, in good order."""
        for audience in list(self._audiences.values()):
            audience.handler.close()

    # --- what they are told -----------------------------------------------------------------------

    async def tools_changed(self) -> None:
        """Tell those whose catalogue is not what it was."""
        known: dict[Principal, object] = {}

        def changed(who: Principal, before: object) -> bool:
            if who not in known:
                known[who] = self._catalogue.names(who)
            return known[who] != before

        behind = [one for one in self._connections.values() if changed(one.principal, one.names)]
        for one in behind:
            one.names = known[one.principal]
        await _all(one.session.send_tool_list_changed() for one in behind)
        for principal, audience in list(self._audiences.items()):
            if changed(principal, audience.names):
                audience.names = known[principal]
                await audience.bus.publish(ToolsListChanged())

    async def prompts_changed(self, sees: Callable[[Principal], bool]) -> None:
        await _all(one.session.send_prompt_list_changed() for one in self._seeing(sees))
        for bus in self._buses(sees):
            await bus.publish(PromptsListChanged())

    async def resources_changed(self, sees: Callable[[Principal], bool]) -> None:
        await _all(one.session.send_resource_list_changed() for one in self._seeing(sees))
        for bus in self._buses(sees):
            await bus.publish(ResourcesListChanged())

    async def resource_updated(self, uri: str, sees: Callable[[Principal], bool]) -> None:
        told = [one for one in self._seeing(sees) if uri in one.followed]
        await _all(one.session.send_resource_updated(uri) for one in told)
        for bus in self._buses(sees):
            await bus.publish(ResourceUpdated(uri))

    def _seeing(self, sees: Callable[[Principal], bool]) -> Iterable[ClientConnection]:
        return [one for one in self._connections.values() if sees(one.principal)]

    def _buses(self, sees: Callable[[Principal], bool]) -> list[InMemorySubscriptionBus]:
        return [one.bus for principal, one in self._audiences.items() if sees(principal)]


async def _all(sendings: Iterable[Coroutine[Any, Any, None]]) -> None:
    """At once: a client that does not listen must not hold up the others."""
    await asyncio.gather(*map(_surely, sendings))


async def _surely(sending: Coroutine[Any, Any, None]) -> None:
    try:
        async with asyncio.timeout(5):
            await sending
    except Exception:  # noqa: BLE001 - it is gone, or as good as gone
        _log.debug("a client could not be told that something changed", exc_info=True)
