"""The configured upstreams: requests to them, their state, and their tools as tools of ours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Self

import mcp_types

from counterseal.canonical import thaw
from counterseal.contract.bindings import McpBinding
from counterseal.contract.declare import Tool
from counterseal.contract.model import Contract
from counterseal.contract.outputs import is_blocks
from counterseal.contract.tool_context import AgentClient, Context, client
from counterseal.errors import AnswerLostError, NotSentError, ToolFailedError
from counterseal.execution.http import AnswerError
from counterseal.execution.secrets import Credentials, Secrets
from counterseal.upstream.connection import UpstreamConnection
from counterseal.upstream.listings import kinds_of_lists
from counterseal.upstream.pool import ConnectionPool
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
_RELAYED: Final = frozenset(
    {
        "resources/list",
        "resources/templates/list",
        "resources/read",
        _SUBSCRIBE,
        _UNSUBSCRIBE,
        "prompts/list",
        "prompts/get",
        "completion/complete",
    }
)
_ABSENT: Final = frozenset({mcp_types.INVALID_PARAMS, -32002})
"""Codes for a resource or prompt that does not exist; the second up to 2025-11-25."""
_log = logging.getLogger(__name__)


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
        self._capabilities: dict[str, Any] = {}
        self._version = ""

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

    @property
    def capabilities(self) -> dict[str, Any]:
        """The server's capabilities as wire JSON; empty before it was reached."""
        return self._capabilities

    @property
    def version(self) -> str:
        """The protocol revision that was agreed on; empty before it was reached."""
        return self._version

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

        result = await self._send(
            "tools/call",
            params,
            tenant=context.tenant,
            seconds=_seconds_left(context, self.settings.connect_timeout),
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
        if method not in _RELAYED:
            raise ValueError(f"{method} is not relayed to upstreams")
        if method in (_SUBSCRIBE, _UNSUBSCRIBE):
            return await self._subscribe(method, params, tenant=tenant)
        return await self._request(method, params, tenant=tenant)

    async def _request(
        self, method: str, params: Mapping[str, Any], *, tenant: str
    ) -> dict[str, Any]:
        seconds = self.settings.request_timeout
        async with self._time_limit(method):
            return await self._send(method, params, tenant=tenant, seconds=seconds, what=method)

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
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        tenant: str,
        seconds: float,
        **options: Any,
    ) -> dict[str, Any]:
        """Send a request, and repeat it with answers while it is answered with questions."""
        in_front, pool = client(), self._pool(tenant)

        async def send(current: Mapping[str, Any]) -> dict[str, Any]:
            return await self._send_once(pool, method, current, in_front, seconds, options)

        if method not in _MAY_ASK:
            return await send(params)
        return await send_until_answered(send, params, self.settings.relay, in_front)

    async def _send_once(
        self,
        pool: ConnectionPool,
        method: str,
        params: Mapping[str, Any],
        in_front: AgentClient,
        seconds: float,
        options: Mapping[str, Any],
    ) -> dict[str, Any]:
        if method in _MAY_ASK:
            async with pool.lease(in_front, seconds) as connection:
                if method == "tools/call":
                    return await connection.call(params, client=in_front, **options)
                return await connection.send(method, params, client=in_front, **options)
        connection = await pool.main.get(seconds)
        return await connection.send(method, params, client=in_front, **options)

    async def _subscribe(
        self, method: str, params: Mapping[str, Any], *, tenant: str
    ) -> dict[str, Any]:
        """Begin or end notices of changes of a resource. New connections subscribe again."""
        pool = self._pool(tenant)
        connection = await pool.main.get(self.settings.request_timeout)
        result: dict[str, Any] = {}
        if not connection.modern:
            result = await self._request(method, params, tenant=tenant)
        uri = str(params.get("uri", ""))
        if method == _SUBSCRIBE:
            connection.subscribed.add(uri)
        else:
            connection.subscribed.discard(uri)
        if connection.modern:
            connection.watch()
        return result

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

    def _connection(self, tenant: str) -> UpstreamConnection:
        return UpstreamConnection(
            self.settings,
            credentials=partial(self._resolve, tenant),
            changed=self._report_change,
            subscribed=self._subscribed.setdefault(tenant, set()),
            refused=partial(self._credentials.forget, tenant),
            legacy=self._legacy,
        )

    async def _resolve(self, tenant: str) -> dict[str, str]:
        names = sorted(self.settings.secrets)
        return {name: await self._credentials.get(tenant, name) for name in names}

    def _came_up(self, connection: UpstreamConnection) -> None:
        self._legacy = not connection.modern
        self._capabilities, self._version = connection.capabilities, connection.version
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


