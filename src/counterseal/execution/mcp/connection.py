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
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
)
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types.methods import validate_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from counterseal import __version__
from counterseal.contract.client import Client
from counterseal.errors import CountersealError, NotSentError
from counterseal.execution.mcp.asking import Asked, capabilities
from counterseal.execution.mcp.changes import listen_on, noticed, subscribe_on
from counterseal.execution.mcp.exchange import EXCHANGE, Exchange
from counterseal.execution.mcp.inside import Inside
from counterseal.execution.mcp.process import Program
from counterseal.execution.mcp.settings import Settings
from counterseal.execution.mcp.verdict import ExpiredError, is_cut, short, verdict
from counterseal.execution.mcp.web import Web
from counterseal.masking import Mask

__all__ = ["Connection"]

_KEY: Final = "counterseal/idempotency_key"
_INFO: Final = mcp_types.Implementation(name="counterseal", version=__version__)
_WIRE_INFO: Final = _INFO.model_dump(by_alias=True, mode="json", exclude_none=True)
_LOG_LEVEL: Final = "info"

Way = Program | Web | Inside


class Connection:
    """One connection: `run` it, wait until it is `settled`, send requests while it is `up`."""

    def __init__(
        self,
        settings: Settings,
        *,
        credentials: Callable[[], Awaitable[dict[str, str]]],
        changed: Callable[[str], None],
        subscribed: set[str],
        legacy: bool = False,
    ) -> None:
        self._settings = settings
        self._credentials = credentials
        self._changed = changed
        self.subscribed = subscribed
        """Resources of which changes are told."""
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
        self.settled = asyncio.Event()
        """Set when it is up, or has failed."""
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
            self._mask = Mask(values)
            self.way = self._way(values)
            async with self.way.open() as (read, write):
                self._dispatcher = _Dispatcher(read, write, self._over.set)
                await self._serve(self._dispatcher, up)
        except CountersealError as error:
            self.trouble = self.trouble or str(error)
        except Exception as error:  # noqa: BLE001 - whatever it was, the upstream is not there
            self.trouble = self.trouble or _told(error)
        finally:
            self.up = False
            self._over.set()
            told = "" if self.way is None else self.way.trouble
            trouble = told or self.trouble or "it ended"
            self.trouble = short(self._mask.text(trouble)).replace("\n", " ")
            self.settled.set()

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
            client_info=_INFO,
            logging_callback=self._logged,
            message_handler=self._told,
            **self.asked.callbacks(),
        )
        async with session:
            if not await self._shake_hands(session):
                return
            self._session = session
            self._adopt(session)
            self.up = True
            self.up_since = asyncio.get_running_loop().time()
            self.settled.set()
            up(self)
            self.listen()
            await self._over.wait()
            self.up = False
            self.asked.end()
            if self._listening is not None:
                await _stop(self._listening)

    async def _shake_hands(self, session: ClientSession) -> bool:
        """Whether it came to that, before time was up or somebody ended it."""
        loop = asyncio.get_running_loop()
        over = loop.create_task(self._over.wait())
        negotiating = loop.create_task(self._negotiate(session))
        try:
            seconds = self._settings.connect_timeout
            await asyncio.wait(
                {over, negotiating}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if negotiating.done():
                negotiating.result()
                return not self._over.is_set()
            if not over.done():
                self.trouble = f"no handshake within {seconds:g} s"
        except (MCPError, ValidationError, RuntimeError) as error:
            self.trouble = self.trouble or f"no handshake: {_told(error)}"
        finally:
            await _stop(over, negotiating)
        return False

    async def _negotiate(self, session: ClientSession) -> None:
        """The newest revision that both speak; most servers know only those with a handshake."""
        if not self._legacy:
            with suppress(MCPError, ValidationError, RuntimeError):
                await session.discover()
                return
        try:
            await session.initialize()
        except MCPError as error:
            # It answered the first question too late, and takes no handshake any more.
            if error.code != mcp_types.UNSUPPORTED_PROTOCOL_VERSION:
                raise
            await session.discover()

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
            await exchange.client.log(params.level, params.data, params.logger)
        else:
            self._log.info("%s", short(self._mask.text(str(params.data))))

    async def _told(self, message: object) -> None:
        kind = noticed(message)
        if kind is not None:
            self._changed(kind)

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
        stamped, options = self._stamped(method, params, client, key)
        if headers:
            options["headers"].update(headers)
        if progress is not None:
            options["on_progress"] = progress
        token = EXCHANGE.set(exchange)
        self._in_flight.add(exchange)
        try:
            raw = await dispatcher.send_raw_request(method, stamped, options)
            self._check(method, raw)
        except Exception as error:  # noqa: BLE001 - all of them are judged
            raise self._judged(what, error, exchange) from None
        finally:
            self._in_flight.discard(exchange)
            EXCHANGE.reset(token)
        return raw

    def _stamped(
        self, method: str, params: Mapping[str, Any], client: Client, key: str | None
    ) -> tuple[dict[str, Any], CallOptions]:
        """The request with what the revision, and whoever traces it, want to see on it."""
        meta = dict(params.get("_meta") or {})
        if client.traceparent is not None:
            meta["traceparent"] = client.traceparent
        if key is not None:
            meta[_KEY] = key
        headers = {MCP_PROTOCOL_VERSION_HEADER: self.version}
        if self.modern:
            meta[mcp_types.PROTOCOL_VERSION_META_KEY] = self.version
            meta[mcp_types.CLIENT_INFO_META_KEY] = _WIRE_INFO
            meta[mcp_types.CLIENT_CAPABILITIES_META_KEY] = capabilities(
                self._settings.relay, client
            )
            meta[mcp_types.LOG_LEVEL_META_KEY] = _LOG_LEVEL
            headers[MCP_METHOD_HEADER] = method
            named = params.get(NAME_BEARING_METHODS.get(method, ""))
            if isinstance(named, str):
                headers[MCP_NAME_HEADER] = encode_header_value(named)
        stamped = dict(params)
        if meta:
            stamped["_meta"] = meta
        return stamped, CallOptions(headers=headers)

    def _check(self, method: str, raw: dict[str, Any]) -> None:
        """ValidationError: that is no result of this method."""
        ttl = raw.get("ttlMs")
        if isinstance(ttl, int) and ttl < 0:
            raw["ttlMs"] = 0  # a hint, that is to be read as "not at all"
        with suppress(KeyError):
            validate_server_result(method, self.version, raw)

    def _judged(self, what: str, error: Exception, exchange: Exchange) -> Exception:
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


async def _stop(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _told(error: BaseException) -> str:
    """One line of an exception; of the first in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
