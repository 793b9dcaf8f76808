"""The tools that a caller may see, as entries of `tools/list`, and notifications of changes.

An entry is made once for each contract. The registry decides which entries a caller gets. A client
is notified only of changes that it may see: in MCP 2025-11-25 on its connection, in MCP 2026-07-28
on streams that it opens for notifications.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
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

from counterseal.contract.formats import mcp
from counterseal.contract.model import Contract
from counterseal.gates.parse import is_id
from counterseal.gateway.calls import publishes_output
from counterseal.gateway.questions import LEVELS
from counterseal.gateway.resources import ResourceSubscription
from counterseal.ledger.records import RunRecord
from counterseal.proposal import Principal
from counterseal.registry import RegistryRecord
from counterseal.runtime import Runtime
from counterseal.telemetry import measure

_log = logging.getLogger("counterseal.gateway")

EFFECT: Final = "counterseal/effect"
VERSION: Final = "counterseal/version"
EXECUTED_BY: Final = "counterseal/executed_by"
"""Only of tools that the client carries out."""
_FRESH: Final = 1.0
"""Seconds for which a caller's list is kept while the registry does not change."""
_MAX_LISTS: Final = 4096


class Catalogue:
    """The tools of each caller."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._entries: dict[str, dict[str, Any]] = {}
        """By the contract's hash."""
        self._lists: dict[tuple[Principal, str | None], tuple[float, list[dict[str, Any]]]] = {}
        """With the time when they were made, because grants and versions end by date."""
        self._epoch = -1

    async def tools(self, principal: Principal, run_id: str | None) -> list[dict[str, Any]]:
        """Return the entries for a caller, ordered by name."""
        runtime = self._runtime
        await runtime.catch_up()
        if runtime.registry.epoch != self._epoch:
            self._lists.clear()
            self._entries.clear()
            self._epoch = runtime.registry.epoch
        run = await self._run(principal, run_id)
        if run is not None and (run.pins or run.allowed_tools is not None):
            # The pins of a run limit what it may use, and may grow with every call: no cache.
            records = runtime.registry.catalogue(principal, run.run_id, run.pins)
            allowed = run.allowed_tools
            return self._entries_of([r for r in records if allowed is None or r.name in allowed])
        key = (principal, run_id if run is None else run.run_id)
        made, entries = self._lists.get(key, (-inf, []))
        if monotonic() - made > _FRESH:
            if len(self._lists) > _MAX_LISTS:
                self._lists.clear()
            entries = self._entries_of(runtime.registry.catalogue(principal, key[1] or ""))
            if not entries and key not in self._lists:  # once until the registry changes
                withheld = " ".join(runtime.registry.withheld(principal).values())
                why = withheld or f"the agent has no grants in the tenant {principal.tenant}."
                _log.warning("a client of the agent %s sees no tools: %s", principal.agent, why)
            self._lists[key] = (monotonic(), entries)
        return entries

    async def _run(self, principal: Principal, run_id: str | None) -> RunRecord | None:
        """Return the run in which a call would be made, if it has begun."""
        store, tenant = self._runtime.store, principal.tenant
        if run_id is None:
            now = self._runtime.clock()
            return await store.find_implicit_run(tenant, principal.agent, principal.user, now)
        return await store.find_run(tenant, run_id) if is_id(run_id) else None

    def fingerprint(self, principal: Principal) -> tuple[tuple[str, str], ...]:
        """Return a value that changes whenever the catalogue of a caller does."""
        records = self._runtime.registry.catalogue(principal, "")
        return tuple((record.name, record.contract.hash) for record in records if _is_tool(record))

    def _entries_of(self, records: Sequence[RegistryRecord]) -> list[dict[str, Any]]:
        return [self._entry(record.contract) for record in records if _is_tool(record)]

    def _entry(self, contract: Contract) -> dict[str, Any]:
        entry = self._entries.get(contract.hash)
        if entry is None:
            entry = mcp(contract).tool
            if not publishes_output(contract):
                entry.pop("outputSchema", None)
            effect = None if contract.effect is None else contract.effect.value
            entry["_meta"] = {EFFECT: effect, VERSION: contract.version}
            if contract.by_client:
                entry["_meta"][EXECUTED_BY] = contract.executed_by.value
            self._entries[contract.hash] = entry
        return entry


def _is_tool(record: RegistryRecord) -> bool:
    """Return False for resources and prompts of upstreams, which have contracts, too."""
    binding = record.contract.mcp
    return binding is None or binding.kind == "tool"


# --- notifications --------------------------------------------------------------------------------


_SEND_SECONDS: Final = 5.0


@dataclass(eq=False, kw_only=True)
class ClientConnection:
    """An MCP 2025-11-25 connection, from its first notification to its end."""

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
    """All MCP 2026-07-28 streams of one principal."""

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
        """Return the MCP 2025-11-25 connection that a request came over."""
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
        """Serve one stream of an MCP 2026-07-28 client until the client or the server ends it."""
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

    async def upstream_changed(self, kind: str, sees: Callable[[Principal], bool]) -> None:
        """Notify the clients that see a change: of `prompts`, `resources` or `resource:URI`."""
        uri = kind.removeprefix("resource:")
        clients = [each for each in self._connections.values() if sees(each.principal)]
        if kind == "prompts":
            event: Any = PromptsListChanged()
            sending = [each.session.send_prompt_list_changed() for each in clients]
        elif kind == "resources":
            event = ResourcesListChanged()
            sending = [each.session.send_resource_list_changed() for each in clients]
        else:
            event = ResourceUpdated(uri)
            subscribed = [each for each in clients if uri in each.subscriptions]
            sending = [each.session.send_resource_updated(uri) for each in subscribed]
        await _send_all(sending)
        for principal, streams in list(self._streams.items()):
            if sees(principal):
                await streams.bus.publish(event)


async def _send_all(notifications: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Send notifications at the same time: a client that does not read must not delay others."""
    await asyncio.gather(*map(_send, notifications))


async def _send(notification: Coroutine[Any, Any, None]) -> None:
    try:
        async with asyncio.timeout(_SEND_SECONDS):
            await notification
    except Exception:  # noqa: BLE001 - the client has disconnected, or does not read
        _log.debug("a client could not be notified of a change", exc_info=True)
