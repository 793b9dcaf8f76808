"""The MCP server: which part of the gateway answers which request.

It is the SDK's low-level server with our handlers, for MCP 2025-11-25 and 2026-07-28. A handler
finds out the caller, and hands over to the part that knows the answer; no rule is decided here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, Final

import anyio
import mcp_types as types
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.caching import CacheHint
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPError

from counterseal import __version__
from counterseal.gateway.calls import COMPLETE, RAW_ARGUMENTS, ApprovalWait, ToolCalls, run_of
from counterseal.gateway.catalogue import Catalogue, ClientConnection, Notifications
from counterseal.gateway.questions import LEVELS, is_modern
from counterseal.gateway.resources import LISTS, UpstreamResources
from counterseal.gateway.upstream_tools import UpstreamTools
from counterseal.keys import derived_key
from counterseal.proposal import Principal
from counterseal.runtime import Runtime
from counterseal.telemetry import listening, measure

Ctx = ServerRequestContext[Any, Any]

_log = logging.getLogger("counterseal.gateway")

_PAGE: Final = 1000
_STATE_SECONDS: Final = 3600.0
"""How long a client may take to call again with answers."""
_REGISTRY_CHECK: Final = 0.2
_STORE_CHECK: Final = 1.0
_DATE_CHECK: Final = 60.0
_CREDENTIAL_CHECK: Final = 15.0
"""Seconds between checks: of this process's registry, of the store, of dates that end something,
and of the credential of an open stream."""
_UNCACHED: Final = (
    *("tools/list", "prompts/list", "resources/list", "resources/templates/list"),
    *("resources/read", "server/discover"),
)
"""Answers that clients may not keep: they belong to one caller, and may change with every grant."""


class McpServer:
    """The MCP server of one runtime, and the clients that are connected to it."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        caller: Callable[[], Principal],
        console: str,
        wait: float = 20.0,
        session: str | None = None,
        upstreams: UpstreamTools | None = None,
        valid: Callable[[AccessToken], Awaitable[bool]] | None = None,
    ) -> None:
        self.runtime = runtime
        self.catalogue = Catalogue(runtime)
        self.notifications = Notifications(self.catalogue)
        self._caller = caller
        self._session = session
        self._valid = valid
        approvals = ApprovalWait(runtime, console=console, seconds=wait)
        relays_questions = upstreams.relays_questions if upstreams else lambda _: False
        self.calls = ToolCalls(runtime, approvals, relays_questions, self._log_level)
        self.resources: UpstreamResources | None = None
        if upstreams is not None and any(
            own.table.resources or own.table.prompts for own in upstreams.contracts.values()
        ):
            self.resources = UpstreamResources(upstreams, self.calls)
        self._upstreams = upstreams
        self.sdk_server = self._new_sdk_server()

    def _new_sdk_server(self) -> Server[Any]:
        server = _SdkServer(
            "counterseal",
            version=__version__,
            title="Counterseal",
            cache_hints=dict.fromkeys(_UNCACHED, CacheHint(ttl_ms=0, scope="private")),
            get_tool_input_schema=self._input_schema,
        )
        add, page = server.add_request_handler, types.PaginatedRequestParams
        add("tools/list", page, self._list_tools)
        add("tools/call", types.CallToolRequestParams, self._with_caller(self.calls.call))
        add("subscriptions/listen", types.SubscriptionsListenRequestParams, self._listen)
        add("logging/setLevel", types.SetLevelRequestParams, self._set_level)
        if self.resources is not None:
            resources, with_caller = self.resources, self._with_caller
            for method in LISTS:
                add(method, page, partial(self._list, resources, method))
            add("resources/read", types.ReadResourceRequestParams, with_caller(resources.read))
            add("prompts/get", types.GetPromptRequestParams, with_caller(resources.prompt))
            add("completion/complete", types.CompleteRequestParams, with_caller(resources.complete))
            add("resources/subscribe", types.SubscribeRequestParams, self._subscribe)
            add("resources/unsubscribe", types.UnsubscribeRequestParams, self._unsubscribe)
        # The state of a call between rounds. Every worker with the same vault keys can open it;
        # without vault keys only this process can.
        key = derived_key(self.runtime.keys, "mcp request state")
        security = (
            RequestStateSecurity.ephemeral(ttl=_STATE_SECONDS)
            if key is None
            else RequestStateSecurity(keys=[key], ttl=_STATE_SECONDS)
        )
        server.middleware.append(RequestStateBoundary(security, default_audience="counterseal"))
        server.middleware.append(self._measure)
        server.middleware.insert(0, self._keep_connection)
        return server

    # --- middleware -------------------------------------------------------------------------------

    async def _keep_connection(self, ctx: Ctx, call_next: CallNext) -> HandlerResult:
        """Notify an MCP 2025-11-25 connection of changes for as long as it lasts.

        The SDK runs each notification in a task of its connection, and cancels the task when the
        connection ends. So this one waits for that, after the span of the notification has ended.
        """
        result = await call_next(ctx)
        if ctx.method == "notifications/initialized" and not is_modern(ctx):
            principal = self._caller()
            with self.notifications.connected(ctx, principal) as connection:
                try:
                    if connection is not None:
                        await anyio.sleep_forever()
                finally:
                    if connection is not None and self.resources is not None:
                        self.resources.unsubscribe(principal, connection.subscriptions.values())
        return result

    async def _measure(self, ctx: Ctx, call_next: CallNext) -> HandlerResult:
        """Measure the duration of a request."""
        if not listening() or ctx.request_id is None:
            return await self._with_raw_arguments(ctx, call_next)
        began, failed = monotonic(), None
        try:
            result = await self._with_raw_arguments(ctx, call_next)
            if isinstance(result, Mapping) and result.get("isError") is True:
                failed = "tool_error"
        except MCPError as error:
            failed = str(error.error.code)
            raise
        except BaseException as error:
            failed = type(error).__name__
            raise
        finally:
            name = (ctx.params or {}).get("name")
            named = {ctx.method: name} if isinstance(name, str) else {}
            attributes = {  # named by OpenTelemetry's conventions for MCP
                "mcp.method.name": ctx.method,
                "mcp.protocol.version": ctx.protocol_version,
                "network.transport": "pipe" if ctx.request is None else "tcp",
                "gen_ai.operation.name": "execute_tool" if named.get("tools/call") else None,
                "gen_ai.tool.name": named.get("tools/call"),
                "gen_ai.prompt.name": named.get("prompts/get"),
                "error.type": failed,
            }
            measure("mcp.server.operation.duration", monotonic() - began, attributes)
        return result

    async def _with_raw_arguments(self, ctx: Ctx, call_next: CallNext) -> HandlerResult:
        """Let arguments that are no object pass the SDK, so that the first gate refuses them."""
        params = ctx.params or {}
        arguments = params.get("arguments")
        invalid = arguments is not None and not isinstance(arguments, Mapping)
        if ctx.method != "tools/call" or not invalid:
            return await call_next(ctx)
        token = RAW_ARGUMENTS.set(arguments)
        try:
            return await call_next(replace(ctx, params={**params, "arguments": {}}))
        finally:
            RAW_ARGUMENTS.reset(token)

    def _run(self, ctx: Ctx, principal: Principal) -> str | None:
        session, headers = self._session, getattr(ctx.request, "headers", None)
        if session is None and headers is not None and not is_modern(ctx):
            session = headers.get("mcp-session-id")
        return run_of(ctx, principal, session)

    def _input_schema(self, name: str) -> Mapping[str, Any] | None:
        """Return the schema by which the SDK checks headers against arguments."""
        versions = self.runtime.registry.versions(name)
        return versions[0].contract.affordance.input_schema if versions else None

    # --- tools ------------------------------------------------------------------------------------

    async def _list_tools(
        self, ctx: Ctx, params: types.PaginatedRequestParams | None
    ) -> dict[str, Any]:
        principal = self._caller()
        tools = await self.catalogue.tools(principal, self._run(ctx, principal))
        cursor = params.cursor if params else None
        start = int(cursor[:9]) if cursor and cursor.isascii() and cursor.isdigit() else 0
        if cursor is not None and not 0 < start < len(tools):
            raise MCPError(
                code=types.INVALID_PARAMS,
                message="cursor: not a cursor of this list. "
                "Leave it out to start at the first page.",
            )
        more = {"nextCursor": str(start + _PAGE)} if start + _PAGE < len(tools) else {}
        return {**COMPLETE, "tools": tools[start : start + _PAGE], **more}

    # --- changes ----------------------------------------------------------------------------------

    async def notify_changes(self) -> None:
        """Notify clients of changes in the registry, made by any process, until cancelled."""
        registry = self.runtime.registry
        epoch = registry.epoch
        store_checked = notified = monotonic()
        while True:
            await asyncio.sleep(_REGISTRY_CHECK)
            try:
                if monotonic() - store_checked > _STORE_CHECK:
                    store_checked = monotonic()
                    await self.runtime.catch_up()
                # Grants and versions may also end by their date.
                if registry.epoch != epoch or monotonic() - notified > _DATE_CHECK:
                    epoch, notified = registry.epoch, monotonic()
                    await self.notifications.tools_changed()
            except Exception:  # noqa: BLE001 - go on when the store is back
                _log.exception("clients could not be notified of a change")

    def upstream_changed(self, server: str, kind: str) -> None:
        """Notify clients of a change of an upstream's resources or prompts."""
        upstreams, notifications = self._upstreams, self.notifications
        if upstreams is None or self.resources is None:
            return
        what = "prompts" if kind == "prompts" else "resources"

        def sees(principal: Principal) -> bool:
            return upstreams.allows(principal, server, what)

        self.resources.owners.clear()  # look up again which upstream has what
        self.runtime.begin_if_open(notifications.upstream_changed(kind, sees))

    async def _listen(
        self, ctx: Ctx, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        principal = self._caller()
        uris = params.notifications.resource_subscriptions or ()
        resources = self.resources
        subscriptions = [] if resources is None else await resources.subscribe_all(principal, uris)
        stream = asyncio.ensure_future(self.notifications.listen(ctx, params, principal))
        try:
            while not stream.done():
                await asyncio.wait({stream}, timeout=_CREDENTIAL_CHECK)
                token = get_access_token()
                if stream.done() or token is None or self._valid is None:
                    continue
                if not await self._valid(token):
                    raise MCPError(
                        code=types.INVALID_REQUEST, message="the credential is not valid any more"
                    )
            return stream.result()
        finally:
            stream.cancel()
            if resources is not None:
                resources.unsubscribe(principal, subscriptions)

    async def _set_level(self, ctx: Ctx, params: types.SetLevelRequestParams) -> types.EmptyResult:
        if params.level in LEVELS:
            self._connection(ctx).log_level = params.level
        return types.EmptyResult()

    def _log_level(self, ctx: Ctx) -> str:
        """Return the least level of log messages that an MCP 2025-11-25 client wants."""
        connection = self.notifications.connection(ctx)
        return LEVELS[0] if connection is None else connection.log_level

    def _connection(self, ctx: Ctx) -> ClientConnection:
        connection = self.notifications.connection(ctx)
        if connection is None:
            raise MCPError(
                code=types.INVALID_REQUEST,
                message="The session is not open yet. Send notifications/initialized first.",
            )
        return connection

    # --- resources and prompts --------------------------------------------------------------------

    async def _list(
        self, resources: UpstreamResources, method: str, ctx: Ctx, params: object
    ) -> dict[str, Any]:
        return {**COMPLETE, LISTS[method]: await resources.items(self._caller(), method)}

    def _with_caller(
        self, handler: Callable[..., Awaitable[dict[str, Any]]]
    ) -> Callable[[Ctx, Any], Awaitable[dict[str, Any]]]:
        """Return a handler that also gets the principal and the run of a request."""

        async def handle(ctx: Ctx, params: Any) -> dict[str, Any]:
            principal = self._caller()
            return await handler(ctx, params, principal, self._run(ctx, principal))

        return handle

    async def _subscribe(self, ctx: Ctx, params: types.SubscribeRequestParams) -> types.EmptyResult:
        uri, principal, resources = str(params.uri), self._caller(), self.resources
        held = self._connection(ctx).subscriptions
        if resources is not None and uri not in held:
            subscription = await resources.subscribe(principal, uri)
            if held.setdefault(uri, subscription) is not subscription:
                resources.unsubscribe(principal, [subscription])  # another request was faster
        return types.EmptyResult()

    async def _unsubscribe(
        self, ctx: Ctx, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        subscription = self._connection(ctx).subscriptions.pop(str(params.uri), None)
        if self.resources is not None and subscription is not None:
            self.resources.unsubscribe(self._caller(), [subscription])
        return types.EmptyResult()


class _SdkServer(Server[Any]):
    """The SDK's server, which announces in its handshake that lists may change."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        options = notification_options or NotificationOptions(
            tools_changed=True, resources_changed=True, prompts_changed=True
        )
        return super().create_initialization_options(options, experimental_capabilities, extensions)
