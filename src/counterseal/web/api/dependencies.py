"""Parameters, views and cursors that routes share."""

from __future__ import annotations

import base64
import hmac
import re
from datetime import datetime
from typing import Annotated, Final, TypeVar

from fastapi import Depends, Query
from fastapi.routing import APIRoute
from pydantic import AwareDatetime, BeforeValidator, StringConstraints
from starlette.requests import Request

from counterseal.views import TenantView
from counterseal.views.base import Page, cursor_error
from counterseal.web.api.middleware import ApiCaller, RequestContext, context_of
from counterseal.web.problems import RequestProblemError, check_parameters

R = TypeVar("R")

# --- parameters -----------------------------------------------------------------------------------

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_MAX_TIME = 9e10


def _check_moment(value: object) -> object:
    """Refuse numbers, which could be seconds or milliseconds, and times without a zone."""
    if isinstance(value, datetime) or (isinstance(value, str) and _MOMENT.fullmatch(value)):
        return value
    raise ValueError("write it like 2026-01-31T12:00:00Z")


When = Annotated[AwareDatetime, BeforeValidator(_check_moment)]
"""A time with its zone."""
Time = Annotated[When | None, Query(description="A time with its zone.")]
Cursor = Annotated[str | None, Query(max_length=2000, description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=200, description="Rows of a page.")]
Filter = Annotated[str | None, Query(min_length=1, max_length=512)]
Window = Annotated[
    str,
    Query(
        pattern=r"^([1-9]\d{0,3}m|[1-9]\d{0,2}h|([1-9]\d?|[12]\d\d|3[0-5]\d|36[0-6])d)$",
        description="How far back from now: 15m, 24h, 7d.",
        examples=["24h"],
    ),
]


def seconds(moment: datetime | None) -> float | None:
    """Return a time in seconds since the epoch, limited to some thousand years."""
    return None if moment is None else max(-_MAX_TIME, min(moment.timestamp(), _MAX_TIME))


Reason = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500, pattern=r"\S")
]
"""Why an operator makes a change. It goes on record."""


# --- views ----------------------------------------------------------------------------------------


async def _context(request: Request) -> RequestContext:
    if request.query_params:
        route: APIRoute = request.scope["route"]
        allowed = [parameter.alias for parameter in route.dependant.query_params]
        check_parameters(request.query_params, allowed)
    return context_of(request.scope)


Context = Annotated[RequestContext, Depends(_context)]


async def _caller(context: Context) -> ApiCaller:
    if context.caller is None:
        detail = "Send an API key, a token or a personal key as `Authorization: Bearer …`."
        raise RequestProblemError("unauthenticated", detail)
    return context.caller


Caller = Annotated[ApiCaller, Depends(_caller)]


async def _any_view(context: Context, caller: Caller) -> TenantView:
    return context.state.view_for(caller.person)


async def person_view(context: Context, caller: Caller) -> TenantView:
    """Return the view of a person. Agents are refused."""
    if caller.principal is not None:
        detail = "Agents cannot use this. Sign in, or use a personal key."
        raise RequestProblemError("people-only", detail)
    return context.state.view_for(caller.person)


ForPeopleAndAgents = Annotated[TenantView, Depends(_any_view)]
"""The view of a person, or of an agent; the route limits that to what the agent has done itself."""
ForPeople = Annotated[TenantView, Depends(person_view)]


# --- cursors --------------------------------------------------------------------------------------


_MAC_BYTES: Final = 16
_MAX_CURSOR: Final = 2000


def sign_cursor(context: RequestContext, subject: str, page: Page[R]) -> Page[R]:
    """Return a page whose cursor is good for this tenant and this list only."""
    if page.next is None:
        return page
    position = page.next.encode()
    cursor = base64.urlsafe_b64encode(_mac(context, subject, position) + position)
    return page.model_copy(update={"next": cursor.decode().rstrip("=")})


def open_cursor(context: RequestContext, subject: str, cursor: str | None) -> str | None:
    """Return the position of a cursor. Raises RequestProblemError for one of another list."""
    if cursor is None:
        return None
    try:
        raw = cursor.encode("ascii") if len(cursor) <= _MAX_CURSOR else b""
        content = base64.b64decode(raw + b"=" * (-len(raw) % 4), b"-_", validate=True)
        mac, position = content[:_MAC_BYTES], content[_MAC_BYTES:]
        if hmac.compare_digest(mac, _mac(context, subject, position)):
            return position.decode()
    except ValueError:
        pass
    raise RequestProblemError("invalid-cursor", str(cursor_error()), param="/cursor", where="query")


def _mac(context: RequestContext, subject: str, position: bytes) -> bytes:
    tenant = "" if context.caller is None else context.caller.person.tenant
    about = f"{tenant}\0{subject}\0".encode()
    return hmac.digest(context.state.cursor_key, about + position, "sha256")[:_MAC_BYTES]
