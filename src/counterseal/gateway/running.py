"""A gateway put together from its configuration, and everything that runs beside it.

The store is opened first and closed last. Upstreams that are down don't keep it from starting. The
reconciler runs on a schedule, so that what a crash or a stop left behind is found out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from mcp.server.auth.provider import AccessToken

from counterseal.config import Settings, open_runtime
from counterseal.config.build import later_grants, secrets_of, upstream_settings
from counterseal.gateway.quarantines import summary
from counterseal.gateway.server import Front
from counterseal.gateway.upstreams import Behind, plans
from counterseal.proposal import Principal
from counterseal.reconcile import Reconciler, Retention
from counterseal.runtime import Runtime
from counterseal.upstream import Upstreams

__all__ = ["Gateway", "Tell", "gateway"]

Tell = Callable[[str], None]

_log = logging.getLogger("counterseal.gateway")

_FIRST_LOOK: Final = 15.0
"""Seconds that a start waits for its upstreams."""
_RECONCILE: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """What is running."""

    runtime: Runtime
    front: Front
    behind: Behind


@asynccontextmanager
async def gateway(
    settings: Settings,
    *,
    who: Callable[[], Principal],
    console: str,
    store: str | None = None,
    session: str | None = None,
    valid: Callable[[AccessToken], Awaitable[bool]] | None = None,
    tell: Tell = lambda _: None,
) -> AsyncIterator[Gateway]:
    """Open everything that the configuration names, and close it again in good order."""
    planned = plans(settings)
    runtime = open_runtime(settings, store)
    registered = {record.name for record in runtime.registry.records}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(runtime)
        tell(f"store: {_named(store or settings.store_url() or 'memory:')}")
        tell(f"tools of this project: {len(registered)}")
        upstreams = Upstreams(upstream_settings(settings), secrets=secrets_of(settings))
        await stack.enter_async_context(upstreams)
        grants = later_grants(settings, registered)
        behind = Behind(runtime, upstreams, planned, settings.lock_path(), grants=grants)
        behind.begin()
        wait = settings.gateway.approval_wait_seconds
        front = Front(
            runtime,
            who=who,
            console=console,
            wait=wait,
            session=session,
            behind=behind,
            valid=valid,
        )
        behind.changed = front.upstream_changed
        await stack.enter_async_context(_beside(behind.run()))
        if planned:
            tell(f"connecting to {', '.join(planned)}")
            await behind.looked(_FIRST_LOOK)
            for line in _standing(behind):
                tell(line)
        await stack.enter_async_context(_beside(front.keep_telling()))
        retention = Retention(**dict(settings.retention))
        reconciler = Reconciler(runtime, retention=retention)
        await stack.enter_async_context(reconciler.running(every=_RECONCILE))
        stack.push_async_callback(front.calling.close)
        stack.callback(front.telling.close)
        yield Gateway(runtime=runtime, front=front, behind=behind)


def _named(url: str) -> str:
    """A store's URL as it may be shown: without whoever signs in there."""
    parts = urlsplit(url)
    return url if "@" not in parts.netloc else f"{parts.scheme}://{parts.hostname}{parts.path}"


def _standing(behind: Behind) -> list[str]:
    lines = []
    for one in summary(behind):
        count = len(one["accepted"])
        counts = [f"{count} tool{'' if count == 1 else 's'}"]
        if one["quarantined"]:
            counts.append(f"{len(one['quarantined'])} quarantined")
        if one["hidden"]:
            counts.append(f"{one['hidden']} hidden")
        if one["unusable"]:
            counts.append(f"{len(one['unusable'])} unusable")
        state = one["state"]
        if state != "ready":
            state = f"down ({one['trouble'] or 'not reached yet'})"
        lines.append(f"upstream {one['name']}: {state}; {', '.join(counts)}")
        lines += [f"  {name}: {why}" for name, why in one["unusable"].items()]
    lines += [f"grants: nobody has a tool {name}" for name in behind.idle_grants()]
    return lines


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Something that runs along. It should never end by itself; if it does, that is said."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(_ended)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.critical("a part of the gateway has stopped", exc_info=task.exception())
