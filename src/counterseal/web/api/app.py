"""The API as one application: its routes, its middleware in one list, and its OpenAPI document.

The site passes every request under `/v1` to it, with the full path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema
from pydantic_core import to_json
from ruamel.yaml import YAML
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
from counterseal.views.call_page import ObservationRow, ProblemBody
from counterseal.web.api import approvals, audit, calls, tools
from counterseal.web.api.dependencies import person_view
from counterseal.web.api.middleware import (
    DOCUMENT,
    ApiState,
    CallerIdentity,
    JsonBodies,
    ProblemResponses,
    ReadResponses,
    RequestContexts,
)
from counterseal.web.api.submit import CALLS, Submission, Submissions
from counterseal.web.identity import Access, Verifier
from counterseal.web.middleware import RequestLimits
from counterseal.web.problems import PROBLEMS, RequestProblemError

_BODY_SECONDS: Final = 20.0
"""Seconds within which a body has to arrive."""
_SUBJECTS: Final = (calls, approvals, tools, audit)
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
        report_outcome=runtime.report_outcome,
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
        Middleware(JsonBodies, seconds=body_seconds, lenient=(CALLS,)),
    ]
    own = [
        Route(CALLS, submissions.endpoint, methods=["POST"]),
        Route(DOCUMENT, _show_document, methods=["GET"]),
    ]
    return _application(own, middleware), submissions


@cache
def _document_json() -> bytes:
    return to_json(api_document())


async def _show_document(_: Request) -> Response:
    return Response(_document_json(), media_type="application/json")


def _application(own: Sequence[Route], middleware: Sequence[Middleware]) -> FastAPI:
    async def no_route(request: Request, error: Exception) -> Response:
        """Answer a request that no route takes: OPTIONS, another method, or an unknown path."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        allowed = _allowed_methods((*own, *_DESCRIBED), request.scope["path"])
        if allowed and request.method == "OPTIONS":
            return Response(status_code=204, headers={"Allow": allowed})
        if allowed and status in (404, 405):
            detail = f"Allowed methods: {allowed}."
            raise RequestProblemError("method-not-allowed", detail, headers={"Allow": allowed})
        if status == 400:
            raise RequestProblemError("malformed-json", "The body can't be read.", where="body")
        raise RequestProblemError("not-found", "There is nothing at this path.")

    async def leave(_: Request, error: Exception) -> Response:
        """Leave an exception that FastAPI would answer itself to `ProblemResponses`."""
        raise error

    app = FastAPI(
        docs_url=None,  # these pages would load scripts from another site
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        routes=list(own),
        middleware=list(middleware),
        exception_handlers={HTTPException: no_route, RequestValidationError: leave},
    )
    for subject in _SUBJECTS:
        app.include_router(subject.router)
    return app


def _allowed_methods(routes: Sequence[Route], path: str) -> str:
    """Return the methods of a path, for the `Allow` header; empty: it is unknown."""
    matching = [route for route in routes if route.path_regex.match(path)]
    exact = [route for route in matching if route.path == path]
    longest = max((len(route.path) for route in matching), default=0)
    methods: set[str] = set()
    # A fixed path wins over one with an id, and one with a fixed end over one with an id alone.
    for route in exact or [one for one in matching if len(one.path) == longest]:
        methods |= route.methods or set()
    if not methods:
        return ""
    return ", ".join(sorted(methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set())))


# --- the OpenAPI document -------------------------------------------------------------------------

