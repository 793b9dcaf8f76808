"""The API as one application: its routes, and its middleware in one list.

The site passes every request under `/v1` to it, with the full path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from counterseal.accounts import People, Person
from counterseal.gateway.catalogue import Catalogue
from counterseal.keys import derived_key
from counterseal.runtime import Runtime
from counterseal.views import TenantView
from counterseal.web.api import approvals, calls, record, tools
from counterseal.web.api.middleware import (
    DOCUMENT,
    ApiState,
    CallerIdentity,
    CallerLimits,
    JsonBodies,
    ProblemResponses,
    QueryParameters,
    ReadResponses,
    RequestContexts,
)
from counterseal.web.api.openapi import document
from counterseal.web.api.problems import RequestProblemError
from counterseal.web.api.submit import CALLS, Submissions
from counterseal.web.identity import Access, Verifier
from counterseal.web.middleware import RequestLimits

_BODY_SECONDS: Final = 20.0
"""Seconds within which a body has to arrive."""
_SUBJECTS: Final = (calls, approvals, tools, record)
_DESCRIBED: Final = [
    route for subject in _SUBJECTS for route in subject.router.routes if isinstance(route, APIRoute)
]


def api_app(
    runtime: Runtime,
    *,
    access: Access,
    verifier: Verifier,
    people: People,
    view_for: Callable[[Person], TenantView],
    public: str,
    origins: Collection[str] = (),
    limits: RequestLimits | None = None,
    body_seconds: float = _BODY_SECONDS,
) -> tuple[FastAPI, Submissions]:
    """Put the API together. `public` is our URL; `origins` are others that serve our pages.

    Returns the application, and the calls that it carries out.
    """
    url = public.rstrip("/")
    submissions, limits = Submissions(runtime, url), limits or RequestLimits()
    state = ApiState(
        view_for=view_for,
        catalogue=Catalogue(runtime),
        # Without a session or vault key in the ring, cursors are good in this process only.
        cursor_key=derived_key(runtime.keys, "api cursors") or os.urandom(32),
        public=url,
    )
    identity = Middleware(
        CallerIdentity,
        access=access,
        verifier=verifier,
        people=people,
        origins=(url, *origins),
        limits=limits,
    )
    middleware = [  # in the order in which a request meets them
        Middleware(RequestContexts, state=state),
        Middleware(ReadResponses),
        Middleware(ProblemResponses),
        identity,
        Middleware(CallerLimits, limits=limits),
        Middleware(QueryParameters),
        Middleware(JsonBodies, seconds=body_seconds, lenient=(CALLS,)),
    ]
    own = [
        Route(CALLS, submissions.endpoint, methods=["POST"]),
        Route(DOCUMENT, _show_document, methods=["GET"]),
    ]
    return _application(own, middleware), submissions


def api_document() -> dict[str, Any]:
    """Return the API's OpenAPI document, which is the same for every server."""
    return document(_application((), ()), _DESCRIBED)


async def _show_document(_: Request) -> Response:
    return Response(_document_json(), media_type="application/json")


@cache
def _document_json() -> bytes:
    return to_json(api_document())


def _application(own: Sequence[Route], middleware: Sequence[Middleware]) -> FastAPI:
    async def no_route(request: Request, error: Exception) -> Response:
        return _no_route(request, error, (*own, *_DESCRIBED))

    app = FastAPI(
        docs_url=None,  # these pages would load scripts from another site
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        routes=list(own),
        middleware=list(middleware),
        exception_handlers={HTTPException: no_route, RequestValidationError: _raise},
    )
    for subject in _SUBJECTS:
        app.include_router(subject.router)
    return app


async def _raise(_: Request, error: Exception) -> Response:
    """Leave an exception that FastAPI would answer itself to `ProblemResponses`."""
    raise error


def _no_route(request: Request, error: Exception, routes: Sequence[Route]) -> Response:
    """Answer a request that no route takes: OPTIONS, another method, or an unknown path."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    allowed = _allowed_methods(routes, request.scope["path"])
    if allowed and request.method == "OPTIONS":
        return Response(status_code=204, headers={"Allow": allowed})
    if allowed and status in (404, 405):
        detail = f"Allowed methods: {allowed}."
        raise RequestProblemError("method-not-allowed", detail, headers={"Allow": allowed})
    if status == 400:
        raise RequestProblemError("malformed-json", "The body can't be read.", where="body")
    raise RequestProblemError("not-found", "There is nothing at this path.")


def _allowed_methods(routes: Sequence[Route], path: str) -> str:
    """Return the methods of a path, for the `Allow` header; empty: it is unknown."""
    matching = [route for route in routes if route.path_regex.match(path)]
    exact = [route for route in matching if route.path == path]
    methods: set[str] = set()
    for route in exact or matching:  # a fixed path wins over one with an id
        methods |= route.methods or set()
    if not methods:
        return ""
    return ", ".join(sorted(methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set())))
