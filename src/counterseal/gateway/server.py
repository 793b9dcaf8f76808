"""The MCP server: which request is answered by whom. On the SDK's low-level server, both revisions.

Holds no rule of its own. Handlers find out who calls, and hand over to the room that knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
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
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from starlette.types import ASGIApp

from counterseal import __version__
from counterseal.contract.model import Contract
from counterseal.gateway.answering import COMPLETE
from counterseal.gateway.asking import LEVELS, is_modern
from counterseal.gateway.calling import RAW, Calling, run_of
from counterseal.gateway.catalogue import Catalogue
from counterseal.gateway.relaying import Relaying
from counterseal.gateway.stateless import StatelessCalls
from counterseal.gateway.telling import ClientConnection, Telling
from counterseal.gateway.upstreams import Behind
from counterseal.gateway.waiting import Waiting
from counterseal.keys import KeyRing, derived_key
from counterseal.proposal import Principal
from counterseal.runtime import Runtime
from counterseal.telemetry import listening, measure

__all__ = ["Front", "McpServer"]

Ctx = ServerRequestContext[Any, Any]

_log = logging.getLogger("counterseal.gateway")

_PAGE: Final = 1000
_STATE_SECONDS: Final = 3600.0
"""For how long a client may take to come back with an answer."""
_SESSION_HEADER: Final = "mcp-session-id"
_EPOCH_LOOK: Final = 0.2
_STORE_LOOK: Final = 1.0
_DATE_LOOK: Final = 60.0
_CREDENTIAL_LOOK: Final = 15.0
"""Seconds between looks: has the registry changed, the store, a date come, a credential ended?"""
_FRESH: Final = CacheHint(ttl_ms=0, scope="private")
"""Lists are a caller's own, and may change with every grant."""


class McpServer(Server[Any]):
    """The SDK's, which says in its handshake that lists may change."""

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


