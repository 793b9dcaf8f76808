"""`POST /mcp` with a call in it, from its headers to its answer.

In front of it everybody was let in or not; behind it is `calling`, as on the long way. Calls may be
handed over to the long way as long as they are read only, and those of sessions even after that:
the observation goes along, so nothing is carried out twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from counterseal.gateway.calling import HANDED, Calling, NeedsClientError
from counterseal.gateway.short.answer import Answer
from counterseal.gateway.short.reading import LEGACY, MODERN, Asked, Reading
from counterseal.gateway.short.request import ShortRequest
from counterseal.gateway.short.sessions import HEADER, Session, Sessions
from counterseal.gateway.short.shaping import Shaping
from counterseal.gateway.short.tools import Tools
from counterseal.proposal import Principal
from counterseal.telemetry import listening

__all__ = ["ShortPath"]

Ctx = ServerRequestContext[Any, Any]

_log = logging.getLogger("counterseal.gateway")

_VERSION: Final = b"mcp-protocol-version"
_SESSION: Final = HEADER.encode()
_MODERN, _LEGACY = MODERN.encode(), LEGACY.encode()
_CANCELLED: Final = {"code": REQUEST_CANCELLED, "message": "Request cancelled"}
_CLOSED: Final = {"code": types.CONNECTION_CLOSED, "message": "Connection closed"}


class ShortPath:
    """Answers calls that ask for nothing unusual, and leaves the rest to `app`, the SDK's."""

    def __init__(
        self,
        app: ASGIApp,
        server: Server[Any],
        calling: Calling,
        tools: Tools,
        sessions: Sessions,
        *,
        who: Callable[[], Principal],
        security: TransportSecuritySettings,
    ) -> None:
        self._long = app
        self._server = server
        self._calling = calling
        self._tools = tools
        self._sessions = sessions
        self._who = who
        self._reading = Reading(security)
        self._shaping = Shaping(server)
        self.taken = 0
        """How many calls have come this way."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = self._reading.headers(scope)
        if headers is None:
            await self._the_long_way(scope, receive, send)
            return
        version = headers.get(_VERSION)
        session = None
        if version == _LEGACY:
            session = self._sessions.find(headers.get(_SESSION))
        if version != _MODERN and (session is None or not session.is_for(scope.get("user"))):
            await self._the_long_way(scope, receive, send)
            return
        message = await receive()
        asked = None
        if message["type"] == "http.request" and not message.get("more_body"):
            asked = self._read(headers, message.get("body", b""), session)
        if asked is None:
            await self._the_long_way(scope, _first(message, receive), send)
        elif session is None:
            self.taken += 1
            await self._modern(asked, scope, receive, send)
        else:
            self.taken += 1
            await self._legacy(asked, session, scope, _first(message, receive), send)

    def _read(
        self, headers: Mapping[bytes, bytes], body: bytes, session: Session | None
    ) -> Asked | None:
        if session is None:
            asked = self._reading.modern(headers, body)
            return asked if asked is not None and self._tools.is_plain(asked.name) else None
        asked = self._reading.legacy(body)
        if asked is None or session.connection.protocol_version != LEGACY:
            return None
        can = session.connection.client_capabilities
        twice = coerce_request_id(asked.id) in session.calls
        return None if twice or self._tools.may_ask(asked.name, can) else asked

    async def _the_long_way(self, scope: Scope, receive: Receive, send: Send) -> None:
        for name, value in scope["headers"]:
            if name == _SESSION:
                session = self._sessions.find(value)
                if session is not None and session.is_owned_by(scope.get("user")):
                    session.seen(ending=scope["method"] == "DELETE")
        await self._long(scope, receive, send)

    # --- 2026-07-28 -------------------------------------------------------------------------------

    async def _modern(self, asked: Asked, scope: Scope, receive: Receive, send: Send) -> None:
        answer = Answer(scope, receive, send, None)
        try:
            told = await self._outcome(asked, MODERN, answer, None)
        except asyncio.CancelledError:
            await answer.leave()
            if not answer.gone:
                raise
            _stay()  # nobody is there to be answered, and nobody else wanted this task to end
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told what the SDK would
            told = {"error": _modern_error(error)}
        status = ERROR_CODE_HTTP_STATUS.get(told["error"]["code"], 200) if "error" in told else 200
        await answer.end({"jsonrpc": "2.0", "id": asked.id, **told}, status)

    # --- 2025-11-25 -------------------------------------------------------------------------------

    async def _legacy(
        self, asked: Asked, session: Session, scope: Scope, receive: Receive, send: Send
    ) -> None:
        answer = Answer(scope, receive, send, session.name)
        number = coerce_request_id(asked.id)
        session.calls[number] = cast("asyncio.Task[Any]", asyncio.current_task())
        try:
            told = await self._outcome(asked, LEGACY, answer, session)
        except NeedsClientError as error:
            del session.calls[number]
            await answer.leave()
            await self._hand_over(error, scope, receive, _goes_on(send) if answer.begun else send)
            return
        except asyncio.CancelledError:
            if number not in session.taken_back and not session.over:
                await answer.leave()
                raise
            _stay()
            told = {"error": _CANCELLED if number in session.taken_back else _CLOSED}
        except Exception as error:  # noqa: BLE001 - as above
            told = {"error": _legacy_error(error)}
        finally:
            session.calls.pop(number, None)
            session.taken_back.discard(number)
        await answer.end({"jsonrpc": "2.0", "id": asked.id, **told})

    async def _hand_over(
        self, error: NeedsClientError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Somebody has to be asked over the session: the SDK does that, and knows what we saw."""
        token = HANDED.set([error.seen])
        try:
            await self._the_long_way(scope, receive, send)
        finally:
            HANDED.reset(token)

    # --- both -------------------------------------------------------------------------------------

    async def _outcome(
        self, asked: Asked, version: str, answer: Answer, session: Session | None
    ) -> dict[str, Any]:
        request = ShortRequest(
            asked, version, answer, None if session is None else session.connection
        )
        ctx = cast("Ctx", request)
        run = None if session is None else session.name

        async def carried_out(ctx: Ctx) -> dict[str, Any]:
            result = await self._calling.call_tool(
                ctx, asked.name, asked.arguments, self._who(), run
            )
            return self._shaping.shaped(result, version)

        if listening():
            return {"result": await _through(self._server.middleware, carried_out)(ctx)}
        result = await carried_out(ctx)
        if result.get("resultType") == "input_required":  # what is left with a client is sealed
            result = await _through(self._server.middleware, _given(result))(ctx)
        return {"result": result}


