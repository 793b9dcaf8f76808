"""Everything that a gateway serves over HTTP, put together: MCP, the API, the console, its health.

`/mcp` is for clients, `/v1` for programs, all other pages for people; `/health`, `/ready` and
`/metrics` for whoever watches over the process. `entrance` lets requests in to all of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from counterseal.accounts import People, Person
from counterseal.accounts.users import Role
from counterseal.errors import CountersealError
from counterseal.gateway.quarantines import Quarantines
from counterseal.gateway.running import Gateway
from counterseal.views import TenantView
from counterseal.views.metrics import metric_rows, prometheus
from counterseal.web.api.app import Api, api_app
from counterseal.web.api.limits import Limits
from counterseal.web.api.problems import ProblemError
from counterseal.web.console import Broker, console_routes, marks_of
from counterseal.web.entrance import Entrance
from counterseal.web.identity import Access, ProtectedEndpoint, protect

__all__ = ["Site", "site"]

_WINDOW: Final = "24h"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The ASGI application of a gateway, and the parts of it that have to be told of its end."""

    app: Entrance
    door: ProtectedEndpoint
    api: Api
    broker: Broker

    async def idle(self) -> None:
        """Wait until no call is being carried out for the API."""
        await self.api.submitting.idle()

    def close(self) -> None:
        """Take no more requests, and end what would stay open by itself."""
        self.app.closed = True
        self.broker.close()


def site(
    running: Gateway,
    access: Access,
    security: TransportSecuritySettings,
    *,
    urls: Collection[str],
) -> Site:
    """`urls` are those under which it is reached, the public one first."""
    runtime, public = running.runtime, next(iter(urls))
    manager = StreamableHTTPSessionManager(running.front.server, security_settings=security)
    door = protect(running.front.endpoint(manager, security), access, runtime)
    people, broker = People(runtime), Broker(marks_of(runtime))
    quarantines, limits = Quarantines(running.behind), Limits()

    def view_for(person: Person) -> TenantView:
        return TenantView(runtime, person, quarantine=quarantines)

    api = api_app(
        runtime,
        access=access,
        verifier=door.verifier,
        people=people,
        view_for=view_for,
        public=public,
        origins=tuple(urls)[1:],
        limits=limits,
    )
    watch = _Watch(running, people, limits)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with manager.run():
            yield

    routes = [
        Route("/health", endpoint=watch.health),
        Route("/ready", endpoint=watch.ready),
        Route("/metrics", endpoint=watch.metrics),
        *door.routes,
        *console_routes(runtime, people, view_for, urls=urls, broker=broker),
    ]
    app = Entrance(
        Starlette(routes=routes, lifespan=lifespan),
        straight={"/mcp": door.endpoint, "/v1": api},
        api=api,
        hosts=security.allowed_hosts,
    )
    return Site(app=app, door=door, api=api, broker=broker)


class _Watch:
    """For whoever watches over the process."""

    def __init__(self, running: Gateway, people: People, limits: Limits) -> None:
        self._runtime = running.runtime
        self._people = people
        self._limits = limits

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        try:
            await self._runtime.store.changes(self._runtime.registry.stored)
        except CountersealError:
            return JSONResponse({"status": "the store can't be reached"}, status_code=503)
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """As Prometheus reads them, for a person's key: of its tenant, or of all where it may."""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        person = await self._people.by_key(key) if scheme.lower() == "bearer" else None
        if person is None:
            return self._unknown(request)
        tenants = [person.tenant]
        if person.may_everywhere(Role.VIEWER):
            tenants = [name for name in await self._runtime.store.tenants() if name != "*"]
        store, now = self._runtime.store, self._runtime.clock()
        told = [(name, await metric_rows(store, name, _WINDOW, now)) for name in tenants]
        return PlainTextResponse(
            prometheus(told),
            headers={"Cache-Control": "no-store"},
            media_type="text/plain; version=0.0.4",
        )

    def _unknown(self, request: Request) -> Response:
        """Who tries keys is let try as many as at the API."""
        try:
            self._limits.by_address(request.client.host if request.client else "")
        except ProblemError as problem:
            return PlainTextResponse("Too many wrong keys.\n", 429, headers=problem.headers)
        asked = {"WWW-Authenticate": 'Bearer realm="metrics"'}
        return PlainTextResponse("A personal key is needed.\n", 401, headers=asked)
