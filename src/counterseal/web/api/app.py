"""The API put together. Whoever serves it gives every request under `/v1/` to it, path and all."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from counterseal.accounts import People, Person
from counterseal.gateway.catalogue import Catalogue
from counterseal.runtime import Runtime
from counterseal.views import TenantView
from counterseal.web.api import approvals, attention, calls, record, tools
from counterseal.web.api.callers import Callers
from counterseal.web.api.cursors import Cursors
from counterseal.web.api.exchange import House
from counterseal.web.api.faults import HANDLERS
from counterseal.web.api.front import Front
from counterseal.web.api.limits import Limits
from counterseal.web.api.openapi import document
from counterseal.web.api.submitting import Submitting
from counterseal.web.identity import Access, Verifier

__all__ = ["Api", "api_app", "api_document"]

_SUBJECTS = (calls, approvals, tools, attention, record)
_ROUTES = [
    route for subject in _SUBJECTS for route in subject.router.routes if isinstance(route, APIRoute)
]


class Api:
    """An ASGI application. `submitting` says how many calls are under way, and waits for them."""

    def __init__(self, front: Front, submitting: Submitting) -> None:
        self._front = front
        self.submitting = submitting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._front(scope, receive, send)


def api_app(
    runtime: Runtime,
    *,
    access: Access,
    verifier: Verifier,
    people: People,
    view_for: Callable[[Person], TenantView],
    public: str,
    origins: Collection[str] = (),
    limits: Limits | None = None,
    patience: float = 20.0,
) -> Api:
    """`public` is our URL as people know it; `origins` are others whose pages are ours.

    `patience` is within how many seconds a body has to be there.
    """
    url = public.rstrip("/")
    submitting = Submitting(runtime, url)
    house = House(
        runtime=runtime,
        view_for=view_for,
        catalogue=Catalogue(runtime),
        cursors=Cursors(runtime.keys),
        public=url,
        routes=_ROUTES,
    )
    front = Front(
        _behind(),
        house=house,
        callers=Callers(access, verifier, people, (url, *origins)),
        limits=limits or Limits(),
        submitting=submitting,
        document=_written,
        patience=patience,
    )
    return Api(front, submitting)


def api_document() -> dict[str, Any]:
    """The API's OpenAPI document. It is the same for every server."""
    return document(_behind(), _ROUTES)


@cache
def _written() -> bytes:
    return to_json(api_document())


def _behind() -> FastAPI:
    """The routes. Who calls is not asked there, but by the front."""
    app = FastAPI(
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        exception_handlers=HANDLERS,
    )
    for subject in _SUBJECTS:
        app.include_router(subject.router)
    return app
