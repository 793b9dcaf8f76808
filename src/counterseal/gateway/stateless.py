"""A shorter way for plain `tools/call` requests of 2026-07-28 over HTTP.

A request is taken here if it is one JSON message with nothing but a call in it. The SDK's own
checks (transport security, headers, envelope, params) are applied to it, and `ToolCalls` carries it
out as on the SDK's way. Left out is the SDK's machinery for requests that take several messages: a
task group, streams in memory, middleware, and the validation of results that we made ourselves.
Every other request goes to the SDK unchanged; nothing is refused here.

To remove this path: delete this file, its use in `McpServer.endpoint`, and tests/gateway/stateless.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, cast

import mcp_types as types
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.runner import modern_error_data
from mcp.server.streamable_http import check_accept_headers
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    X_MCP_HEADER_KEY,
    InboundModernRoute,
    classify_inbound_request,
    find_duplicated_routing_header,
)
from mcp_types.methods import serialize_server_result, validate_client_request
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from counterseal.canonical import thaw
from counterseal.gateway.calls import KEY, OPERATION, RUN, ToolCalls
from counterseal.proposal import Principal
from counterseal.registry import Registry
from counterseal.telemetry import listening

Ctx = ServerRequestContext[Any, Any]

_VERSION: Final = "2026-07-28"
_METHOD: Final = "tools/call"
_LONGEST: Final = 64 * 1024
"""Bytes of a request body; longer ones are left to the SDK."""
_MESSAGE: Final = frozenset({"jsonrpc", "id", "method", "params"})
_PARAMS: Final = frozenset({"name", "arguments", "_meta"})
_META: Final = frozenset(
    {
        types.PROTOCOL_VERSION_META_KEY,
        types.CLIENT_INFO_META_KEY,
        types.CLIENT_CAPABILITIES_META_KEY,
        RUN,
        KEY,
        OPERATION,
        "traceparent",
    }
)
"""Keys of `_meta` that ask for nothing but a result: no progress, no log messages."""
_SOON: Final = 0.2
"""Seconds after which a call is watched for a client that has gone."""
_PING: Final = 15.0
"""Seconds until an answer becomes a stream of events, and between its keep-alives."""
_EVENT_STREAM: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
]


class StatelessCalls:
    """Answers plain calls, and passes every other request to `app`, the SDK's application."""

    def __init__(
        self,
        app: ASGIApp,
        server: Server[Any],
        calls: ToolCalls,
        registry: Registry,
        *,
        caller: Callable[[], Principal],
        security: TransportSecuritySettings,
    ) -> None:
        self._app = app
        self._server = server
        self._calls = calls
        self._tools = _Tools(registry)
        self._caller = caller
        self._security = TransportSecurityMiddleware(security)
        self.taken = 0
        """How many calls were answered here."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        messages: list[Message] = []
        request, call = Request(scope), None
        if request.headers.get("mcp-protocol-version") == _VERSION:
            call = await self._call(request, receive, messages)
        if call is None:
            await self._app(scope, _replayed(messages, receive), send)
        else:
            self.taken += 1
            await self._answer(call, send, receive)

    async def _call(
        self, request: Request, receive: Receive, messages: list[Message]
    ) -> _Call | None:
        """Return the call in a request, or None for the SDK. `messages` gets what was received."""
        headers = request.headers
        if (
            request.method != "POST"
            or headers.get("mcp-method") != _METHOD
            or not all(check_accept_headers(request))
            or find_duplicated_routing_header(headers.items()) is not None
            or await self._security.validate_request(request, is_post=True) is not None
        ):
            return None
        body = await _body(receive, messages)
        message = None if body is None else _plain_message(body)
        if message is None or not self._tools.is_plain(message["params"]["name"]):
            return None
        route = classify_inbound_request(message, headers=dict(headers))
        if not isinstance(route, InboundModernRoute) or route.protocol_version != _VERSION:
            return None
        try:
            validate_client_request(_METHOD, _VERSION, message["params"])
        except ValidationError:
            return None
        connection = Connection.from_envelope(
            _VERSION, route.client_info, route.client_capabilities
        )
        return _Call(message, request, connection.client_capabilities)

    async def _answer(self, call: _Call, send: Send, receive: Receive) -> None:
        """Send the answer to a call. A client that disconnects before that cancels the call."""
        working = asyncio.ensure_future(self._response(call))
        gone: asyncio.Future[None] | None = None
        streaming = False
        try:
            await asyncio.wait({working}, timeout=_SOON)
            if not working.done():
                gone = asyncio.ensure_future(_disconnected(receive))
                streaming = await _kept_alive(working, gone, send)
            if working.done():
                await _send_message(working.result(), send, streaming=streaming)
        finally:
            if gone is not None:
                gone.cancel()
            if not working.done():
                working.cancel()
                await asyncio.wait({working})

    async def _response(self, call: _Call) -> dict[str, Any]:
        """Carry out a call and return the JSON-RPC message that answers it."""
        head = {"jsonrpc": "2.0", "id": call.request_id}
        try:
            return {**head, "result": await self._result(cast("Ctx", call))}
        except Exception as error:  # noqa: BLE001 - the SDK maps every exception to an answer
            problem = modern_error_data(error)
        return {**head, "error": problem.model_dump(by_alias=True, mode="json", exclude_none=True)}

    async def _result(self, call: Ctx) -> Any:
        if listening():  # the SDK's middleware makes the span of a request, and ours its measure
            return await self._through_middleware(call, self._carried_out)
        result = await self._carried_out(call)
        if result.get("resultType") != "input_required":
            return result

        async def give(_: Ctx) -> dict[str, Any]:
            return result

        return await self._through_middleware(call, give)  # it seals the state for the next round

    async def _carried_out(self, ctx: Ctx) -> dict[str, Any]:
        params = cast("Mapping[str, Any]", ctx.params)
        arguments = params.get("arguments", {})
        result = await self._calls.call_tool(ctx, params["name"], arguments, self._caller(), None)
        if not _is_simple(result):
            result = serialize_server_result(_METHOD, _VERSION, result)
        stamp = {types.SERVER_INFO_META_KEY: self._server.server_info_stamp}
        return {**result, "_meta": {**(result.get("_meta") or {}), **stamp}}

    async def _through_middleware(
        self, ctx: Ctx, inner: Callable[[Ctx], Awaitable[dict[str, Any]]]
    ) -> Any:
        call: Any = inner
        for middleware in reversed(self._server.middleware):
            call = partial(middleware, call_next=call)
        return await call(ctx)


class _Call:
    """A call as `ToolCalls` and the middleware see it: an SDK request context that has no channel.

    It is its own session: the client can't be asked anything while a call of 2026-07-28 runs.
    """

    method = _METHOD
    protocol_version = _VERSION

    def __init__(
        self,
        message: Mapping[str, Any],
        request: Request,
        capabilities: types.ClientCapabilities | None,
    ) -> None:
        self.request_id: int | str = message["id"]
        self.params: Mapping[str, Any] = message["params"]
        self.meta: Mapping[str, Any] = message["params"]["_meta"]
        self.request = request
        self.client_capabilities = capabilities
        self.session = self

    async def send_request(self, request: types.ServerRequest, *_: Any, **__: Any) -> Any:
        raise NoBackChannelError(request.method)


class _Tools:
    """The tools whose calls may be taken here; looked up anew when the registry changes."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._plain: dict[str, bool] = {}
        self._epoch = -1

    def is_plain(self, name: str) -> bool:
        """Return True if the tool exists and wants none of its arguments repeated in headers."""
        if self._epoch != self._registry.epoch:
            self._epoch, self._plain = self._registry.epoch, {}
        if name not in self._plain:
            versions = self._registry.versions(name)
            if not versions:
                return False
            self._plain[name] = not any(
                X_MCP_HEADER_KEY in json.dumps(thaw(record.contract.affordance.input_schema))
                for record in versions
            )
        return self._plain[name]


