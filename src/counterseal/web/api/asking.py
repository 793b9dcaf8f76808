"""What routes have in common: whose desk it is, what of it is the caller's own, how to answer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Query
from fastapi.routing import APIRoute
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from counterseal.accounts import Person, Role
from counterseal.canonical import json_default
from counterseal.views import Desk, NotThere, Page
from counterseal.web.api.callers import Agent, Caller, Human
from counterseal.web.api.exchange import Exchange
from counterseal.web.api.front import EXCHANGE, refuse_strange
from counterseal.web.api.problems import ProblemError
from counterseal.web.api.shapes.base import When

_FAR = 9e10

__all__ = [
    "Asked",
    "Cursor",
    "Limit",
    "Looking",
    "Seat",
    "Sought",
    "Time",
    "View",
    "answer",
    "opened",
    "page",
    "sealed",
    "seconds",
]

Time = Annotated[When | None, Query(description="With its time zone.")]
Cursor = Annotated[str | None, Query(max_length=2000, description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=200, description="How many rows.")]
Sought = Annotated[str | None, Query(min_length=1, max_length=512)]


class View:
    """A desk to look at things from. What of it is an agent's is only what it has made itself."""

    def __init__(self, exchange: Exchange, caller: Caller) -> None:
        self.exchange = exchange
        self.caller = caller
        self.agent = caller.principal.agent if isinstance(caller, Agent) else None
        self.user = caller.principal.user if isinstance(caller, Agent) else None
        """On whose behalf; None: an agent that acts on nobody's sees all of its own calls."""
        person = caller.person if isinstance(caller, Human) else _onlooker(caller)
        self.desk = exchange.house.desk_for(person)

    @property
    def is_agent(self) -> bool:
        return self.agent is not None

    def must_own(self, what: str, agent: str | None, user: str | None) -> None:
        """NotThere, for an agent, unless it is its own."""
        if self.agent is None:
            return
        if agent != self.agent or self.user not in (None, user):
            raise NotThere(what)


def _onlooker(caller: Agent) -> Person:
    """An agent as somebody who may look, and no more."""
    who = caller.principal
    return Person(name=who.agent, tenant=who.tenant, roles=frozenset({Role.VIEWER.value}))


async def _exchange(request: Request) -> Exchange:
    _refuse_unknown(request)
    found: Exchange = request.scope[EXCHANGE]
    return found


def _refuse_unknown(request: Request) -> None:
    if request.query_params:
        route: APIRoute = request.scope["route"]
        refuse_strange(request.query_params, [one.alias for one in route.dependant.query_params])


Asked = Annotated[Exchange, Depends(_exchange)]


async def _view(exchange: Asked) -> View:
    if exchange.caller is None:
        raise ProblemError("unauthenticated", "Who asks is not known.")
    return View(exchange, exchange.caller)


async def _seat(exchange: Asked) -> Desk:
    """A person's desk."""
    if not isinstance(exchange.caller, Human):
        told = "This is for people: sign in, or use a personal key. No agent's credential will do."
        raise ProblemError("people-only", told)
    return exchange.house.desk_for(exchange.caller.person)


Looking = Annotated[View, Depends(_view)]
"""For agents and people."""
Seat = Annotated[Desk, Depends(_seat)]
"""For people."""


def answer(record: Any, status: int = 200, **headers: str) -> Response:
    """A record as JSON."""
    body = to_json(record, inf_nan_mode="null", fallback=json_default)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(body, status, headers=named, media_type="application/json")


def page(exchange: Exchange, what: str, found: Page[Any]) -> Response:
    """A page, with its cursor sealed."""
    told: Mapping[str, Any] = found.record()
    return answer({**told, "next": sealed(exchange, what, found.next)})


def sealed(exchange: Exchange, what: str, place: str | None) -> str | None:
    """A cursor for a place, as it is given out."""
    tenant = "" if exchange.caller is None else exchange.caller.tenant
    return exchange.house.cursors.give(tenant, what, place)


def opened(exchange: Exchange, what: str, cursor: str | None) -> str | None:
    """The place that a cursor stands for. ProblemError for one that was not given out here."""
    tenant = "" if exchange.caller is None else exchange.caller.tenant
    return exchange.house.cursors.take(tenant, what, cursor)


def seconds(moment: datetime | None) -> float | None:
    """Since the epoch. Beyond some thousand years it makes no difference."""
    return None if moment is None else max(-_FAR, min(moment.timestamp(), _FAR))
