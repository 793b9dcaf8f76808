"""One upstream, as the gateway sees it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from counterseal.contract.tool_context import Client, Context, client
from counterseal.errors import AnswerLostError, NotSentError
from counterseal.execution.secrets import Credentials
from counterseal.upstream.asking import until_answered
from counterseal.upstream.changes import listed
from counterseal.upstream.connection import Connection
from counterseal.upstream.pool import Pool
from counterseal.upstream.settings import Settings
from counterseal.upstream.verdict import failed_tool

__all__ = ["Upstream"]

_EVERYBODY: Final = "*"
"""Stands for the tenant where there is none in particular: no tenant has this name."""
_IDLE: Final = 600.0
"""Seconds without a call after which a tenant's own connections are closed."""
_SWEEP: Final = 60.0
_ASKS_BACK: Final = frozenset({"tools/call", "resources/read", "prompts/get"})
_SUBSCRIBE, _UNSUBSCRIBE = "resources/subscribe", "resources/unsubscribe"
_PASSED_ON: Final = frozenset(
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
_log = logging.getLogger(__name__)


class Upstream:
    """One configured server."""

    def __init__(self, settings: Settings, credentials: Credentials) -> None:
        self.name = settings.name
        self.settings = settings
        self.on_change: Callable[[str], None] = lambda _: None
        """Told "tools", "resources", "prompts" or "resource:URI" when that may have changed: when
        the server says so, and whenever it was reached, the first time and anew."""
        self._credentials = credentials
        self._home = (*settings.tenants, _EVERYBODY)[0] if settings.secrets else _EVERYBODY
        """The tenant with whose connections its tools are listed."""
        self._pools: dict[str, Pool] = {}
        self._subscribed: dict[str, set[str]] = {}
        self._sweeping: asyncio.Task[None] | None = None
        self._is_open = False
        self._legacy = False
        self._capabilities: dict[str, Any] = {}
        self._version = ""

    # --- its state ----------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether a call would be sent now."""
        pool = self._pools.get(self._home)
        return pool is not None and pool.line.up

    @property
    def trouble(self) -> str:
        """Why it is not ready, in one line, for an operator; never for a model."""
        pool = self._pools.get(self._home)
        if pool is None:
            return "it was not started"
        return "" if pool.line.up else pool.line.trouble

    @property
    def capabilities(self) -> dict[str, Any]:
        """What the server says that it can, as wire JSON; empty before it was reached."""
        return self._capabilities

    @property
    def version(self) -> str:
        """The protocol revision that is spoken with it; empty before it was reached."""
        return self._version

    # --- requests -----------------------------------------------------------------------------

    async def definitions(self) -> list[dict[str, Any]]:
        """Every tool that it has, all pages of tools/list, as wire JSON.

        Raises like `call`; ResponseTooLargeError when it lists without end.
        """
        seconds = self.settings.request_timeout
        connection = await self._pool(self._home).line.get(seconds)
        async with self._bounded("tools/list"):
            return await connection.tools()

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        context: Context,
        definition: str | None = None,
    ) -> dict[str, Any]:
        """The result of tools/call as wire JSON (camelCase).

        Sent only where the connection has shown the tool with this `definition`, a hash.
        NotSentError: nothing can have come of it. AnswerLostError: nobody knows.
        ToolFailedError: the tool, or its server, said no. ResponseTooLargeError. RefusedError: it
        asks for what the client in front can't do, or may not be asked.
        """
        params = {"name": tool, "arguments": arguments}

        async def progress(done: float, total: float | None, message: str | None) -> None:
            context.progress(done, total, message or "")

        result = await self._rounds(
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
        """What else may be asked of a server (resources, prompts, completion), as wire JSON.

        Raises like `call`.
        """
        if method not in _PASSED_ON:
            raise ValueError(f"{method} is not passed on")
        if method in (_SUBSCRIBE, _UNSUBSCRIBE):
            return await self._subscribe(method, params, tenant=tenant)
        return await self._within(method, params, tenant=tenant)

    async def _within(
        self, method: str, params: Mapping[str, Any], *, tenant: str
    ) -> dict[str, Any]:
        seconds = self.settings.request_timeout
        async with self._bounded(method):
            return await self._rounds(method, params, tenant=tenant, seconds=seconds, what=method)

    @asynccontextmanager
    async def _bounded(self, method: str) -> AsyncIterator[None]:
        seconds = self.settings.request_timeout
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise AnswerLostError(
                f"upstream {self.name} did not answer {method} within {seconds:g} s"
            ) from None

    async def _rounds(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        tenant: str,
        seconds: float,
        **about: Any,
    ) -> dict[str, Any]:
        """One request; again with answers, as long as the upstream ends it with questions."""
        in_front, pool = client(), self._pool(tenant)

        async def send(asked: Mapping[str, Any]) -> dict[str, Any]:
            return await self._once(pool, method, asked, in_front, seconds, about)

        if method not in _ASKS_BACK:
            return await send(params)
        return await until_answered(send, params, self.settings.relay, in_front)

    async def _once(
        self,
        pool: Pool,
        method: str,
        params: Mapping[str, Any],
        in_front: Client,
        seconds: float,
        about: Mapping[str, Any],
    ) -> dict[str, Any]:
        if method in _ASKS_BACK:
            async with pool.lease(in_front, seconds) as connection:
                if method == "tools/call":
                    return await connection.call(params, client=in_front, **about)
                return await connection.send(method, params, client=in_front, **about)
        connection = await pool.line.get(seconds)
        return await connection.send(method, params, client=in_front, **about)

    async def _subscribe(
        self, method: str, params: Mapping[str, Any], *, tenant: str
    ) -> dict[str, Any]:
        """Have changes of a resource told, or no longer; kept up when a connection is new."""
        pool = self._pool(tenant)
        connection = await pool.line.get(self.settings.request_timeout)
        result: dict[str, Any] = {}
        if not connection.modern:
            result = await self._within(method, params, tenant=tenant)
        uri = str(params.get("uri", ""))
        if method == _SUBSCRIBE:
            connection.subscribed.add(uri)
        else:
            connection.subscribed.discard(uri)
        if connection.modern:
            connection.listen()
        return result

    # --- connections --------------------------------------------------------------------------

    def open(self) -> None:
        """Start connecting."""
        self._is_open = True
        self._pool(self._home)
        if self.settings.secrets:
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep())

    async def close(self) -> None:
        """End every connection, within a bounded time."""
        self._is_open = False
        if self._sweeping is not None:
            self._sweeping.cancel()
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))

    async def settle(self) -> None:
        """Until it is ready, or has failed once."""
        await self._pool(self._home).line.settle()

    def _pool(self, tenant: str) -> Pool:
        name = tenant if self.settings.secrets else _EVERYBODY
        pool = self._pools.get(name)
        if pool is None:
            if not self._is_open:
                raise NotSentError(f"upstream {self.name} is not open")
            home = name == self._home
            came_up = self._came_up if home else lambda _: None
            pool = Pool(self.settings, partial(self._connection, name), came_up)
            self._pools[name] = pool
            pool.line.open()
        pool.used_at = asyncio.get_running_loop().time()
        return pool

    def _connection(self, tenant: str) -> Connection:
        return Connection(
            self.settings,
            credentials=partial(self._values, tenant),
            changed=self._tell,
            subscribed=self._subscribed.setdefault(tenant, set()),
            refused=partial(self._credentials.forget, tenant),
            legacy=self._legacy,
        )

    async def _values(self, tenant: str) -> dict[str, str]:
        names = sorted(self.settings.secrets)
        return {name: await self._credentials.get(tenant, name) for name in names}

    def _came_up(self, connection: Connection) -> None:
        self._legacy = not connection.modern
        self._capabilities, self._version = connection.capabilities, connection.version
        for kind in listed(connection.capabilities):
            self._tell(kind)

    def _tell(self, kind: str) -> None:
        try:
            self.on_change(kind)
        except Exception:  # noqa: BLE001 - no reason to lose a connection
            _log.exception("upstream %s: a change could not be told", self.name)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP)
            for tenant, pool in list(self._pools.items()):
                idle = not pool.in_use and loop.time() - pool.used_at > _IDLE
                if idle and tenant != self._home and not self._subscribed.get(tenant):
                    del self._pools[tenant]
                    await pool.close()


def _seconds_left(context: Context, otherwise: float) -> float:
    """How long a call may wait for a connection."""
    if context.deadline is None:
        return otherwise
    left = (context.deadline - datetime.now(UTC)).total_seconds()
    return max(0.0, min(left, otherwise))
