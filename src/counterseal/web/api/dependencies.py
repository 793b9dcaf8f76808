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

from counterseal.accounts import Person, Role
from counterseal.operations.auditor import Owner
from counterseal.views import TenantView
from counterseal.views.base import NotFoundError, Page, cursor_error
from counterseal.web.api.middleware import (
    AgentCaller,
    ApiCaller,
    PersonCaller,
    RequestContext,
    context_of,
)
from counterseal.web.api.problems import RequestProblemError, refuse_unknown_parameters

R = TypeVar("R")

# --- parameters -----------------------------------------------------------------------------------

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_MAX_TIME = 9e10
NO_CREDENTIAL: Final = "Send an API key, a token or a personal key as `Authorization: Bearer …`."


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


class CallerView:
    """The view of a person or an agent. An agent sees only what it has done itself."""

    def __init__(self, context: RequestContext, caller: ApiCaller) -> None:
        self.context = context
        self.caller = caller
        self.agent = caller.principal.agent if isinstance(caller, AgentCaller) else None
        self.user = caller.principal.user if isinstance(caller, AgentCaller) else None
        """The agent's user; an agent without one sees all of its own calls."""
        person = caller.person if isinstance(caller, PersonCaller) else _viewer(caller)
        self.view = context.state.view_for(person)

    @property
    def is_agent(self) -> bool:
        return self.agent is not None

    @property
    def owner(self) -> Owner | None:
        """The agent whose calls the caller may see, and its user; None: all calls of the tenant."""
        return None if self.agent is None else (self.agent, self.user)

    def must_own(self, kind: str, agent: str | None, user: str | None) -> None:
        """Raise NotFoundError if the caller is an agent and the object is not its own."""
        if self.agent is None:
            return
        if agent != self.agent or self.user not in (None, user):
            raise NotFoundError(kind)

    def excludes(self, agent: str | None, user: str | None) -> bool:
        """Return whether these filters match nothing that the caller may see."""
        if self.agent is None:
            return False
        return agent not in (None, self.agent) or (
            self.user is not None and user not in (None, self.user)
        )


def _viewer(caller: AgentCaller) -> Person:
    """Return an agent as a person with the role viewer."""
    principal = caller.principal
    roles = frozenset({Role.VIEWER.value})
    return Person(name=principal.agent, tenant=principal.tenant, roles=roles)


async def _context(request: Request) -> RequestContext:
    if request.query_params:
        route: APIRoute = request.scope["route"]
        allowed = [parameter.alias for parameter in route.dependant.query_params]
        refuse_unknown_parameters(request.query_params, allowed)
    return context_of(request.scope)


Context = Annotated[RequestContext, Depends(_context)]


async def _caller_view(context: Context) -> CallerView:
    if context.caller is None:
        raise RequestProblemError("unauthenticated", NO_CREDENTIAL)
    return CallerView(context, context.caller)


async def _person_view(context: Context) -> TenantView:
    if not isinstance(context.caller, PersonCaller):
        detail = "Agents cannot use this. Sign in, or use a personal key."
        raise RequestProblemError("people-only", detail)
    return context.state.view_for(context.caller.person)


ForPeopleAndAgents = Annotated[CallerView, Depends(_caller_view)]
ForPeople = Annotated[TenantView, Depends(_person_view)]


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
    tenant = "" if context.caller is None else context.caller.tenant
    about = f"{tenant}\0{subject}\0".encode()
    return hmac.digest(context.state.cursor_key, about + position, "sha256")[:_MAC_BYTES]
