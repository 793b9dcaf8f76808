"""One connection to an upstream, from its handshake to its end.

The SDK's session must be entered and left in one task, and a cancelled caller must not end it. So
`run` has a task of its own, and callers send requests from their own tasks. One connection serves
any number of requests at once.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
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

from counterseal.contract.tool_context import AgentClient, client
from counterseal.errors import (
    AnswerLostError,
    CountersealError,
    NotSentError,
    ResponseTooLargeError,
    TooLateError,
    ToolFailedError,
)
from counterseal.execution.attempt import TOO_LATE
from counterseal.masking import Mask
from counterseal.upstream.listings import ToolList, change_of, subscribe_to_resources, watch_changes
from counterseal.upstream.questions import QuestionRelay, client_capabilities
from counterseal.upstream.settings import UpstreamSettings
from counterseal.upstream.transports import HttpTransport, InProcessTransport, ProcessTransport
from counterseal.upstream.verdicts import (
    DELIVERY,
    Delivery,
    ExpiredError,
    connection_closed,
    error_line,
    header_mismatch,
    shortened,
    verdict,
)

_KEY: Final = "counterseal/idempotency_key"
_OPAQUE: Final = ("requestState", "nextCursor")
"""Fields that only the upstream reads again; they are passed back unchanged."""
_LIST_SECONDS: Final = 10.0
"""Seconds that a call waits until its upstream has listed its tools."""
_CLIENT_INFO: Final = mcp_types.Implementation(
    name="counterseal", version=importlib.metadata.version("counterseal")
)
_WIRE_CLIENT_INFO: Final = _CLIENT_INFO.model_dump(by_alias=True, mode="json", exclude_none=True)


class UpstreamConnection:
    """One connection: `run` it, and send requests while it is `up`."""

    def __init__(
        self,
        settings: UpstreamSettings,
        *,
        credentials: Callable[[], Awaitable[dict[str, str]]],
        on_change: Callable[[str], None],
        subscribed: set[str],
        on_credentials_refused: Callable[[], None],
        legacy: bool = False,
    ) -> None:
        self._settings = settings
        self._credentials = credentials
        self._on_change = on_change
        self._tools = ToolList(settings.name)
        self.subscribed = subscribed
        """URIs of the resources whose changes are reported."""
        self._on_credentials_refused = on_credentials_refused
        """Called when the upstream does not accept the credentials: they may have changed."""
        self._legacy = legacy
        """True if the upstream is known to need a handshake."""
        self._over = asyncio.Event()
        self.transport: HttpTransport | ProcessTransport | InProcessTransport | None = None
        self._dispatcher: _Dispatcher | None = None
        self._session: ClientSession | None = None
        self._watching: asyncio.Task[None] | None = None
        self._in_flight: set[Delivery] = set()
        self._log = logging.getLogger(f"counterseal.upstream.{settings.name}")
        self._mask = Mask({})
        self.questions = QuestionRelay(settings.relay)
        self.up = False
        self.up_since: float | None = None
        self.busy = False
        """True while one call has the connection to itself."""
        self.trouble = ""
        """Why it failed, or ended."""
        self.version = ""
        self.modern = False
        """True if the revision has no handshake and no session."""
        self.capabilities: dict[str, Any] = {}

    # --- start and end ----------------------------------------------------------------------------

    async def run(self, up: Callable[[UpstreamConnection], None]) -> None:
        """Serve the connection until it ends. Raises nothing; `trouble` says why it ended."""
        try:
            async with asyncio.timeout(self._settings.connect_timeout):
                values = await self._credentials()
            self._mask = self.questions.mask = Mask(values)
            settings = self._settings
            if settings.command:
                self.transport = ProcessTransport(settings, settings.resolved(values), self._mask)
            elif settings.url:
                self.transport = HttpTransport(settings, settings.resolved(values), self.end)
            else:
                self.transport = InProcessTransport(settings)
            async with self.transport.open() as (read, write):
                self._dispatcher = _Dispatcher(read, write, self._over.set)
                await self._serve(self._dispatcher, up)
        except CountersealError as error:
            self.trouble = self.trouble or str(error)
        except Exception as error:  # noqa: BLE001 - any error means that the upstream is down
            self.trouble = self.trouble or error_line(error)
        finally:
            self.up = False
            self._over.set()
            reason = "" if self.transport is None else self.transport.trouble
            trouble = reason or self.trouble or "it ended"
            self.trouble = shortened(self._mask.text(trouble)).replace("\n", " ")
            if isinstance(self.transport, HttpTransport) and self.transport.refused:
                self._on_credentials_refused()

    def end(self, reason: str) -> None:
        """Let the connection end. The answers of open requests are lost."""
        self.up = False
        self.trouble = self.trouble or reason
        self._over.set()

    async def _serve(
        self, dispatcher: _Dispatcher, up: Callable[[UpstreamConnection], None]
    ) -> None:
        session = ClientSession(
            dispatcher=dispatcher,
            client_info=_CLIENT_INFO,
            logging_callback=self._on_log,
            message_handler=self._on_message,
            **self.questions.callbacks(),
        )
        async with session:
            seconds = self._settings.connect_timeout
            trouble = await _handshake(session, self._over, seconds, legacy=self._legacy)
            if trouble:
                self.trouble = self.trouble or trouble
                return
            self._session = session
            self.version = session.protocol_version or ""
            self.modern = self.version in MODERN_PROTOCOL_VERSIONS
            if session.server_capabilities is not None:
                self.capabilities = session.server_capabilities.model_dump(
                    by_alias=True, mode="json", exclude_none=True
                )
            self.up = True
            self.up_since = asyncio.get_running_loop().time()
            up(self)
            self.watch()
            await self._over.wait()
            self.up = False
            self.questions.end()
            if self._watching is not None:
                await _cancel(self._watching)

    def watch(self) -> None:
        """Request notices of changes; again whenever `subscribed` has changed."""
        if self._session is None or not self.up:
            return
        if self._watching is not None:
            self._watching.cancel()
        watching = (
            watch_changes(self._session, self.capabilities, self.subscribed, self._changed)
            if self.modern
            else subscribe_to_resources(self._session, self.subscribed)
        )
        self._watching = asyncio.get_running_loop().create_task(watching)

    # --- notifications ----------------------------------------------------------------------------

    async def _on_log(self, params: mcp_types.LoggingMessageNotificationParams) -> None:
        """Pass a log message to the client of the one call it can belong to, else to our log."""
        delivery = DELIVERY.get()
        if delivery not in self._in_flight:
            delivery = next(iter(self._in_flight)) if len(self._in_flight) == 1 else None
        if delivery is not None:
            await delivery.client.log(params.level, self._mask.data(params.data), params.logger)
        else:
            self._log.info("%s", shortened(self._mask.text(str(params.data))))

    async def _on_message(self, message: object) -> None:
        change = change_of(message)
        if change is not None:
            self._changed(change)

    def _changed(self, kind: str) -> None:
        if kind == "tools":
            self._tools.forget()
        self._on_change(kind)

    # --- tools ------------------------------------------------------------------------------------

    async def tools(self) -> list[dict[str, Any]]:
        """Return every tool that the upstream lists, as wire JSON."""
        if "tools" not in self.capabilities:
            return []  # it may have only resources or prompts
        return await self._tools.refresh(self._list_page, self.version)

    async def call(
        self, params: Mapping[str, Any], definition: str | None, **options: Any
    ) -> dict[str, Any]:
        """Return the result of tools/call.

        Raises NotSentError if the tool does not have the definition with this hash.
        """
        tool, arguments = params["name"], params["arguments"]
        for repeated in (False, True):
            if definition is not None and not self._tools.has(tool, definition):
                await self._check(tool, definition)
            headers = self._tools.headers(tool, arguments)
            try:
                return await self.send("tools/call", params, headers=headers, **options)
            except ToolFailedError as error:
                if repeated or not header_mismatch(error):
                    raise
            # The server compared the headers before it did anything, so a repeat is safe.
            await self.tools()
        raise AssertionError("unreachable")

    async def _check(self, tool: str, definition: str) -> None:
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                await self._tools.check(tool, definition, self._list_page, self.version)
        except (TimeoutError, AnswerLostError, ToolFailedError, ResponseTooLargeError):
            name = self._settings.name
            raise NotSentError(
                f"upstream {name} did not list its tools within {_LIST_SECONDS:g} s, so the call "
                "was not sent; look into its log"
            ) from None

    async def _list_page(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return await self.send("tools/list", params, client=client(), what="tools/list")

    # --- requests ---------------------------------------------------------------------------------

    async def send(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        client: AgentClient,
        what: str,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        progress: ProgressFnT | None = None,
    ) -> dict[str, Any]:
        """Send a request, and return its validated result as wire JSON.

        Raises the exception that `verdict` returns for a failure.
        """
        dispatcher = self._dispatcher
        if not self.up or dispatcher is None:
            name, trouble = self._settings.name, self.trouble and f": {self.trouble}"
            where = f"see `counterseal.upstream.{name}` in the log"
            raise NotSentError(f"upstream {name} is not connected{trouble}; {where}")
        delivery = Delivery(client, TOO_LATE.get())
        if why := delivery.too_late():
            raise TooLateError(f"{why}, so the request was not sent")
        capabilities = client_capabilities(self._settings.relay, client) if self.modern else None
        meta = {_KEY: key, "traceparent": client.traceparent}
        stamped, stamps = _stamped(method, params, meta, self.version, capabilities)
        options = CallOptions(headers={**stamps, **(headers or {})})
        if progress is not None:
            options["on_progress"] = self._masked(progress) if self._mask else progress
        token = DELIVERY.set(delivery)
        self._in_flight.add(delivery)
        try:
            result = await dispatcher.send_raw_request(method, stamped, options)
            ttl = result.get("ttlMs")
            if isinstance(ttl, int) and ttl < 0:
                result["ttlMs"] = 0  # the protocol reads a negative hint as "do not cache"
            with suppress(KeyError):
                validate_server_result(method, self.version, result)
        except Exception as error:  # noqa: BLE001 - every error gets a verdict
            raise self._verdict(what, error, delivery) from None
        finally:
            self._in_flight.discard(delivery)
            DELIVERY.reset(token)
        # The upstream knows our credentials, and its answer may contain them.
        opaque = {str(key): result[key] for key in _OPAQUE if key in result}
        return {**self._mask.data(result), **opaque} if self._mask else result

    def _masked(self, report_progress: ProgressFnT) -> ProgressFnT:
        async def report(progress: float, total: float | None, message: str | None) -> None:
            await report_progress(progress, total, message and self._mask.text(message))

        return report

    def _verdict(self, what: str, error: Exception, delivery: Delivery) -> Exception:
        if isinstance(error, MCPError) and self._mask:
            error = MCPError(error.code, self._mask.text(error.message), error.data)
        name, closed = self._settings.name, self._over.is_set()
        failure = verdict(name, what, error, delivery, modern=self.modern, closed=closed)
        expired = isinstance(failure, ExpiredError)
        if expired or delivery.status == 401 or connection_closed(error):
            self.end(str(failure))
        return failure


class _Dispatcher(JSONRPCDispatcher):
    """The SDK's dispatcher, which also reports its end."""

    def __init__(self, read: Any, write: Any, ended: Callable[[], None]) -> None:
        super().__init__(read, write)
        self._ended = ended

    async def run(self, *args: Any, **kwargs: Any) -> None:
        try:
            await super().run(*args, **kwargs)
        finally:
            self._ended()


