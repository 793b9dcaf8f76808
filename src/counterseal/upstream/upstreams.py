"""The configured upstreams: their connections, requests to them, and their tools as tools of ours.

For each tenant that has credentials of its own, or for all tenants together, one connection is
always kept up, and opened again when it is lost. It serves all requests, as long as questions of
the upstream need not be told apart. Where the upstream may ask questions, and its revision or the
client's does not say to which call a question belongs, each call gets a connection to itself, and
more are opened, up to a limit.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Self

import mcp_types
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from counterseal.canonical import thaw
from counterseal.contract.declare import Tool
from counterseal.contract.model import Contract
from counterseal.contract.outputs import is_blocks
from counterseal.contract.tool_context import AgentClient, Context, client
from counterseal.errors import AnswerLostError, NotSentError, ToolFailedError
from counterseal.execution.http import AnswerError
from counterseal.execution.secrets import Credentials, Secrets
from counterseal.upstream.connection import UpstreamConnection
from counterseal.upstream.listings import kinds_of_lists
from counterseal.upstream.questions import send_until_answered
from counterseal.upstream.settings import UpstreamSettings
from counterseal.upstream.verdicts import AbsentError, failed_tool

_ALL_TENANTS: Final = "*"
"""The key of connections that all tenants share; no tenant has this name."""
_IDLE: Final = 600.0
"""Seconds without a call after which a tenant's own connections are closed."""
_SWEEP: Final = 60.0
_MAY_ASK: Final = frozenset({"tools/call", "resources/read", "prompts/get"})
"""Requests that an upstream may answer with questions."""
_SUBSCRIBE, _UNSUBSCRIBE = "resources/subscribe", "resources/unsubscribe"
_BLOCKS: Final = ("content", "structuredContent")
_READS: Final = {
    "resource": ("resources/read", ("contents",)),
    "prompt": ("prompts/get", ("description", "messages")),
}
"""By the kind of thing that a contract binds: the request, and the fields of its result."""
_ABSENT: Final = frozenset({mcp_types.INVALID_PARAMS, -32002})
"""Codes for a resource or prompt that does not exist; the second up to 2025-11-25."""
_log = logging.getLogger(__name__)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_STEADY: Final = 5.0
"""Seconds after which a connection counts as good. After a shorter one there is a pause."""
_EARLIER_AGAIN: Final = 60.0
"""Seconds after which an upstream is asked again for an earlier revision that it refused."""
_CLOSE: Final = 6.0
"""Seconds that closing a connection may take, SIGKILL included."""


# --- connections ----------------------------------------------------------------------------------


