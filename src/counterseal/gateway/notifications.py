"""Notifications of changes: to each client about its own catalogue, and what it subscribed to.

Clients of 2025-11-25 get them on their connection, clients of 2026-07-28 on streams that they open
for it. A caller is notified only if something changed that it may see.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

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

from counterseal.gateway.catalogue import Catalogue
from counterseal.gateway.questions import LEVELS
from counterseal.gateway.relay import ResourceSubscription
from counterseal.proposal import Principal
from counterseal.telemetry import measure

_log = logging.getLogger("counterseal.gateway")

_SEND_SECONDS: Final = 5.0


@dataclass(eq=False, kw_only=True)
class ClientConnection:
    """A connection of 2025-11-25, from its first notification to its end."""

    params: types.InitializeRequestParams
    """The client's part of the handshake. The SDK has one such object for each connection."""
    session: ServerSession
    principal: Principal
    fingerprint: object
    log_level: str = LEVELS[0]
    subscriptions: dict[str, ResourceSubscription] = field(default_factory=dict)
    """By URI."""


@dataclass(eq=False)
class _Streams:
    """All streams of one principal, of 2026-07-28."""

    bus: InMemorySubscriptionBus
    handler: ListenHandler
    fingerprint: object
    open: int = 0


class Notifications:
    """The clients that are connected, and what they are notified of."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._connections: dict[int, ClientConnection] = {}
        """By the identity of their `params`, which they keep alive."""
        self._streams: dict[Principal, _Streams] = {}

    # --- clients ----------------------------------------------------------------------------------

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
        fingerprint = self._catalogue.fingerprint(principal)
        connection = ClientConnection(
            params=params, session=ctx.session, principal=principal, fingerprint=fingerprint
        )
        self._connections[id(params)] = connection
        try:
            yield connection
        finally:
            del self._connections[id(params)]
            attributes = {"mcp.protocol.version": ctx.protocol_version}
            measure("mcp.server.session.duration", monotonic() - began, attributes)

    async def listen(
        self,
        ctx: ServerRequestContext[Any, Any],
        params: types.SubscriptionsListenRequestParams,
        principal: Principal,
    ) -> types.SubscriptionsListenResult:
        """Serve one stream of a client of 2026-07-28 until one of the two ends it."""
        streams = self._streams.get(principal)
        if streams is None:
            bus = InMemorySubscriptionBus()
            fingerprint = self._catalogue.fingerprint(principal)
            streams = self._streams[principal] = _Streams(bus, ListenHandler(bus), fingerprint)
        streams.open += 1
        try:
            return await streams.handler(ctx, params)
        finally:
            streams.open -= 1
            if not streams.open and self._streams.get(principal) is streams:
                del self._streams[principal]

    def close(self) -> None:
        """End all streams."""
        for streams in list(self._streams.values()):
            streams.handler.close()

    # --- changes ----------------------------------------------------------------------------------

    async def tools_changed(self) -> None:
        """Notify the clients whose catalogue has changed."""
        current: dict[Principal, object] = {}

        def has_changed(client: ClientConnection | _Streams, principal: Principal) -> bool:
            if principal not in current:
                current[principal] = self._catalogue.fingerprint(principal)
            changed = current[principal] != client.fingerprint
            client.fingerprint = current[principal]
            return changed

        connections = [
            each for each in self._connections.values() if has_changed(each, each.principal)
        ]
        await _send_all(each.session.send_tool_list_changed() for each in connections)
        for principal, streams in list(self._streams.items()):
            if has_changed(streams, principal):
                await streams.bus.publish(ToolsListChanged())

    async def prompts_changed(self, sees: Callable[[Principal], bool]) -> None:
        clients = self._connections_of(sees)
        await _send_all(each.session.send_prompt_list_changed() for each in clients)
        for bus in self._buses_of(sees):
            await bus.publish(PromptsListChanged())

    async def resources_changed(self, sees: Callable[[Principal], bool]) -> None:
        clients = self._connections_of(sees)
        await _send_all(each.session.send_resource_list_changed() for each in clients)
        for bus in self._buses_of(sees):
            await bus.publish(ResourcesListChanged())

    async def resource_updated(self, uri: str, sees: Callable[[Principal], bool]) -> None:
        clients = [each for each in self._connections_of(sees) if uri in each.subscriptions]
        await _send_all(each.session.send_resource_updated(uri) for each in clients)
        for bus in self._buses_of(sees):
            await bus.publish(ResourceUpdated(uri))

    def _connections_of(self, sees: Callable[[Principal], bool]) -> list[ClientConnection]:
        return [each for each in self._connections.values() if sees(each.principal)]

    def _buses_of(self, sees: Callable[[Principal], bool]) -> list[InMemorySubscriptionBus]:
        return [each.bus for principal, each in self._streams.items() if sees(principal)]


async def _send_all(notifications: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Send notifications at the same time: a client that does not read must not delay others."""
    await asyncio.gather(*map(_send, notifications))


async def _send(notification: Coroutine[Any, Any, None]) -> None:
    try:
        async with asyncio.timeout(_SEND_SECONDS):
            await notification
    except Exception:  # noqa: BLE001 - the client has disconnected, or does not read
        _log.debug("a client could not be notified of a change", exc_info=True)
