"""Routes for the audit record (events, seals, verification, export), metrics, and the caller."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from counterseal.audit import EventType
from counterseal.audit.verify import AuditReport
from counterseal.views import Me
from counterseal.views.audit_log import ChainStatus, EventRow
from counterseal.views.base import Items, Page
from counterseal.views.metrics import MetricRow, MetricSeries
from counterseal.web.api.dependencies import (
    Caller,
    Context,
    Cursor,
    Filter,
    ForPeople,
    Limit,
    Time,
    Window,
    open_cursor,
    seconds,
    sign_cursor,
)

router = APIRouter()

# --- the audit record -----------------------------------------------------------------------------

_LINES: Final = "application/x-ndjson"
_MEDIA_TYPES: Final = {"jsonl": _LINES, "csv": "text/csv; charset=utf-8"}


@router.get("/v1/events", tags=["record"])
async def search_events(
    view: ForPeople,
    context: Context,
    call: Filter = None,
    run: Filter = None,
    tool: Filter = None,
    type: Annotated[list[EventType] | None, Query(max_length=50)] = None,  # noqa: A002 - on the wire
    since: Time = None,
    until: Time = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[EventRow]:
    """List events, newest first."""
    page = await view.record.search(
        call_id=call,
        run_id=run,
        tool=tool,
        types=None if type is None else [kind.value for kind in type],
        since=seconds(since),
        until=seconds(until),
        cursor=open_cursor(context, "events", cursor),
        limit=limit,
    )
    return sign_cursor(context, "events", page)


@router.get("/v1/audit", tags=["record"])
async def show_chain(view: ForPeople) -> ChainStatus:
    """Show how far the record is sealed, without verifying it."""
    return await view.record.chain()


@router.post(
    "/v1/audit/verify",
    tags=["record"],
    response_model=AuditReport,
    responses={200: {"content": {_LINES: {"schema": {"type": "string"}}}}},
)
async def verify(view: ForPeople, request: Request) -> AuditReport | Response:
    """Verify the whole record. With `Accept: application/x-ndjson`, lines report progress.

    Each line is `{"checked": n}`; the last is `{"report": …}`.
    """
    if _LINES not in request.headers.get("accept", ""):
        return await view.record.verify()
    steps = view.record.verification()

    async def lines() -> AsyncIterator[bytes]:
        async for step in steps:
            line = {"report" if isinstance(step, AuditReport) else "checked": step}
            yield to_json(line) + b"\n"

    return StreamingResponse(lines(), media_type=_LINES)


@router.get(
    "/v1/audit/export",
    tags=["record"],
    response_class=StreamingResponse,
    responses={
        200: {
            "content": {
                media.partition(";")[0]: {"schema": {"type": "string"}}
                for media in _MEDIA_TYPES.values()
            }
        }
    },
)
async def export(
    view: ForPeople,
    format: Literal["jsonl", "csv"] = "jsonl",  # noqa: A002 - on the wire
    since: Time = None,
    until: Time = None,
) -> Response:
    """Export all events, oldest first, as lines."""
    lines = view.record.export(format, since=seconds(since), until=seconds(until))
    first = await anext(lines, b"")  # an error shows before anything is sent
    headers = {"Content-Disposition": f'attachment; filename="audit.{format}"'}

    async def chunks() -> AsyncIterator[bytes]:
        yield first
        async for chunk in lines:
            yield chunk

    return StreamingResponse(chunks(), media_type=_MEDIA_TYPES[format], headers=headers)


# --- metrics --------------------------------------------------------------------------------------


@router.get("/v1/metrics", tags=["metrics"])
async def list_metrics(view: ForPeople, window: Window = "24h") -> Items[MetricRow]:
    """List all metrics over a window that ends now."""
    return Items[MetricRow](items=await view.metrics.rows(window))


@router.get("/v1/metrics/{metric}/series", tags=["metrics"])
async def metric_series(
    view: ForPeople,
    metric: str,
    window: Window = "24h",
    buckets: Annotated[int, Query(ge=1, le=500)] = 24,
) -> MetricSeries:
    """Show one metric over time."""
    return await view.metrics.series(metric, window, buckets)


# --- the caller -----------------------------------------------------------------------------------


@router.get("/v1/me", tags=["me"])
async def show_me(caller: Caller) -> Me:
    """Show the caller's own identity."""
    principal, person = caller.principal, caller.person
    return Me(
        kind="person" if principal is None else "agent",
        tenant=person.tenant,
        agent=None if principal is None else principal.agent,
        user=person.name if principal is None else principal.user,
        roles=sorted(person.roles if principal is None else principal.roles),
        scopes=[] if principal is None else sorted(principal.scopes),
        everywhere=sorted(person.everywhere),
    )
