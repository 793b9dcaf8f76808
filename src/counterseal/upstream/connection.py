"""One connection to an upstream. It lives in one task, from its start to its end.

The library's session has to be entered and left in one task, and a caller who goes away must not
take it down: so `run` is somebody's task, and calls are sent from wherever callers are. One
connection serves any number of requests at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import mcp_types
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types.methods import validate_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from counterseal.contract.tool_context import Client, client
from counterseal.errors import (
    AnswerLostError,
    CountersealError,
    NotSentError,
    ResponseTooLargeError,
    ToolFailedError,
)
from counterseal.masking import Mask
from counterseal.upstream.asking import Asked, capabilities
from counterseal.upstream.changes import listen_on, noticed, subscribe_on
from counterseal.upstream.exchange import EXCHANGE, Exchange
from counterseal.upstream.handshake import INFO, shake_hands, stamp, stop, told
from counterseal.upstream.inside import Inside
from counterseal.upstream.listing import Shown
from counterseal.upstream.process import Program
from counterseal.upstream.settings import Settings
from counterseal.upstream.verdict import (
    ExpiredError,
    is_cut,
    short,
    verdict,
    wants_other_headers,
)
from counterseal.upstream.web import Web

__all__ = ["Connection"]

_KEY: Final = "counterseal/idempotency_key"
_OPAQUE: Final = ("requestState", "nextCursor")
_LIST: Final = 10.0
"""Seconds that a call waits until its upstream has listed its tools."""

Way = Program | Web | Inside


class Connection:
    """One connection: `run` it, and send requests while it is `up`."""

    def __init__(
        self,
        settings: Settings,
        *,
        credentials: Callable[[], Awaitable[dict[str, str]]],
        changed: Callable[[str], None],
        subscribed: set[str],
        refused: Callable[[], None],
        legacy: bool = False,
    ) -> None:
        self._settings = settings
        self._credentials = credentials
        self._tell_changed = changed
        self._shown = Shown(settings.name)
        self.subscribed = subscribed
        """Resources of which changes are told."""
        self._refused = refused
        """Told when the upstream does not take the credentials: they may have been changed."""
        self._legacy = legacy
        """Whether it is known to speak no revision without a handshake."""
        self._over = asyncio.Event()
        self.way: Way | None = None
        self._dispatcher: _Dispatcher | None = None
        self._session: ClientSession | None = None
        self._listening: asyncio.Task[None] | None = None
        self._in_flight: set[Exchange] = set()
        self._log = logging.getLogger(f"counterseal.upstream.{settings.name}")
        self._mask = Mask({})
        self.asked = Asked(settings.relay)
        self.up = False
        self.up_since: float | None = None
        self.busy = False
        """Whether one call has it for itself."""
        self.trouble = ""
        """Why it failed, or ended."""
        self.version = ""
        self.modern = False
        """Whether it speaks a revision without handshake and session."""
        self.capabilities: dict[str, Any] = {}

    # --- its life -----------------------------------------------------------------------------

    async def run(self, up: Callable[[Connection], None]) -> None:
        """From its start to its end. Raises nothing; `trouble` says why it is over."""
        try:
            async with asyncio.timeout(self._settings.connect_timeout):
                values = await self._credentials()
            self._mask = self.asked.mask = Mask(values)
            self.way = self._way(values)
            async with self.way.open() as (read, write):
                self._dispatcher = _Dispatcher(read, write, self._over.set)
                await self._serve(self._dispatcher, up)
        except CountersealError as error:
            self.trouble = self.trouble or str(error)
        except Exception as error:  # noqa: BLE001 - whatever it was, the upstream is not there
            self.trouble = self.trouble or told(error)
        finally:
            self.up = False
            self._over.set()
            why = "" if self.way is None else self.way.trouble
            trouble = why or self.trouble or "it ended"
            self.trouble = short(self._mask.text(trouble)).replace("\n", " ")
            if isinstance(self.way, Web) and self.way.refused:
                self._refused()

    def end(self, why: str) -> None:
        """Let it end. Requests under way are lost."""
        self.up = False
        self.trouble = self.trouble or why
        self._over.set()

    def _way(self, values: Mapping[str, str]) -> Way:
        settings = self._settings
        if settings.command:
            return Program(settings, settings.filled(values), self._mask)
        if settings.url:
            return Web(settings, settings.filled(values), self.end)
        return Inside(settings)

    async def _serve(self, dispatcher: _Dispatcher, up: Callable[[Connection], None]) -> None:
        session = ClientSession(
            dispatcher=dispatcher,
            client_info=INFO,
            logging_callback=self._logged,
            message_handler=self._told,
            **self.asked.callbacks(),
        )
        async with session:
            seconds = self._settings.connect_timeout
            trouble = await shake_hands(session, self._over, seconds, legacy=self._legacy)
            if trouble:
                self.trouble = self.trouble or trouble
                return
            self._session = session
            self._adopt(session)
            self.up = True
            self.up_since = asyncio.get_running_loop().time()
            up(self)
            self.listen()
            await self._over.wait()
            self.up = False
            self.asked.end()
            if self._listening is not None:
                await stop(self._listening)

    def _adopt(self, session: ClientSession) -> None:
        self.version = session.protocol_version or ""
        self.modern = self.version in MODERN_PROTOCOL_VERSIONS
        can = session.server_capabilities
        if can is not None:
            self.capabilities = can.model_dump(by_alias=True, mode="json", exclude_none=True)

    def listen(self) -> None:
        """Ask to be told of changes; anew when `subscribed` is another."""
        if self._session is None or not self.up:
            return
        if self._listening is not None:
            self._listening.cancel()
        asking = (
            listen_on(self._session, self.capabilities, self.subscribed, self._changed)
            if self.modern
            else subscribe_on(self._session, self.subscribed)
        )
        self._listening = asyncio.get_running_loop().create_task(asking)

    # --- what the upstream tells --------------------------------------------------------------

    async def _logged(self, params: mcp_types.LoggingMessageNotificationParams) -> None:
        """To the client of the one call that it can belong to, else to the upstream's own log."""
        exchange = EXCHANGE.get()
        if exchange not in self._in_flight:
            exchange = next(iter(self._in_flight)) if len(self._in_flight) == 1 else None
        if exchange is not None:
            await exchange.client.log(params.level, self._mask.data(params.data), params.logger)
        else:
            self._log.info("%s", short(self._mask.text(str(params.data))))

    async def _told(self, message: object) -> None:
        kind = noticed(message)
        if kind is not None:
            self._changed(kind)

    def _changed(self, kind: str) -> None:
        if kind == "tools":
            self._shown.forget()
        self._tell_changed(kind)

    # --- its tools ----------------------------------------------------------------------------

    async def tools(self) -> list[dict[str, Any]]:
        """Every tool that it lists, as wire JSON."""
        if "tools" not in self.capabilities:
            return []  # it may well have resources or prompts
        return await self._shown.all(self._page, self.version)

    async def call(
        self, params: Mapping[str, Any], definition: str | None, **about: Any
    ) -> dict[str, Any]:
        """The result of tools/call. NotSentError where the tool is not what `definition` says."""
        tool, arguments = params["name"], params["arguments"]
        for again in (False, True):
            if definition is not None and not self._shown.has_shown(tool, definition):
                await self._check(tool, definition)
            headers = self._shown.headers(tool, arguments)
            try:
                return await self.send("tools/call", params, headers=headers, **about)
            except ToolFailedError as error:
                if again or not wants_other_headers(error):
                    raise
            # The server looked at the request's head alone, so nothing was done.
            await self.tools()
        raise AssertionError("unreachable")

    async def _check(self, tool: str, definition: str) -> None:
        try:
            async with asyncio.timeout(_LIST):
                await self._shown.check(tool, definition, self._page, self.version)
        except (TimeoutError, AnswerLostError, ToolFailedError, ResponseTooLargeError):
            name = self._settings.name
            raise NotSentError(f"upstream {name} does not say which tools it has") from None

    async def _page(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return await self.send("tools/list", params, client=client(), what="tools/list")

    # --- requests -----------------------------------------------------------------------------

    async def send(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        client: Client,
        what: str,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        progress: ProgressFnT | None = None,
    ) -> dict[str, Any]:
        """The result as wire JSON, checked for its shape. Raises what `verdict` says."""
        dispatcher = self._dispatcher
        if not self.up or dispatcher is None:
            raise NotSentError(f"upstream {self._settings.name} was not reached: {self.trouble}")
        exchange = Exchange(client)
        modern = capabilities(self._settings.relay, client) if self.modern else None
        meta = {} if key is None else {_KEY: key}
        stamped, stamps = stamp(method, params, meta, client.traceparent, self.version, modern)
        options = CallOptions(headers={**stamps, **(headers or {})})
        if progress is not None:
            options["on_progress"] = self._masked(progress) if self._mask else progress
        token = EXCHANGE.set(exchange)
        self._in_flight.add(exchange)
        try:
            raw = await dispatcher.send_raw_request(method, stamped, options)
            self._check_shape(method, raw)
        except Exception as error:  # noqa: BLE001 - all of them are judged
            raise self._judged(what, error, exchange) from None
        finally:
            self._in_flight.discard(exchange)
            EXCHANGE.reset(token)
        return self._clean(raw) if self._mask else raw

    def _clean(self, raw: dict[str, Any]) -> dict[str, Any]:
        """An answer without our credentials. What goes back to the upstream alone stays."""
        return {**self._mask.data(raw), **{str(key): raw[key] for key in _OPAQUE if key in raw}}

    def _masked(self, told: ProgressFnT) -> ProgressFnT:
        """The upstream knows our credentials; nobody else is to learn them from it."""

        async def report(progress: float, total: float | None, message: str | None) -> None:
            await told(progress, total, message and self._mask.text(message))

        return report

    def _check_shape(self, method: str, raw: dict[str, Any]) -> None:
        """ValidationError: that is no result of this method."""
        ttl = raw.get("ttlMs")
        if isinstance(ttl, int) and ttl < 0:
            raw["ttlMs"] = 0  # a hint, that is to be read as "not at all"
        with suppress(KeyError):
            validate_server_result(method, self.version, raw)

    def _judged(self, what: str, error: Exception, exchange: Exchange) -> Exception:
        if isinstance(error, MCPError) and self._mask:
            error = MCPError(error.code, self._mask.text(error.message), error.data)
        judged = verdict(
            self._settings.name,
            what,
            error,
            exchange,
            modern=self.modern,
            closed=self._over.is_set(),
        )
        if isinstance(judged, ExpiredError) or exchange.status == 401 or is_cut(error):
            self.end(str(judged))
        return judged


class _Dispatcher(JSONRPCDispatcher):
    """The library's, that tells when it has ended."""

    def __init__(self, read: Any, write: Any, ended: Callable[[], None]) -> None:
        super().__init__(read, write)
        self._ended = ended

    async def run(self, *args: Any, **kwargs: Any) -> None:
        try:
            await super().run(*args, **kwargs)
        finally:
            self._ended()