# --- handshake ------------------------------------------------------------------------------------


async def _handshake(
    session: ClientSession, over: asyncio.Event, seconds: float, *, legacy: bool
) -> str:
    """Agree on the newest common revision. Return what went wrong, or an empty text.

    Gives up after `seconds`, or when the connection is `over`.
    """
    loop = asyncio.get_running_loop()
    ended = loop.create_task(over.wait())
    negotiating = loop.create_task(_negotiate(session, legacy=legacy))
    try:
        await asyncio.wait(
            {ended, negotiating}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if negotiating.done():
            negotiating.result()
            return "it ended during the handshake" if over.is_set() else ""
        return "it ended" if over.is_set() else f"no handshake within {seconds:g} s"
    except (MCPError, ValidationError, RuntimeError) as error:
        return f"the handshake failed: {error_line(error)}"
    finally:
        await _cancel(ended, negotiating)


async def _negotiate(session: ClientSession, *, legacy: bool) -> None:
    """Try the revision without a handshake first, unless the server is known not to speak it."""
    if not legacy:
        with suppress(MCPError, ValidationError, RuntimeError):
            await session.discover()
            return
    try:
        await session.initialize()
    except MCPError as error:
        # It answered the first question too late, and accepts no handshake any more.
        if error.code != mcp_types.UNSUPPORTED_PROTOCOL_VERSION:
            raise
        await session.discover()


def _stamped(
    method: str,
    params: Mapping[str, Any],
    meta: Mapping[str, Any],
    version: str,
    capabilities: Mapping[str, Any] | None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the params with their `_meta`, and the headers that go with them over HTTP.

    Since 2026-07-28 each request says who sends it. `capabilities` is None on earlier revisions.
    """
    stamps = {**(params.get("_meta") or {}), **{k: v for k, v in meta.items() if v is not None}}
    headers = {MCP_PROTOCOL_VERSION_HEADER: version}
    if capabilities is not None:
        stamps[mcp_types.PROTOCOL_VERSION_META_KEY] = version
        stamps[mcp_types.CLIENT_INFO_META_KEY] = _WIRE_CLIENT_INFO
        stamps[mcp_types.CLIENT_CAPABILITIES_META_KEY] = capabilities
        stamps[mcp_types.LOG_LEVEL_META_KEY] = "info"
        headers[MCP_METHOD_HEADER] = method
        name = params.get(NAME_BEARING_METHODS.get(method, ""))
        if isinstance(name, str):
            headers[MCP_NAME_HEADER] = encode_header_value(name)
    return {**params, "_meta": stamps} if stamps else dict(params), headers


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