_ABOUT: Final = """\
Agents make calls with an API key or an OAuth token; people look and decide with a session of the
console or a personal key. Every refusal is `application/problem+json`; every response has an
`X-Request-Id`. Lists continue at `next`; responses to GET have an `ETag`. A parameter that an
operation does not list is refused with 400, and so is one that is given twice.
"""
_AGENT: Final[Mapping[str, list[str]]] = {"agent": []}
_PERSON: Final[Mapping[str, list[str]]] = {"person": []}
_ID: Final = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
_MORE: Final = {
    401: {"WWW-Authenticate": {"$ref": "#/components/headers/Authenticate"}},
    409: {"Retry-After": {"$ref": "#/components/headers/RetryAfter"}},
    429: {"Retry-After": {"$ref": "#/components/headers/RetryAfter"}},
    503: {"Retry-After": {"$ref": "#/components/headers/RetryAfter"}},
}
_ALWAYS: Final = (400, 401, 403, 404, 429, 500, 503)
_OF_CHANGES: Final = (408, 409, 413, 415, 422)
_OF_CALLS: Final = {
    402: "A budget is used up",
    428: "The approval was rejected, or not given in time",
    502: "The tool's output is not valid",
    504: "The tool did not answer in time",
}
_TITLES: Final = {
    **_OF_CALLS,
    **{known.status: known.title for known in reversed(list(PROBLEMS.values()))},
    400: "The request is not valid",
    403: "The credential, or the role, does not allow this",
    409: "In progress, already decided, changed since it was read, or an ambiguous id",
    422: "The request is valid, but can't be carried out",
}


def api_document() -> dict[str, Any]:
    """Return the API's OpenAPI document, which is the same for every server.

    It is FastAPI's, with what FastAPI does not know (`openapi.yaml`). Which credentials an
    operation accepts follows from the view that its route depends on. Every operation lists the
    problems that it can answer.
    """
    app = _application((), ())
    described = get_openapi(title="Counterseal", version="1", description=_ABOUT, routes=app.routes)
    parts = described["components"]
    _, more = models_json_schema(
        [
            (ProblemBody, "serialization"),
            (ObservationRow, "serialization"),
            (Submission, "validation"),
        ],
        ref_template="#/components/schemas/{model}",
    )
    parts["schemas"] |= more["$defs"]
    for name in ("HTTPValidationError", "ValidationError"):
        parts["schemas"].pop(name, None)
    schema = {"$ref": "#/components/schemas/ProblemBody"}
    parts["responses"] = {
        f"Problem{status}": {
            "description": _TITLES[status],
            "headers": {**_ID, **_MORE.get(status, {})},
            "content": {"application/problem+json": {"schema": schema}},
        }
        for status in sorted(_TITLES)
    }
    for route in _DESCRIBED:
        for method in route.methods or ():
            _complete(described["paths"][route.path_format][method.lower()], route, method)
    file = files("counterseal.web.api") / "openapi.yaml"
    _merge(described, YAML(typ="safe").load(file.read_text("utf-8")))
    submission = described["paths"]["/v1/calls"]["post"]
    _add_problems(submission["responses"], (*_ALWAYS, *_OF_CHANGES, *_OF_CALLS))
    return described


def _complete(operation: dict[str, Any], route: APIRoute, method: str) -> None:
    """Add the security, the problems, and the headers of every response."""
    session: Mapping[str, Any] = {"session": []} | ({} if method == "GET" else {"csrf": []})
    people = any(one.call is person_view for one in route.dependant.dependencies)
    operation["security"] = [*([] if people else [_AGENT]), _PERSON, session]
    responses = operation["responses"]
    responses.pop("422", None)
    for response in responses.values():
        response["headers"] = dict(_ID)
        if method == "GET":
            response["headers"]["ETag"] = {"$ref": "#/components/headers/ETag"}
    if method == "GET":
        responses["304"] = {"description": "Not modified.", "headers": dict(_ID)}
    statuses = _ALWAYS if method == "GET" else (*_ALWAYS, *_OF_CHANGES)
    if "approvals" in operation["tags"]:
        statuses = (*statuses, 409)  # for an approval that can't be shown here
    if any(one["name"] == "call_id" for one in operation.get("parameters", ())):
        statuses = (*statuses, 409)  # for a caller's id that several calls have
    _add_problems(responses, statuses)


def _add_problems(responses: dict[str, Any], statuses: tuple[int, ...]) -> None:
    for status in sorted(set(statuses)):
        responses[str(status)] = {"$ref": f"#/components/responses/Problem{status}"}


def _merge(target: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add what is not there yet, at any depth."""
    for name, value in more.items():
        if isinstance(value, Mapping) and isinstance(target.get(name), dict):
            _merge(target[name], value)
        else:
            target[name] = value