def _through(
    middleware: Sequence[Any], inner: Callable[[Ctx], Awaitable[dict[str, Any]]]
) -> Callable[[Ctx], Awaitable[Any]]:
    """What the SDK has every request pass, outermost first."""
    call: Callable[[Ctx], Awaitable[Any]] = inner
    for one in reversed(middleware):
        call = partial(_passed, one, call)
    return call


def _passed(one: Any, call: Any, ctx: Ctx) -> Awaitable[Any]:
    passed: Awaitable[Any] = one(ctx, call)
    return passed


def _given(result: dict[str, Any]) -> Callable[[Ctx], Awaitable[dict[str, Any]]]:
    async def give(_: Ctx) -> dict[str, Any]:
        return result

    return give


def _modern_error(error: Exception) -> dict[str, Any]:
    if isinstance(error, MCPError):
        return _dumped(error)
    _log.error("a call could not be answered", exc_info=error)
    return {"code": types.INTERNAL_ERROR, "message": "Internal server error"}


def _legacy_error(error: Exception) -> dict[str, Any]:
    if isinstance(error, MCPError):
        return _dumped(error)
    _log.error("a call could not be answered", exc_info=error)
    return {"code": 0, "message": str(error)}


def _dumped(error: MCPError) -> dict[str, Any]:
    dumped: dict[str, Any] = error.error.model_dump(by_alias=True, mode="json", exclude_none=True)
    return dumped


def _stay() -> None:
    """This task was told to end a call, not to end itself."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def _first(message: Message, receive: Receive) -> Receive:
    """What was received already comes first."""
    left = [message]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay


def _goes_on(send: Send) -> Send:
    """For a stream whose head is out: the SDK's own is left away, and so is what is no stream."""
    streams = True

    async def go_on(message: Message) -> None:
        nonlocal streams
        if message["type"] == "http.response.start":
            streams = (b"content-type", b"text/event-stream") in [
                (name, value.partition(b";")[0]) for name, value in message["headers"]
            ]
            return
        await send(message if streams else {**message, "body": b""})

    return go_on
