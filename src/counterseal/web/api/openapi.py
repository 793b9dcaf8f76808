"""The API's own document: what FastAPI knows of the routes, and what it can't know.

Which credentials an operation takes follows from whose desk its route asks for. Every operation
says which problems it can end in. Calls are made through a route of their own, told here by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from counterseal.views.call_page import ObservationRow
from counterseal.views.problems import ProblemBody
from counterseal.web.api.dependencies import ForPeople, ForPeopleAndAgents
from counterseal.web.api.problems import PROBLEMS
from counterseal.web.api.submit import Submission

__all__ = ["document"]

_ABOUT: Final = """\
Agents make calls with an API key or an OAuth token; people look and decide with a session of the
console or a personal key. Every refusal is `application/problem+json`; every answer bears
`X-Request-Id`. Lists go on at `next`; what is read bears an `ETag`. A parameter that an operation
does not list is refused with 400, and so is one that comes twice.
"""
_AGENT: Final[Mapping[str, list[str]]] = {"agent": []}
_PERSON: Final[Mapping[str, list[str]]] = {"person": []}
_SCHEMES: Final = {
    "agent": {
        "type": "http",
        "scheme": "bearer",
        "description": "An agent's API key (`cs_key_…`), or an OAuth access token for this server.",
    },
    "person": {
        "type": "http",
        "scheme": "bearer",
        "description": "A personal key: `cs_person_…`.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "counterseal",
        "description": "The console's. Over https it is called `__Host-counterseal`.",
    },
    "csrf": {
        "type": "apiKey",
        "in": "header",
        "name": "X-CSRF-Token",
        "description": "With a session, for whatever is no GET.",
    },
}
_ID: Final = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
_HEADERS: Final = {
    "RequestId": {"description": "The caller's, if it was sane.", "schema": {"type": "string"}},
    "ETag": {"description": "For `If-None-Match`.", "schema": {"type": "string"}},
    "RetryAfter": {"description": "Seconds.", "schema": {"type": "integer"}},
    "Authenticate": {"description": "What is taken.", "schema": {"type": "string"}},
}
_MORE: Final = {
    401: {"WWW-Authenticate": {"$ref": "#/components/headers/Authenticate"}},
    409: {"Retry-After": {"$ref": "#/components/headers/RetryAfter"}},
    429: {"Retry-After": {"$ref": "#/components/headers/RetryAfter"}},
    503: {"Retry-After": {"$ref": "#/components/headers/RetryAfter"}},
}
_ALWAYS: Final = (400, 401, 403, 404, 429, 500, 503)
_OF_CHANGES: Final = (408, 409, 413, 415, 422)
_OF_CALLS: Final = {
    402: "A budget is spent",
    428: "A person has said no, or nobody answered in time",
    502: "The tool's answer can't be used",
    504: "The tool did not answer in time",
}
_TITLES: Final = {
    **_OF_CALLS,
    **{known.status: known.title for known in reversed(list(PROBLEMS.values()))},
    400: "The request is not valid",
    403: "Not with this credential, or not with this role",
    409: "It is in progress, decided already, or not as it was thought to be",
    422: "It is understood, and can't be done like that",
}


def document(app: FastAPI, routes: Sequence[APIRoute]) -> dict[str, Any]:
    """OpenAPI 3.1."""
    told = get_openapi(
        title="Counterseal",
        version="1",
        description=_ABOUT,
        routes=app.routes,
    )
    parts = told["components"]
    parts["schemas"] |= _schemas(ProblemBody, ObservationRow, Submission)
    for name in ("HTTPValidationError", "ValidationError"):
        parts["schemas"].pop(name, None)
    parts["securitySchemes"] = _SCHEMES
    parts["headers"] = _HEADERS
    parts["responses"] = {f"Problem{status}": _problem(status) for status in sorted(_TITLES)}
    for route, method, operation in _operations(routes, told["paths"]):
        _complete(operation, method, _security(route, method))
    told["paths"]["/v1/calls"]["post"] = _submission()
    _link(told["paths"])
    return told


def _operations(
    routes: Sequence[APIRoute], paths: Mapping[str, Any]
) -> Iterator[tuple[APIRoute, str, dict[str, Any]]]:
    for route in routes:
        for method in route.methods or ():
            yield route, method, paths[route.path_format][method.lower()]


def _security(route: APIRoute, method: str) -> list[Mapping[str, Any]]:
    session: Mapping[str, Any] = {"session": []} | ({} if method == "GET" else {"csrf": []})
    asked = {one.call for one in route.dependant.dependencies}
    people = _call_of(ForPeople) in asked and _call_of(ForPeopleAndAgents) not in asked
    return [_PERSON, session] if people else [_AGENT, _PERSON, session]


def _call_of(annotated: Any) -> Any:
    return annotated.__metadata__[0].dependency


def _complete(operation: dict[str, Any], method: str, security: list[Mapping[str, Any]]) -> None:
    """Security, problems, and the headers that every answer bears."""
    operation["security"] = security
    answers = operation["responses"]
    for status in [one for one in answers if one == "422"]:
        del answers[status]
    for told in answers.values():
        told["headers"] = dict(_ID)
        if method == "GET":
            told["headers"]["ETag"] = {"$ref": "#/components/headers/ETag"}
    if method == "GET":
        answers["304"] = {"description": "It is what If-None-Match says.", "headers": dict(_ID)}
    statuses = _ALWAYS if method == "GET" else (*_ALWAYS, *_OF_CHANGES)
    if "approvals" in operation["tags"]:
        statuses = (*statuses, 409)  # of what can't be shown here
    _add_problems(answers, statuses)


def _add_problems(answers: dict[str, Any], statuses: tuple[int, ...]) -> None:
    for status in sorted(set(statuses)):
        answers[str(status)] = {"$ref": f"#/components/responses/Problem{status}"}


def _problem(status: int) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/ProblemBody"}
    return {
        "description": _TITLES[status],
        "headers": {**_ID, **_MORE.get(status, {})},
        "content": {"application/problem+json": {"schema": schema}},
    }


def _schemas(*models: type[BaseModel]) -> dict[str, Any]:
    modes: Any = [(one, "validation" if one is Submission else "serialization") for one in models]
    _, made = models_json_schema(modes, ref_template="#/components/schemas/{model}")
    found: dict[str, Any] = made["$defs"]
    return found


# --- calls ----------------------------------------------------------------------------------------


def _submission() -> dict[str, Any]:
    answers: dict[str, Any] = {
        "200": _observed("It was carried out."),
        "202": _observed(
            "A person has to approve it; `Location` says where that stands.", held=True
        ),
        "207": _observed("It was carried out in part."),
    }
    _add_problems(answers, (*_ALWAYS, *_OF_CHANGES, *_OF_CALLS))
    return {
        "tags": ["calls"],
        "summary": "Submit Call",
        "operationId": "submit_call",
        "description": (
            "Have a call carried out, if it may be. The status is the observation's; of a refusal,"
            " the problem carries it. What comes twice under one key is done once."
        ),
        "parameters": [
            _header(
                "Idempotency-Key",
                "In quotes, or bare. Left out: a key that follows from run and arguments.",
                {
                    "type": "string",
                    "pattern": '^("[ !#-\\[\\]-~]{0,250}[!#-\\[\\]-~]"|[!#-+\\--~]{1,255})$',
                },
            ),
            _header(
                "Prefer",
                "`wait=N`: so many seconds, 30 at most, for a person or another like it.",
                {"type": "string", "examples": ["wait=10"], "pattern": "^wait=[0-9]{1,2}$"},
            ),
            _header(
                "traceparent",
                "Which trace it belongs to, as W3C has it.",
                {"type": "string", "pattern": "^00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]$"},
            ),
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"$ref": "#/components/schemas/Submission"}}
            },
        },
        "responses": answers,
        "security": [_AGENT],
    }


def _observed(description: str, *, held: bool = False) -> dict[str, Any]:
    text: dict[str, Any] = {"schema": {"type": "string"}}
    headers = {
        **_ID,
        "Idempotent-Replayed": {"description": "true: nothing was done anew.", **text},
    }
    if held:
        headers["Location"] = {"description": "The request for approval.", **text}
    schema = {"$ref": "#/components/schemas/ObservationRow"}
    return {
        "description": description,
        "headers": headers,
        "content": {"application/json": {"schema": schema}},
    }


def _header(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": schema}


def _link(paths: dict[str, Any]) -> None:
    """What leads on to what."""
    calls = paths["/v1/calls"]["post"]["responses"]
    by_call = {"call_id": "$response.body#/tool_identity/call_id"}
    for status in ("200", "202"):
        calls[status]["links"] = {"call": {"operationId": "show_call", "parameters": by_call}}
    by_id = {"approval_id": "$response.body#/approval_id"}
    for name in ("show_approval", "wait_for_approval"):
        calls["202"]["links"][name] = {"operationId": name, "parameters": by_id}
    made = paths["/v1/kills"]["post"]["responses"]["201"]
    made["links"] = {
        "undo": {"operationId": "restore", "parameters": {"kill_id": "$response.body#/id"}}
    }
    made = paths["/v1/grants"]["post"]["responses"]["201"]
    by_grant = {"grant_id": "$response.body#/id"}
    made["links"] = {"undo": {"operationId": "revoke_grant", "parameters": by_grant}}