class PersistentConnection:
    """One connection that is opened again whenever it is lost, from `open` to `close`."""

    def __init__(
        self,
        name: str,
        make: Callable[[], UpstreamConnection],
        up: Callable[[UpstreamConnection], None],
    ) -> None:
        self._name = name
        self._make = make
        self._on_up = up
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._changed = asyncio.Event()
        self.connection: UpstreamConnection | None = None
        self.trouble = "it is starting"
        self.down = False
        """True if it is known that nothing can be sent now."""

    @property
    def up(self) -> bool:
        return self.connection is not None and self.connection.up

    def open(self) -> None:
        """Start connecting, in an empty context: nothing of the present call belongs to it."""
        self._task = asyncio.get_running_loop().create_task(
            self._keep_up(), context=contextvars.Context()
        )

    async def close(self) -> None:
        """End the connection, within a bounded time."""
        self._closing.set()
        self.down, self.trouble = True, "it was closed"
        if self.connection is not None:
            self.connection.end("closed")
        self._wake()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_CLOSE)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def get(self, seconds: float) -> UpstreamConnection:
        """Return the connection; wait for one that is being opened.

        Raises NotSentError if it has failed, or is not open after `seconds`.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while True:
            connection = self.connection
            if connection is not None and connection.up:
                return connection
            if self.down:
                raise NotSentError(f"upstream {self._name} is down: {self.trouble}")
            changed = self._changed
            try:
                async with asyncio.timeout_at(until):
                    await changed.wait()
            except TimeoutError:
                raise NotSentError(f"upstream {self._name} is still starting") from None

    async def settle(self) -> None:
        """Wait until it is up, or has failed."""
        while not self.up and not self.down:
            await self._changed.wait()

    async def _keep_up(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while not self._closing.is_set():
            connection = self.connection = self._make()
            await connection.run(self._came_up)
            self.trouble = connection.trouble
            if connection.up_since is None:
                failures = max(failures, 1)
            elif loop.time() - connection.up_since >= _STEADY:
                failures = 0
            # None after the first loss, then growing, and random: that spreads the load.
            longest = min(_FIRST_PAUSE * 2 ** (failures - 1), _LONGEST_PAUSE) if failures else 0.0
            pause = longest * random.uniform(0.5, 1.0)  # noqa: S311 - guards nothing
            failures += 1
            if not self._closing.is_set():
                self.down = pause > 0
            self._wake()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._closing.wait()

    def _came_up(self, connection: UpstreamConnection) -> None:
        self.down, self.trouble = False, ""
        self._wake()
        self._on_up(connection)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class ConnectionPool:
    """A persistent connection, and extra connections for calls that need one to themselves."""

    def __init__(
        self,
        settings: UpstreamSettings,
        make: Callable[..., UpstreamConnection],
        up: Callable[[UpstreamConnection], None],
    ) -> None:
        self._settings = settings
        self._make = make
        self._extra: dict[UpstreamConnection, asyncio.Task[None]] = {}
        self._freed = asyncio.Event()
        self.main = PersistentConnection(settings.name, make, up)
        self._modern_until = 0.0
        """Until when the upstream is not asked for an earlier revision, which it has refused."""
        self.in_use = 0
        self.used_at = 0.0

    @asynccontextmanager
    async def lease(self, client: AgentClient, seconds: float) -> AsyncIterator[UpstreamConnection]:
        """Return a connection for one request, whose questions go to this client.

        Raises NotSentError if none is free within `seconds`.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        self.in_use += 1
        try:
            connection = await self.main.get(seconds)
            # Many servers of both revisions ask a client only by requests of their own. Those need
            # a connection of an earlier revision, and a client of one that can answer.
            earlier = client.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS
            takes_requests = earlier and any(map(client.can, self._settings.relay))
            if self._settings.relay and (takes_requests or not connection.modern):
                connection = await self._exclusive(connection, until)
            if not connection.busy:
                yield connection
                return
            connection.questions.begin(client)
            try:
                yield connection
            finally:
                connection.questions.end()
                connection.busy = False
                self._wake()
        finally:
            self.in_use -= 1
            self.used_at = loop.time()

    async def _exclusive(self, main: UpstreamConnection, until: float) -> UpstreamConnection:
        """Return a connection of an earlier revision for one call; `main` if there is none."""
        loop = asyncio.get_running_loop()
        while True:
            main = self.main.connection or main
            earlier = [each for each in (main, *self._extra) if not each.modern]
            free = next((each for each in earlier if each.up and not each.busy), None)
            if free is not None:
                free.busy = True
                return free
            if main.modern and loop.time() < self._modern_until:
                return main
            if len(earlier) < self._settings.connections:
                self._open_extra()
            freed = self._freed
            try:
                async with asyncio.timeout_at(until):
                    await freed.wait()
            except TimeoutError:
                raise NotSentError(
                    f"upstream {self._settings.name} is busy: each of its "
                    f"{self._settings.connections} connections has a call"
                ) from None

    def _open_extra(self) -> None:
        loop = asyncio.get_running_loop()
        connection = self._make(legacy=True)

        def up(_: UpstreamConnection) -> None:
            if connection.modern:  # it has refused the handshake
                connection.end("the upstream speaks no earlier revision")
            else:
                self._wake()

        def ended(_: asyncio.Task[None]) -> None:
            self._extra.pop(connection, None)
            refused = connection.modern or connection.up_since is None
            if refused:
                self._modern_until = loop.time() + _EARLIER_AGAIN
            main = self.main.connection
            if not refused or (main is not None and main.modern):
                self._wake()

        task = loop.create_task(connection.run(up), context=contextvars.Context())
        self._extra[connection] = task
        task.add_done_callback(ended)

    def _wake(self) -> None:
        freed, self._freed = self._freed, asyncio.Event()
        freed.set()

    async def close(self) -> None:
        """End all connections, within a bounded time."""
        extra = dict(self._extra)
        for connection in extra:
            connection.end("closed")
        await self.main.close()
        if extra:
            await asyncio.wait(extra.values(), timeout=_CLOSE)
            for task in extra.values():
                task.cancel()
            await asyncio.gather(*extra.values(), return_exceptions=True)


# --- upstreams ------------------------------------------------------------------------------------