class Front:
    """The server of one runtime, and what it remembers of those who are connected."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        who: Callable[[], Principal],
        console: str,
        wait: float = 20.0,
        session: str | None = None,
        behind: Behind | None = None,
        valid: Callable[[AccessToken], Awaitable[bool]] | None = None,
        title: str = "Counterseal",
    ) -> None:
        self.runtime = runtime
        self.catalogue = Catalogue(runtime)
        self.telling = Telling(self.catalogue)
        self._who = who
        self._session = session
        self._valid = valid
        waiting = Waiting(runtime, console=console, seconds=wait)
        asks = behind.relays if behind is not None else _never
        self.calling = Calling(runtime, waiting, asks, self._log_level)
        self.relaying: Relaying | None = None
        if behind is not None and any(
            one.resources or one.prompts for one in behind.plans.values()
        ):
            self.relaying = Relaying(behind, self.calling)
        self._behind = behind
        self.server = self._made(title)

    def _made(self, title: str) -> McpServer:
        server = McpServer(
            "counterseal",
            version=__version__,
            title=title,
            cache_hints={
                "tools/list": _FRESH,
                "prompts/list": _FRESH,
                "resources/list": _FRESH,
                "resources/templates/list": _FRESH,
                "resources/read": _FRESH,
                "server/discover": _FRESH,
            },
            get_tool_input_schema=self._input_schema,
        )
        handlers: list[tuple[str, Any, Any]] = [
            ("tools/list", types.PaginatedRequestParams, self._list_tools),
            ("tools/call", types.CallToolRequestParams, self._call_tool),
            ("subscriptions/listen", types.SubscriptionsListenRequestParams, self._listen),
            ("logging/setLevel", types.SetLevelRequestParams, self._set_level),
        ]
        if self.relaying is not None:
            handlers += [
                ("resources/list", types.PaginatedRequestParams, self._list_resources),
                ("resources/templates/list", types.PaginatedRequestParams, self._list_templates),
                ("resources/read", types.ReadResourceRequestParams, self._read_resource),
                ("resources/subscribe", types.SubscribeRequestParams, self._subscribe),
                ("resources/unsubscribe", types.UnsubscribeRequestParams, self._unsubscribe),
                ("prompts/list", types.PaginatedRequestParams, self._list_prompts),
                ("prompts/get", types.GetPromptRequestParams, self._get_prompt),
                ("completion/complete", types.CompleteRequestParams, self._complete),
            ]
        for method, params, handler in handlers:
            server.add_request_handler(method, params, handler)
        server.middleware.append(
            RequestStateBoundary(_security(self.runtime.keys), default_audience="counterseal")
        )
        server.middleware.append(self._observe)
        server.middleware.insert(0, self._keep_connection)
        return server

    def endpoint(
        self, manager: StreamableHTTPSessionManager, security: TransportSecuritySettings
    ) -> ASGIApp:
        """What answers under the server's URL, to those who were let in."""
        return StatelessCalls(
            StreamableHTTPASGIApp(manager),
            self.server,
            self.calling,
            self.runtime.registry,
            who=self._who,
            security=security,
        )

    # --- what every request passes ----------------------------------------------------------------

    async def _keep_connection(self, ctx: Ctx, call_next: CallNext) -> HandlerResult:
        """Keep a connection of 2025-11-25 known for as long as it lasts.

        The SDK runs each notification in a task of its connection, and cancels the task when the
        connection ends. So this one waits for that, after the span of the notification has ended.
        """
        result = await call_next(ctx)
        if ctx.method == "notifications/initialized" and not is_modern(ctx):
            who = self._who()
            with self.telling.connected(ctx, who) as connection:
                try:
                    if connection is not None:
                        await anyio.sleep_forever()
                finally:
                    if connection is not None and self.relaying is not None:
                        self.relaying.leave(who, connection.followed.values())
        return result

    async def _observe(self, ctx: Ctx, call_next: CallNext) -> HandlerResult:
        """Time it, and let odd arguments reach the first gate."""
        if not listening() or ctx.request_id is None:
            return await self._prepared(ctx, call_next)
        began, failed = monotonic(), None
        try:
            result = await self._prepared(ctx, call_next)
            if isinstance(result, Mapping) and result.get("isError") is True:
                failed = "tool_error"
        except MCPError as error:
            failed = str(error.error.code)
            raise
        except BaseException as error:
            failed = type(error).__name__
            raise
        finally:
            measure("mcp.server.operation.duration", monotonic() - began, _about(ctx, failed))
        return result

    async def _prepared(self, ctx: Ctx, call_next: CallNext) -> HandlerResult:
        given = ctx.params or {}
        arguments = given.get("arguments")
        odd = arguments is not None and not isinstance(arguments, Mapping)
        if ctx.method != "tools/call" or not odd:
            return await call_next(ctx)
        token = RAW.set(arguments)
        try:
            return await call_next(replace(ctx, params={**given, "arguments": {}}))
        finally:
            RAW.reset(token)

    def _run(self, ctx: Ctx, who: Principal) -> str | None:
        return run_of(ctx, who, self._session_of(ctx))

    def _session_of(self, ctx: Ctx) -> str | None:
        if self._session is not None:
            return self._session
        headers = getattr(ctx.request, "headers", None)
        found = headers.get(_SESSION_HEADER) if headers is not None and not is_modern(ctx) else None
        return found if isinstance(found, str) else None

    def _input_schema(self, name: str) -> Mapping[str, Any] | None:
        """For the check of headers against arguments, which comes before anybody is known."""
        line = self.runtime.registry.versions(name)
        return line[0].contract.affordance.input_schema if line else None

    # --- tools ------------------------------------------------------------------------------------

    async def _list_tools(
        self, ctx: Ctx, params: types.PaginatedRequestParams | None
    ) -> dict[str, Any]:
        who = self._who()
        found = await self.catalogue.tools(who, self._run(ctx, who))
        start = _start(params.cursor if params else None, len(found))
        more = {"nextCursor": str(start + _PAGE)} if start + _PAGE < len(found) else {}
        return {**COMPLETE, "tools": found[start : start + _PAGE], **more}

    async def _call_tool(self, ctx: Ctx, params: types.CallToolRequestParams) -> dict[str, Any]:
        return await self.calling.call(ctx, params, self._who(), self._session_of(ctx))

    # --- what changes -----------------------------------------------------------------------------

    async def keep_telling(self) -> None:
        """Tell clients of changes, wherever they were made. Until cancelled."""
        registry, told = self.runtime.registry, self.runtime.registry.epoch
        last = all_told = monotonic()
        while True:
            await asyncio.sleep(_EPOCH_LOOK)
            try:
                if monotonic() - last > _STORE_LOOK:
                    last = monotonic()
                    await self.runtime.catch_up()
                # A grant may end, or a version be removed, by its date alone.
                if registry.epoch != told or monotonic() - all_told > _DATE_LOOK:
                    told, all_told = registry.epoch, monotonic()
                    await self.telling.tools_changed()
            except Exception:  # noqa: BLE001 - a store that is away for a while ends nothing here
                _log.exception("clients could not be told of a change")

    def upstream_changed(self, server: str, kind: str) -> None:
        """An upstream says that something of its own has changed: pass that on."""
        behind, telling = self._behind, self.telling
        if behind is None or self.relaying is None:
            return
        what = "prompts" if kind == "prompts" else "resources"

        def sees(who: Principal) -> bool:
            return behind.uses(who, server, what)

        self.relaying.forget()
        if kind == "prompts":
            work = telling.prompts_changed(sees)
        elif kind == "resources":
            work = telling.resources_changed(sees)
        else:
            work = telling.resource_updated(kind.removeprefix("resource:"), sees)
        self.runtime.begin_if_open(work)

    async def _listen(
        self, ctx: Ctx, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        who = self._who()
        uris = params.notifications.resource_subscriptions or ()
        followed = [] if self.relaying is None else await self.relaying.follow_all(who, uris)
        listening = asyncio.ensure_future(self.telling.listen(ctx, params, who))
        try:
            while not listening.done():
                await asyncio.wait({listening}, timeout=_CREDENTIAL_LOOK)
                if not listening.done() and not await self._still_let_in():
                    raise MCPError(code=types.INVALID_REQUEST, message="the credential has ended")
            return listening.result()
        finally:
            listening.cancel()
            if self.relaying is not None:
                self.relaying.leave(who, followed)

    async def _still_let_in(self) -> bool:
        identity = get_access_token()
        return identity is None or self._valid is None or await self._valid(identity)

    async def _set_level(self, ctx: Ctx, params: types.SetLevelRequestParams) -> types.EmptyResult:
        if params.level in LEVELS:
            self._connection(ctx).log_level = params.level
        return types.EmptyResult()

    def _log_level(self, ctx: Ctx) -> str:
        """Return the least level of log messages that a client of 2025-11-25 wants."""
        connection = self.telling.connection(ctx)
        return LEVELS[0] if connection is None else connection.log_level

    def _connection(self, ctx: Ctx) -> ClientConnection:
        connection = self.telling.connection(ctx)
        if connection is None:
            raise MCPError(
                code=types.INVALID_REQUEST,
                message="The session is not open yet. Send notifications/initialized first.",
            )
        return connection

    # --- passed on --------------------------------------------------------------------------------

    async def _list_resources(
        self, ctx: Ctx, params: types.PaginatedRequestParams | None
    ) -> dict[str, Any]:
        return {**COMPLETE, "resources": await self._relay.resources(self._who())}

    async def _list_templates(
        self, ctx: Ctx, params: types.PaginatedRequestParams | None
    ) -> dict[str, Any]:
        found = await self._relay.templates(self._who())
        return {**COMPLETE, "resourceTemplates": found}

    async def _read_resource(
        self, ctx: Ctx, params: types.ReadResourceRequestParams
    ) -> dict[str, Any]:
        who = self._who()
        return await self._relay.read(ctx, params, who, self._run(ctx, who))

    async def _subscribe(self, ctx: Ctx, params: types.SubscribeRequestParams) -> types.EmptyResult:
        uri, who, relay = str(params.uri), self._who(), self._relay
        connection = self._connection(ctx)
        if uri not in connection.followed:
            followed = await relay.follow(who, uri)
            if connection.followed.setdefault(uri, followed) is not followed:
                relay.leave(who, [followed])  # a second request for it was faster
        return types.EmptyResult()

    async def _unsubscribe(
        self, ctx: Ctx, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        followed = self._connection(ctx).followed.pop(str(params.uri), None)
        if followed is not None:
            self._relay.leave(self._who(), [followed])
        return types.EmptyResult()

    async def _list_prompts(
        self, ctx: Ctx, params: types.PaginatedRequestParams | None
    ) -> dict[str, Any]:
        return {**COMPLETE, "prompts": await self._relay.prompts(self._who())}

    async def _get_prompt(self, ctx: Ctx, params: types.GetPromptRequestParams) -> dict[str, Any]:
        who = self._who()
        return await self._relay.prompt(ctx, params, who, self._run(ctx, who))

    async def _complete(self, ctx: Ctx, params: types.CompleteRequestParams) -> dict[str, Any]:
        return await self._relay.complete(params, self._who())

    @property
    def _relay(self) -> Relaying:
        if self.relaying is None:
            raise MCPError(code=types.METHOD_NOT_FOUND, message="Method not found")
        return self.relaying


def _about(ctx: Ctx, failed: str | None) -> dict[str, Any]:
    """A request in the words of the conventions for MCP."""
    name = (ctx.params or {}).get("name")
    tool = name if ctx.method == "tools/call" and isinstance(name, str) else None
    prompt = name if ctx.method == "prompts/get" and isinstance(name, str) else None
    return {
        "mcp.method.name": ctx.method,
        "mcp.protocol.version": ctx.protocol_version,
        "network.transport": "pipe" if ctx.request is None else "tcp",
        "gen_ai.operation.name": "execute_tool" if tool else None,
        "gen_ai.tool.name": tool,
        "gen_ai.prompt.name": prompt,
        "error.type": failed,
    }


def _never(_: Contract) -> bool:
    return False


def _start(cursor: str | None, length: int) -> int:
    if cursor is None:
        return 0
    if not cursor.isascii() or not cursor.isdigit() or not 0 < int(cursor[:9]) < length:
        raise MCPError(code=types.INVALID_PARAMS, message="cursor: there is no such page")
    return int(cursor[:9])


def _security(ring: KeyRing | None) -> RequestStateSecurity:
    """State is opened by every worker that has the same vault keys, else by this process only."""
    key = derived_key(ring, "mcp request state")
    if key is None:
        return RequestStateSecurity.ephemeral(ttl=_STATE_SECONDS)
    return RequestStateSecurity(keys=[key], ttl=_STATE_SECONDS)
