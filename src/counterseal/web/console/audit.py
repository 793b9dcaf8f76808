"""Pages about the audit record: seals, verification, export, and its events.

A verification may take minutes. Its answer is one long page that reports progress while it runs, so
that it needs no script, and works whichever worker the browser talks to next.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from counterseal.audit import EventType
from counterseal.audit.verify import AuditReport
from counterseal.errors import StoreError
from counterseal.views.base import WINDOWS, iso, window_seconds
from counterseal.web.console.page_request import ConsoleState, PageRequest, form_time
from counterseal.web.console.rendering import address

_FORMATS: Final = {"jsonl": "JSON Lines", "csv": "CSV"}
_SPANS: Final = {"24h": "the last day", "7d": "the last week", "30d": "the last 30 days"}


def routes(state: ConsoleState) -> list[Route]:
    """Return the pages about the record."""
    return [
        state.get("/audit", show),
        *state.form("/audit/verify", verify),
        state.get("/audit/events", events),
    ]


async def show(request: PageRequest, *, verifying: bool = False) -> Response:
    """Show how far the record is sealed, or is being verified."""
    now = request.state.clock()
    since = {window: iso(now - window_seconds(window)) for window in _SPANS}
    return await request.render(
        "audit.html",
        title="Audit",
        shows=address("v1", "audit"),
        chain=await request.view.record.chain(),
        verifying=verifying,
        exports=[
            (
                title,
                address("v1", "audit", "export", format=form),
                [
                    (span, address("v1", "audit", "export", format=form, since=since[window]))
                    for window, span in _SPANS.items()
                ],
            )
            for form, title in _FORMATS.items()
        ],
    )


# --- verification ---------------------------------------------------------------------------------

_PLACEHOLDER: Final = "<!-- verification -->"
"""Where the page is cut in two. Values are escaped, so no value can contain it."""
_NOT_FINISHED: Final = "The store cannot be reached, so the verification did not finish. Try again."


async def verify(request: PageRequest) -> Response:
    """Verify the record, and report progress on the page."""
    steps = request.view.record.verification()
    page = await show(request, verifying=True)
    begin, _, end = bytes(page.body).decode().partition(_PLACEHOLDER)
    part = request.state.templates.get_template("audit_report.html")

    async def chunks() -> AsyncIterator[str]:
        yield begin
        try:
            async for step in steps:
                report = step if isinstance(step, AuditReport) else None
                yield part.render(report=report, failed="", events=step)
        except StoreError:
            yield part.render(report=None, failed=_NOT_FINISHED, events=0)
        yield end

    headers = {"X-Accel-Buffering": "no"}
    return StreamingResponse(chunks(), media_type="text/html", headers=headers)


# --- events ---------------------------------------------------------------------------------------


def event_search(request: PageRequest) -> dict[str, Any]:
    """Return the search that the URL asks for. `type` is one or several, separated by commas."""
    since, until = request.time_range()
    types = [kind for kind in (request.parameter("type") or "").split(",") if kind]
    return {
        "call_id": request.parameter("call"),
        "run_id": request.parameter("run"),
        "tool": request.parameter("tool"),
        "types": types or None,
        "since": since,
        "until": until,
        "cursor": request.parameter("cursor"),
    }


async def events(request: PageRequest) -> Response:
    """Show events, newest first."""
    names = ("type", "tool", "call", "run", "within", "since", "until")
    filters = {name: request.parameter(name) for name in names}
    wanted = event_search(request)
    page = await request.view.record.search(**wanted)
    more = None if page.next is None else address("audit", "events", **filters, cursor=page.next)
    times = {name: iso(wanted[name]) for name in ("since", "until")}
    texts = {name: filters[name] for name in ("tool", "call", "run")}
    resource = address("v1", "events", **texts, **times)
    types = urlencode([("type", kind) for kind in wanted["types"] or ()])
    return await request.render(
        "events.html",
        title="Events",
        shows=resource + ("&" if "?" in resource else "?") * bool(types) + types,
        rows=page.items,
        types=[kind.value for kind in EventType],
        chosen_types=wanted["types"] or [],
        chosen={  # the form's fields as filled in; a window is kept as such, so that it moves on
            **{name: value or "" for name, value in filters.items()},
            "since": form_time(wanted["since"]) if filters["since"] else "",
            "until": form_time(wanted["until"], up=True),
        },
        filtered=any(filters.values()),
        further=wanted["cursor"] is not None,
        windows=WINDOWS,
        more=more,
    )