class Upstream:
    """One configured upstream."""

    def __init__(self, settings: UpstreamSettings, credentials: Credentials) -> None:
        self.name = settings.name
        self.settings = settings
        self.on_change: Callable[[str], None] = lambda _: None
        """Called with "tools", "resources", "prompts" or "resource:URI" when that may have changed:
        when the server says so, and whenever it was reached."""
        self._credentials = credentials
        self._home = (*settings.tenants, _ALL_TENANTS)[0] if settings.secrets else _ALL_TENANTS
        """The tenant over whose connections the tools are listed."""
        self._pools: dict[str, ConnectionPool] = {}
        self._subscribed: dict[str, set[str]] = {}
        self._sweeping: asyncio.Task[None] | None = None
        self._is_open = False
        self._legacy = False
        self.capabilities: dict[str, Any] = {}
        """The server's capabilities as wire JSON; empty before it was reached."""
        self.version = ""
        """The protocol revision that was agreed on; empty before it was reached."""

    # --- state ------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """True if a call would be sent now."""
        pool = self._pools.get(self._home)
        return pool is not None and pool.main.up

    @property
    def trouble(self) -> str:
        """Why it is not ready, in one line for an operator. Models must not see it."""
        pool = self._pools.get(self._home)
        if pool is None:
            return "it was not started"
        return "" if pool.main.up else pool.main.trouble

    # --- requests ---------------------------------------------------------------------------------

    async def definitions(self) -> list[dict[str, Any]]:
        """Return every tool, from all pages of tools/list, as wire JSON.

        Raises like `call`, and ResponseTooLargeError if the list does not end.
        """
        seconds = self.settings.request_timeout
        connection = await self._pool(self._home).main.get(seconds)
        async with self._time_limit("tools/list"):
            return await connection.tools()

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        context: Context,
        definition: str | None = None,
    ) -> dict[str, Any]:
        """Return the result of tools/call as wire JSON (camelCase).

        The call is sent only over a connection that lists the tool with this `definition`, a hash.
        Raises NotSentError if the upstream did nothing, AnswerLostError if that is unknown,
        ToolFailedError if the tool or its server failed, ResponseTooLargeError, and RefusedError if
        it asks something that the client in front can't answer or may not be asked.
        """
        params = {"name": tool, "arguments": arguments}

        async def progress(done: float, total: float | None, message: str | None) -> None:
            context.progress(done, total, message or "")

        seconds = self.settings.connect_timeout  # how long the call may wait for a connection
        if context.deadline is not None:
            left = (context.deadline - datetime.now(UTC)).total_seconds()
            seconds = max(0.0, min(left, seconds))
        result = await self._send(
            "tools/call",
            params,
            tenant=context.tenant,
            seconds=seconds,
            what=tool,
            key=context.key,
            progress=progress,
            definition=definition,
        )
        if result.get("isError") is True:
            raise failed_tool(tool, result)
        return result

    async def request(
        self, method: str, params: Mapping[str, Any], *, tenant: str
    ) -> dict[str, Any]:
        """Send a request for resources, prompts or completion; return its result as wire JSON.

        Raises like `call`.
        """
        seconds = self.settings.request_timeout
        if method not in (_SUBSCRIBE, _UNSUBSCRIBE):
            async with self._time_limit(method):
                return await self._send(method, params, tenant=tenant, seconds=seconds, what=method)
        connection, result = await self._pool(tenant).main.get(seconds), dict[str, Any]()
        if not connection.modern:
            async with self._time_limit(method):
                result = await connection.send(method, params, client=client(), what=method)
        # New connections subscribe again to what is in this set.
        change = set.add if method == _SUBSCRIBE else set.discard
        change(connection.subscribed, str(params.get("uri", "")))
        if connection.modern:
            connection.watch()
        return result

    @asynccontextmanager
    async def _time_limit(self, method: str) -> AsyncIterator[None]:
        seconds = self.settings.request_timeout
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise AnswerLostError(
                f"upstream {self.name} did not answer {method} within {seconds:g} s"
            ) from None

    async def _send(
        self, method: str, params: Mapping[str, Any], *, tenant: str, seconds: float, **options: Any
    ) -> dict[str, Any]:
        """Send a request, and repeat it with answers while it is answered with questions."""
        in_front, pool = client(), self._pool(tenant)
        if method not in _MAY_ASK:
            connection = await pool.main.get(seconds)
            return await connection.send(method, params, client=in_front, **options)

        async def send(current: Mapping[str, Any]) -> dict[str, Any]:
            async with pool.lease(in_front, seconds) as connection:
                if method == "tools/call":
                    return await connection.call(current, client=in_front, **options)
                return await connection.send(method, current, client=in_front, **options)

        return await send_until_answered(send, params, self.settings.relay, in_front)

    # --- connections ------------------------------------------------------------------------------

    def open(self) -> None:
        """Start connecting."""
        self._is_open = True
        self._pool(self._home)
        if self.settings.secrets:
            self._sweeping = asyncio.get_running_loop().create_task(self._close_idle_pools())

    async def close(self) -> None:
        """End every connection, within a bounded time."""
        self._is_open = False
        if self._sweeping is not None:
            self._sweeping.cancel()
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))

    async def settle(self) -> None:
        """Wait until it is ready, or has failed once."""
        await self._pool(self._home).main.settle()

    def _pool(self, tenant: str) -> ConnectionPool:
        name = tenant if self.settings.secrets else _ALL_TENANTS
        pool = self._pools.get(name)
        if pool is None:
            if not self._is_open:
                raise NotSentError(f"upstream {self.name} is not open")
            came_up = self._came_up if name == self._home else lambda _: None
            pool = ConnectionPool(self.settings, partial(self._connection, name), came_up)
            self._pools[name] = pool
            pool.main.open()
        pool.used_at = asyncio.get_running_loop().time()
        return pool

    def _connection(self, tenant: str, *, legacy: bool = False) -> UpstreamConnection:
        return UpstreamConnection(
            self.settings,
            credentials=partial(self._resolve, tenant),
            on_change=self._report_change,
            subscribed=self._subscribed.setdefault(tenant, set()),
            on_credentials_refused=partial(self._credentials.forget, tenant),
            legacy=legacy or self._legacy,
        )

    async def _resolve(self, tenant: str) -> dict[str, str]:
        names = sorted(self.settings.secrets)
        return {name: await self._credentials.get(tenant, name) for name in names}

    def _came_up(self, connection: UpstreamConnection) -> None:
        self._legacy = not connection.modern
        self.capabilities, self.version = connection.capabilities, connection.version
        for kind in kinds_of_lists(connection.capabilities):
            self._report_change(kind)

    def _report_change(self, kind: str) -> None:
        try:
            self.on_change(kind)
        except Exception:  # noqa: BLE001 - no reason to lose a connection
            _log.exception("upstream %s: a change could not be reported", self.name)

    async def _close_idle_pools(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP)
            for tenant, pool in list(self._pools.items()):
                idle = not pool.in_use and loop.time() - pool.used_at > _IDLE
                if idle and tenant != self._home and not self._subscribed.get(tenant):
                    del self._pools[tenant]
                    await pool.close()


