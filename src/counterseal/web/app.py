"""The whole site as one ASGI application: its routes, and its middleware in one list.

`/mcp` is for MCP clients, `/v1` for programs, every other page for people; `/health`, `/ready` and
`/metrics` are for the programs that watch over the process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from counterseal.accounts import People, Person, Role
from counterseal.config.build import Project
from counterseal.errors import CountersealError
from counterseal.gateway.running import Gateway
from counterseal.gateway.upstream_tools import QuarantinedTools
from counterseal.runtime import Runtime
from counterseal.views import TenantView
from counterseal.views.calls import RunViews, budget_lines
from counterseal.views.metrics import metric_rows, prometheus
from counterseal.web.api.app import api_app
from counterseal.web.api.submit import Submissions
from counterseal.web.console import console_routes
from counterseal.web.console.live import Broker, marks_of
from counterseal.web.identity import Access, ProtectedEndpoint, protect
from counterseal.web.middleware import (
    HEALTH,
    Availability,
    HeadLimits,
    RequestLimits,
    SecurityHeaders,
    SiteState,
    TrustedHosts,
)
from counterseal.web.problems import RequestProblemError

_METRICS_WINDOW: Final = "24h"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The ASGI application of a gateway, and the parts that its shutdown needs."""

    app: Starlette
    state: SiteState
    mcp: ProtectedEndpoint
    submissions: Submissions
    broker: Broker

    def close(self) -> None:
        """Refuse further requests, and end open streams."""
        self.state.stopping = True
        self.broker.close()


def site(
    running: Gateway,
    access: Access,
    security: TransportSecuritySettings,
    *,
    urls: Collection[str],
    limits: RequestLimits | None = None,
) -> Site:
    """Put the site together. `urls` are those under which it is reached, the public one first."""
    runtime, limits = running.runtime, limits or RequestLimits()
    sessions = StreamableHTTPSessionManager(running.server.sdk_server, security_settings=security)
    mcp = protect(StreamableHTTPASGIApp(sessions), access, runtime)
    people, broker, state = People(runtime), Broker(marks_of(runtime)), SiteState()
    quarantines = QuarantinedTools(running.upstreams)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with sessions.run():
            yield

    def view_for(person: Person) -> TenantView:
        return TenantView(runtime, person, quarantine=quarantines)

    api, submissions = api_app(
        runtime,
        access=access,
        verifier=mcp.verifier,
        people=people,
        view_for=view_for,
        public=next(iter(urls)),
        origins=tuple(urls)[1:],
        limits=limits,
    )
    file = runtime.settings.evaluation_path() if isinstance(runtime, Project) else None
    pages = console_routes(runtime, people, view_for, urls=urls, broker=broker, evaluation=file)
    app = Starlette(
        routes=[
            Route("/mcp", mcp.endpoint),
            Route("/v1", api),
            Route("/v1/{path:anything}", api),
            *_monitoring(runtime, people, limits),
            *mcp.routes,
            *pages,
        ],
        middleware=[  # in the order in which a request meets them
            Middleware(SecurityHeaders, https=next(iter(urls)).startswith("https:")),
            Middleware(HeadLimits),
            Middleware(Availability, state=state),
            Middleware(TrustedHosts, hosts=security.allowed_hosts),
        ],
        lifespan=lifespan,
    )
    return Site(app=app, state=state, mcp=mcp, submissions=submissions, broker=broker)


def _monitoring(runtime: Runtime, people: People, limits: RequestLimits) -> list[Route]:
    """Return the endpoints for the programs that watch over the process."""

    async def health(_: Request) -> Response:
        """Answer whether the process is alive."""
        return JSONResponse({"status": "ok"})

    async def ready(_: Request) -> Response:
        """Answer whether the store can be reached."""
        try:
            await runtime.store.changes(runtime.registry.stored)
        except CountersealError:
            return JSONResponse({"status": "the store can't be reached"}, status_code=503)
        return JSONResponse({"status": "ok"})

    async def metrics(request: Request) -> Response:
        """Answer the metrics of a personal key's tenant, or of all, in Prometheus' format."""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        person = await people.by_key(key) if scheme.lower() == "bearer" else None
        if person is None:
            try:
                limits.count_address(request.client.host if request.client else "")
            except RequestProblemError as error:
                return PlainTextResponse(f"{error}\n", error.kind.status, headers=error.headers)
            headers = {"WWW-Authenticate": 'Bearer realm="metrics"'}
            message = "Send a personal key as `Authorization: Bearer …`: `counterseal users key`.\n"
            return PlainTextResponse(message, 401, headers=headers)
        tenants = [person.tenant]
        if person.may_everywhere(Role.VIEWER):
            tenants = [name for name in await runtime.store.tenants() if name != "*"]
        values, budgets, now = [], {}, runtime.clock()
        for name in tenants:
            values.append((name, await metric_rows(runtime.store, name, _METRICS_WINDOW, now)))
            budgets[name] = await RunViews(runtime, replace(person, tenant=name)).budgets()
        text = prometheus(values) + budget_lines(budgets)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    return [Route(HEALTH, health), Route("/ready", ready), Route("/metrics", metrics)]
