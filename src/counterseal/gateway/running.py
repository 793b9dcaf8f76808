"""A gateway put together from its configuration, with everything that runs beside it.

The store is opened first and closed last. Upstreams that are down don't keep the gateway from
starting. The reconciler runs on a schedule, and finishes what a crash or a stop left behind.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TextIO
from urllib.parse import urlsplit

import anyio
from mcp.server.auth.provider import AccessToken
from mcp.server.stdio import stdio_server

from counterseal.config import Settings, open_runtime
from counterseal.config.build import (
    grants_for_upstream_tools,
    missing_secrets,
    secrets_of,
    upstream_settings,
)
from counterseal.config.upstream_contracts import upstream_contracts
from counterseal.gateway.server import McpServer
from counterseal.gateway.upstream_tools import UpstreamTools, upstream_summaries
from counterseal.proposal import Principal
from counterseal.reconcile import Reconciler, Retention
from counterseal.registry import Registry
from counterseal.runtime import Runtime
from counterseal.upstream import Upstreams

Tell = Callable[[str], None]
"""Shows a line of progress to the operator."""

_log = logging.getLogger("counterseal.gateway")

_FIRST_CONNECT: Final = 15.0
"""Seconds that the start waits for upstreams."""
_RECONCILE: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The parts of a running gateway."""

    runtime: Runtime
    server: McpServer
    upstreams: UpstreamTools


@asynccontextmanager
async def gateway(
    settings: Settings,
    *,
    caller: Callable[[], Principal],
    console: str,
    store: str | None = None,
    session: str | None = None,
    valid: Callable[[AccessToken], Awaitable[bool]] | None = None,
    tell: Tell = lambda _: None,
) -> AsyncIterator[Gateway]:
    """Open everything that the configuration names, and close it in the opposite order.

    `caller` returns the principal of the present request, `valid` says whether a token still is,
    `console` is the address where people approve, and `session` names the only session of stdio.
    """
    contracts = upstream_contracts(settings)
    runtime = open_runtime(settings, store)
    registered = {record.name for record in runtime.registry.records}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(runtime)
        url = store or settings.store_url() or "memory:"
        parts = urlsplit(url)
        if "@" in parts.netloc:  # without the credentials
            url = f"{parts.scheme}://{parts.hostname}{parts.path}"
        tell(f"store: {url}")
        tell(f"tools of this project: {len(registered)}")
        for problem in missing_secrets(settings, runtime.registry.records, None):
            tell(problem.message)
        connections = Upstreams(upstream_settings(settings), secrets=secrets_of(settings))
        await stack.enter_async_context(connections)
        grants = grants_for_upstream_tools(settings, registered)
        upstreams = UpstreamTools(
            runtime, connections, contracts, settings.lock_path(), grants=grants
        )
        upstreams.register_pinned()
        server = McpServer(
            runtime,
            caller=caller,
            console=console,
            wait=settings.gateway.approval_wait_seconds,
            session=session,
            upstreams=upstreams,
            valid=valid,
        )
        upstreams.on_change = server.upstream_changed
        await stack.enter_async_context(_background(upstreams.run()))
        if contracts:
            tell(f"connecting to {', '.join(contracts)}")
            await upstreams.wait_for_first_listing(_FIRST_CONNECT)
            for line in _summary_lines(upstreams):
                tell(line)
        await stack.enter_async_context(_background(server.notify_changes()))
        retention = Retention(**dict(settings.retention))
        reconciler = Reconciler(runtime, retention=retention)
        await stack.enter_async_context(reconciler.running(every=_RECONCILE))
        stack.push_async_callback(server.calls.close)
        stack.callback(server.notifications.close)
        yield Gateway(runtime=runtime, server=server, upstreams=upstreams)


async def serve_stdio(
    settings: Settings,
    principal: Principal,
    *,
    store: str | None = None,
    tell: Tell = lambda _: None,
    stdin: TextIO | None = None,
    stdout: TextIO | None = None,
) -> None:
    """Serve one client over standard input and output until it closes them (`counterseal mcp`).

    The process is the session. `stdin` and `stdout` are given if the process has redirected its
    own.
    """
    own_url = f"http://{settings.gateway.host}:{settings.gateway.port}"
    console = (settings.gateway.public_url or own_url).rstrip("/")
    files = [None if file is None else anyio.wrap_file(file) for file in (stdin, stdout)]
    session = secrets.token_urlsafe(18)
    async with (
        gateway(
            settings,
            caller=lambda: principal,
            console=console,
            store=store,
            session=session,
            tell=tell,
        ) as running,
        stdio_server(*files) as (read, write),
    ):
        for line in withheld_lines(running.runtime.registry, principal):
            tell(line)
        server = running.server.sdk_server
        await server.run(read, write, server.create_initialization_options())


def withheld_lines(registry: Registry, principal: Principal) -> Iterator[str]:
    """Yield a line for each granted tool that a caller can't use, and one if it has none at all."""
    for name, reason in registry.withheld(principal).items():
        yield f"{principal.agent} can't use {name}: {reason}"
    if not registry.catalogue(principal, ""):
        yield f"{principal.agent} has no tools in the tenant {principal.tenant}"


def _summary_lines(upstreams: UpstreamTools) -> list[str]:
    lines = []
    for summary in upstream_summaries(upstreams):
        count = len(summary["accepted"])
        more = {
            "quarantined": len(summary["quarantined"]),
            "hidden": summary["hidden"],
            "unusable": len(summary["unusable"]),
        }
        counts = [f"{count} tool{'' if count == 1 else 's'}"]
        counts += [f"{number} {what}" for what, number in more.items() if number]
        state = summary["state"]
        if state != "ready":
            state = f"down ({summary['trouble'] or 'not reached yet'})"
        lines.append(f"upstream {summary['name']}: {state}; {', '.join(counts)}")
        lines += [f"  {name}: {why}" for name, why in summary["unusable"].items()]
    lines += [f"grants: no upstream has a tool {name}" for name in upstreams.unused_grants()]
    return lines


@asynccontextmanager
async def _background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run something in the background. It should never end by itself; if it does, log that."""

    def log_end(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            _log.critical("a part of the gateway has stopped", exc_info=task.exception())

    task = asyncio.ensure_future(work)
    task.add_done_callback(log_end)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