class Upstreams(dict[str, Upstream]):
    """All upstreams by name. `async with Upstreams(settings, secrets=…)` connects and closes."""

    def __init__(
        self, settings: Iterable[UpstreamSettings], *, secrets: Secrets | None = None
    ) -> None:
        credentials = Credentials({} if secrets is None else secrets)
        super().__init__({each.name: Upstream(each, credentials) for each in settings})

    async def __aenter__(self) -> Self:
        """Start connecting to all of them. Neither waits nor fails; see `settle`."""
        for upstream in self.values():
            upstream.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.gather(*(upstream.close() for upstream in self.values()))

    async def settle(self) -> None:
        """Wait until each is ready, or has failed once."""
        await asyncio.gather(*(upstream.settle() for upstream in self.values()))


# --- as tools of ours -----------------------------------------------------------------------------


def mcp_tool(contract: Contract, upstream: Upstream) -> Tool[..., Any]:
    """Return the tool that a contract's `mcp` section names. Calling it requests the upstream."""
    binding = contract.mcp
    if binding is None:
        raise ValueError(f"{contract.name} has no mcp section")
    in_blocks = is_blocks(contract.affordance.output_schema)

    async def call(arguments: Mapping[str, Any], context: Context) -> Any:
        tool, definition = binding.tool, binding.definition
        result = await upstream.call(tool, arguments, context=context, definition=definition)
        if in_blocks:
            return {name: result[name] for name in _BLOCKS if result.get(name) is not None}
        if "structuredContent" not in result:
            raise AnswerError(f"{tool} has an output schema, but its result has no such output")
        return result["structuredContent"]

    async def read(arguments: Mapping[str, Any], context: Context) -> Any:
        method, fields = _READS[binding.kind]
        try:
            result = await upstream.request(method, arguments, tenant=context.tenant)
        except ToolFailedError as error:
            if isinstance(error.details, Mapping) and error.details.get("code") in _ABSENT:
                raise AbsentError(method, error.details) from None
            raise
        return {name: result[name] for name in fields if name in result}

    return Tool(
        contract=contract,
        function=read if binding.kind in _READS else call,
        injected={"context": Context},
        binder=lambda arguments: {"arguments": thaw(arguments)},
    )