# --- requests -------------------------------------------------------------------------------------


async def _body(receive: Receive, messages: list[Message]) -> bytes | None:
    """Return a whole request body, or None if it is too long or the client has gone."""
    body = bytearray()
    while True:
        message = await receive()
        messages.append(message)
        body += message.get("body", b"")
        if message["type"] != "http.request" or len(body) > _LONGEST:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _replayed(messages: list[Message], receive: Receive) -> Receive:
    """Return a `receive` that gives the messages that were received already first."""
    if not messages:
        return receive
    left = list(reversed(messages))

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay


def _plain_message(body: bytes) -> dict[str, Any] | None:
    """Return the JSON-RPC message if it is a call with nothing unusual in it."""
    try:
        message = from_json(body)
    except ValueError:
        return None
    if not isinstance(message, dict) or message.keys() != _MESSAGE:
        return None
    params = message["params"]
    if (
        message["jsonrpc"] != "2.0"
        or message["method"] != _METHOD
        or type(message["id"]) not in (int, str)
        or not isinstance(params, dict)
        or not params.keys() <= _PARAMS
    ):
        return None
    meta = params.get("_meta")
    if (
        not isinstance(params.get("name"), str)
        or not isinstance(params.get("arguments", {}), dict)
        or not isinstance(meta, dict)
        or not meta.keys() <= _META
    ):
        return None
    return message


# --- answers --------------------------------------------------------------------------------------


def _is_simple(result: Mapping[str, Any]) -> bool:
    """Return True for one text and perhaps an object, which need no validation."""
    content = result.get("content")
    return (
        isinstance(content, list)
        and len(content) == 1
        and content[0].get("type") == "text"
        and isinstance(result.get("structuredContent", {}), dict)
    )


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _kept_alive(working: asyncio.Future[Any], gone: asyncio.Future[None], send: Send) -> bool:
    """Wait for a slow call, or for its client to disconnect. Return True if a stream was begun."""
    streaming = False
    while True:
        waiting: set[asyncio.Future[Any]] = {working, gone}
        await asyncio.wait(waiting, timeout=_PING, return_when=asyncio.FIRST_COMPLETED)
        if working.done() or gone.done():
            return streaming
        if not streaming:
            streaming = True
            await send({"type": "http.response.start", "status": 200, "headers": _EVENT_STREAM})
        await send({"type": "http.response.body", "body": b": ping\r\n\r\n", "more_body": True})


async def _send_message(message: Mapping[str, Any], send: Send, *, streaming: bool) -> None:
    body = json.dumps(message, separators=(",", ":")).encode()
    if streaming:
        body = b"event: message\r\ndata: %b\r\n\r\n" % body
        await send({"type": "http.response.body", "body": body})
        return
    error = message.get("error")
    status = 200 if error is None else ERROR_CODE_HTTP_STATUS.get(error["code"], 200)
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
