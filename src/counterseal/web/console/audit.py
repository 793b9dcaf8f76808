"""The record: how far it is sealed, checking it, taking it elsewhere, and its events.

A check may take minutes. The answer is one long page that says how far it is while it goes on, so
it takes no script, and it does not matter which worker the browser talks to next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from counterseal.audit import EventType
from counterseal.errors import StoreError
from counterseal.views import AuditReport, TenantView
from counterseal.views.base import WINDOWS, iso, window_seconds
from counterseal.web.console.problems import Problem, understood
from counterseal.web.console.rendering import address
from counterseal.web.console.searching import event_search, field_time
from counterseal.web.console.visit import House, Visit

__all__ = ["routes"]

_HERE: Final = "<!-- the check -->"
"""Where the page is cut in two. No value can hold it: values are escaped."""
_EVERY: Final = 0.5
"""Seconds between two words about how far it is."""
_FORMATS: Final = {"jsonl": "JSON Lines", "csv": "CSV"}
_SPANS: Final = {"24h": "the last day", "7d": "the last week", "30d": "the last 30 days"}


def routes(house: House) -> list[Route]:
    """The pages about the record."""
    checks = Checks()
    return [
        house.get("/audit", show),
        house.post("/audit/verify", checks.verify),
        house.get("/audit/verify", back),
        house.get("/audit/events", events),
    ]


async def show(visit: Visit) -> Response:
    """How far it is sealed."""
    return await _page(visit, checking=False)


async def back(visit: Visit) -> Response:
    """A check begins with its button."""
    return visit.go("/audit")


async def _page(visit: Visit, *, checking: bool) -> Response:
    now = visit.house.clock()
    since = {window: iso(now - window_seconds(window)) for window in _SPANS}
    return await visit.render(
        "audit.html",
        title="Audit",
        shows=address("v1", "audit"),
        chain=await visit.view.record.chain(),
        checking=checking,
        exports=[
            (
                title,
                address("v1", "audit", "export", format=form),
                [
                    (said, address("v1", "audit", "export", format=form, since=since[window]))
                    for window, said in _SPANS.items()
                ],
            )
            for form, title in _FORMATS.items()
        ],
    )


# --- checking -------------------------------------------------------------------------------------


class Checks:
    """One at a time for each tenant: it reads everything."""

    def __init__(self) -> None:
        self._under_way: set[str] = set()

    async def verify(self, visit: Visit) -> Response:
        """Look at every event, and say how far it is meanwhile."""
        tenant = visit.person.tenant
        if tenant in self._under_way:
            raise Problem(429, "The record is being checked right now. Wait until that is done.")
        page = await _page(visit, checking=True)
        begin, _, end = bytes(page.body).decode().partition(_HERE)
        pieces = self._told(tenant, visit, begin, end)
        return StreamingResponse(
            pieces, media_type="text/html", headers={"X-Accel-Buffering": "no"}
        )

    async def _told(self, tenant: str, visit: Visit, begin: str, end: str) -> AsyncIterator[str]:
        self._under_way.add(tenant)
        try:
            yield begin
            async for piece in _checked(visit.view, visit.house.templates):
                yield piece
            yield end
        finally:
            self._under_way.discard(tenant)


async def _checked(view: TenantView, templates: Any) -> AsyncIterator[str]:
    looked_at = [0]

    def progress(events: int) -> None:
        looked_at[0] = events

    part = templates.get_template("audit_report.html")
    checking = asyncio.ensure_future(view.record.verify(progress))
    try:
        while not (await asyncio.wait({checking}, timeout=_EVERY))[0]:
            yield part.render(report=None, failed="", events=looked_at[0])
        report, failed = _outcome(checking)
        yield part.render(report=report, failed=failed, events=looked_at[0])
    finally:
        checking.cancel()


def _outcome(checking: asyncio.Future[AuditReport]) -> tuple[AuditReport | None, str]:
    try:
        return checking.result(), ""
    except StoreError:
        return None, "The store can't be reached just now, so nothing can be said. Try again."


# --- events ---------------------------------------------------------------------------------------


async def events(visit: Visit) -> Response:
    """Events, newest first, by what is asked in the URL."""
    names = ("type", "tool", "call", "run", "within", "since", "until")
    asked = {name: visit.asked(name) for name in names}
    cursor = visit.asked("cursor")
    with understood():
        wanted = event_search(visit.asked, visit.house.clock())
        page = await visit.view.record.search(**wanted)
    more = None if page.next is None else address("audit", "events", **asked, cursor=page.next)
    return await visit.render(
        "events.html",
        title="Events",
        shows=_resource(asked, wanted),
        rows=page.items,
        types=[one.value for one in EventType],
        asked_types=wanted["types"] or [],
        chosen=_chosen(asked, wanted),
        narrowed=any(asked.values()),
        further=cursor is not None,
        windows=WINDOWS,
        more=more,
    )


def _chosen(asked: dict[str, str | None], wanted: dict[str, Any]) -> dict[str, str]:
    """The fields as they were filled in. A window is kept as such, so that it goes on moving."""
    since = field_time(wanted["since"]) if asked["since"] else ""
    until = field_time(wanted["until"], up=True)
    return {name: value or "" for name, value in asked.items()} | {"since": since, "until": until}


def _resource(asked: dict[str, str | None], wanted: dict[str, Any]) -> str:
    times = {name: iso(wanted[name]) for name in ("since", "until")}
    named = {name: asked[name] for name in ("tool", "call", "run")}
    path = address("v1", "events", **named, **times)
    types = urlencode([("type", one) for one in wanted["types"] or ()])
    return path + ("&" if "?" in path else "?") * bool(types) + types
