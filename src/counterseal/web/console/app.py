"""The console's routes, for whoever serves them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from starlette.convertors import PathConvertor, register_url_convertor
from starlette.responses import Response
from starlette.routing import Match, Route

from counterseal.accounts import People, Person
from counterseal.views import TenantView
from counterseal.web.browser import origin_of
from counterseal.web.console import (
    approvals,
    audit,
    calls,
    concerns,
    kill,
    overview,
    rollout,
    signing_in,
    tools,
)
from counterseal.web.console.headers import headers
from counterseal.web.console.live import Broker, EventStream, FullError, marks_of, stream
from counterseal.web.console.problems import Problem
from counterseal.web.console.visit import House, Section, Visit

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["console_routes"]

_ROOMS: Final = (
    (Section("Approvals", "/approvals"), approvals.routes),
    (Section("Calls", "/calls"), calls.routes),
    (Section("Tools", "/tools"), tools.routes),
    (Section("Operator", "/operator"), concerns.routes),
    (Section("Overview", "/overview"), overview.routes),
    (Section("Audit", "/audit"), audit.routes),
)
"""What stands in the header, and the pages behind it."""


class _Anything(PathConvertor):
    """The rest of a path, be there line breaks in it."""

    regex = "(?s:.*)"


register_url_convertor("anything", _Anything())


def console_routes(
    runtime: Runtime,
    people: People,
    view_for: Callable[[Person], TenantView],
    *,
    urls: Collection[str],
    broker: Broker | None = None,
) -> list[Route]:
    """All pages. Put them last: every path that nobody else has is theirs, to say that it is none.

    `urls` are those under which it is reached, the public one first; cookies are for https alone
    where that one is. Close the broker when the server stops, or open pages hold it up.
    """
    origins = frozenset(filter(None, map(origin_of, urls)))
    public = next(iter(urls), "")
    house = House(
        people=people,
        view_for=view_for,
        broker=broker or Broker(marks_of(runtime)),
        clock=runtime.clock,
        origins=origins,
        https=public.startswith("https:"),
        sections=tuple(section for section, _ in _ROOMS),
    )
    return [
        house.assets.route(),
        *signing_in.routes(house),
        *(route for _, routes in _ROOMS for route in routes(house)),
        *kill.routes(house),
        *rollout.routes(house),
        house.open_get("/events", events),
        house.other("/{path:anything}", nothing),
    ]


async def events(visit: Visit) -> Response:
    """The stream that tells a page to look again. Nothing, for good, where it has no reason to."""
    session, house = visit.session, visit.house
    if session is None or visit.asked("tenant") != session.person.tenant:
        return Response(status_code=204)
    open_pages = ExitStack()
    try:
        listener = open_pages.enter_context(
            house.broker.listening(session.person.tenant, session.person.name)
        )
    except FullError:
        return Response(status_code=503, headers={"Retry-After": "30"})

    async def still() -> bool:
        return await house.people.still_valid(session)

    return EventStream(
        stream(listener, still), headers=headers(https=house.https), done=open_pages.close
    )


async def nothing(visit: Visit) -> Response:
    """No page has this address, or not by this method."""
    scope = visit.request.scope
    found = [one for one in scope["router"].routes if one.matches(scope)[0] is Match.PARTIAL]
    allowed = sorted({method for one in found for method in one.methods or ()})
    if not allowed:
        raise Problem(404, "There is no such page.")
    told = ", ".join(allowed)
    raise Problem(405, f"This address takes {told} only.", Allow=told)