def _seconds_left(context: Context, otherwise: float) -> float:
    """Return how long a call may wait for a connection."""
    if context.deadline is None:
        return otherwise
    left = (context.deadline - datetime.now(UTC)).total_seconds()
    return max(0.0, min(left, otherwise))


class Upstreams(Mapping[str, Upstream]):
    """All upstreams by name. `async with Upstreams(settings, secrets=…)` connects and closes."""

    def __init__(
        self, settings: Iterable[UpstreamSettings], *, secrets: Secrets | None = None
    ) -> None:
        credentials = Credentials({} if secrets is None else secrets)
        self._by_name = {each.name: Upstream(each, credentials) for each in settings}

    def __getitem__(self, name: str) -> Upstream:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    async def __aenter__(self) -> Self:
        """Start connecting to all of them. Neither waits nor fails; see `settle`."""
        for upstream in self._by_name.values():
            upstream.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.gather(*(upstream.close() for upstream in self._by_name.values()))

    async def settle(self) -> None:
        """Wait until each is ready, or has failed once."""
        await asyncio.gather(*(upstream.settle() for upstream in self._by_name.values()))


# --- as tools of ours -----------------------------------------------------------------------------

_Function = Callable[..., Awaitable[Any]]


def mcp_tool(contract: Contract, upstream: Upstream) -> Tool[..., Any]:
    """Return the tool that a contract's `mcp` section names. Calling it requests the upstream."""
    binding = contract.mcp
    if binding is None:
        raise ValueError(f"{contract.name} has no mcp section")
    function: _Function
    if binding.kind == "tool":
        in_blocks = is_blocks(contract.affordance.output_schema)
        function = _call_function(upstream, binding, in_blocks=in_blocks)
    elif binding.kind == "resource":
        function = _resource_function(upstream)
    else:
        function = _prompt_function(upstream)
    return Tool(
        contract=contract,
        function=function,
        injected={"context": Context},
        binder=lambda arguments: {"arguments": thaw(arguments)},
    )


def _call_function(upstream: Upstream, binding: McpBinding, *, in_blocks: bool) -> _Function:
    tool = binding.tool

    async def call(arguments: Mapping[str, Any], context: Context) -> Any:
        result = await upstream.call(
            tool, arguments, context=context, definition=binding.definition
        )
        if in_blocks:
            return {"content": result["content"]}
        if "structuredContent" not in result:
            raise AnswerError(f"{tool} has an output schema, but its result has no such output")
        return result["structuredContent"]

    return call


def _resource_function(upstream: Upstream) -> _Function:
    async def read(arguments: Mapping[str, Any], context: Context) -> Any:
        result = await _read(upstream, "resources/read", arguments, context)
        return {"contents": result["contents"]}

    return read


def _prompt_function(upstream: Upstream) -> _Function:
    async def prompt(arguments: Mapping[str, Any], context: Context) -> Any:
        result = await _read(upstream, "prompts/get", arguments, context)
        kept = ("description", "messages") if "description" in result else ("messages",)
        return {name: result[name] for name in kept}

    return prompt


async def _read(
    upstream: Upstream, method: str, arguments: Mapping[str, Any], context: Context
) -> dict[str, Any]:
    """Send a request that changes nothing. Raises AbsentError for something that does not exist."""
    try:
        return await upstream.request(method, arguments, tenant=context.tenant)
    except ToolFailedError as error:
        if isinstance(error.details, Mapping) and error.details.get("code") in _ABSENT:
            raise AbsentError(method, error.details) from None
        raise
