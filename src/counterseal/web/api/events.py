"""The record: search it, see how far it is sealed, check it, take it elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from counterseal.audit import EventType
from counterseal.views import Desk
from counterseal.web.api.asking import (
    Asked,
    Cursor,
    Limit,
    Seat,
    Sought,
    Time,
    answer,
    opened,
    page,
    seconds,
)
from counterseal.web.api.problems import ProblemError
from counterseal.web.api.shapes import record as shapes
from counterseal.web.api.shapes.base import Page
from counterseal.web.api.shapes.calls import Event

__all__ = ["router"]

router = APIRouter(tags=["record"])

_LINES: Final = "application/x-ndjson"
_FORMS: Final = {"jsonl": _LINES, "csv": "text/csv; charset=utf-8"}
_TOLD_EVERY: Final = 0.5
"""Seconds between two words on how far a check is."""
_checking: set[str] = set()
"""Tenants whose record is being checked by this process: once at a time is enough."""


@router.get("/v1/events", response_model=Page[Event])
async def search_events(
    desk: Seat,
    exchange: Asked,
    call: Sought = None,
    run: Sought = None,
    tool: Sought = None,
    type: Annotated[list[EventType] | None, Query(max_length=50)] = None,  # noqa: A002 - on the wire
    since: Time = None,
    until: Time = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response:
    """Events, newest first."""
    found = await desk.search(
        call_id=call,
        run_id=run,
        tool=tool,
        types=None if type is None else [one.value for one in type],
        since=seconds(since),
        until=seconds(until),
        cursor=opened(exchange, "events", cursor),
        limit=limit,
    )
    return page(exchange, "events", found)


@router.get("/v1/audit", response_model=shapes.Chain)
async def show_chain(desk: Seat) -> Response:
    """How far the record is sealed, without checking it."""
    return answer((await desk.chain()).record())


@router.post(
    "/v1/audit/verify",
    response_model=shapes.Report,
    responses={200: {"content": {_LINES: {"schema": {"type": "string"}}}}},
)
async def verify(desk: Seat, request: Request) -> Response:
    """Check all of the record. With `Accept: application/x-ndjson`, lines say how far it is.

    Each line is `{"checked": n}`; the last is `{"report": …}`.
    """
    if desk.tenant in _checking:
        told = "The record is being checked already. Try again when that is done."
        raise ProblemError("conflict", told, headers={"Retry-After": "5"})
    if _LINES not in request.headers.get("accept", ""):
        with _Alone(desk.tenant):
            return answer((await desk.verify()).record())
    return StreamingResponse(_progress(desk), media_type=_LINES)


class _Alone:
    """While somebody checks a tenant's record, nobody else does."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant

    def __enter__(self) -> None:
        _checking.add(self._tenant)

    def __exit__(self, *_: object) -> None:
        _checking.discard(self._tenant)


async def _progress(desk: Desk) -> AsyncIterator[bytes]:
    so_far = 0

    def heard(checked: int) -> None:
        nonlocal so_far
        so_far = checked

    with _Alone(desk.tenant):
        work = asyncio.ensure_future(desk.verify(heard))
        try:
            while not work.done():
                yield _line({"checked": so_far})
                await asyncio.wait({work}, timeout=_TOLD_EVERY)
            yield _line({"report": work.result().record()})
        finally:
            work.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait({work})


def _line(told: dict[str, Any]) -> bytes:
    return to_json(told) + b"\n"


@router.get(
    "/v1/audit/export",
    response_class=StreamingResponse,
    responses={
        200: {
            "content": {
                media.partition(";")[0]: {"schema": {"type": "string"}} for media in _FORMS.values()
            }
        }
    },
)
async def export(
    desk: Seat,
    format: Literal["jsonl", "csv"] = "jsonl",  # noqa: A002 - on the wire
    since: Time = None,
    until: Time = None,
) -> Response:
    """All events, oldest first, as lines. However many there are, only some are held at once."""
    lines = desk.export(format, since=seconds(since), until=seconds(until))
    first = await anext(lines, b"")  # what is wrong shows before anything is sent
    named = {"Content-Disposition": f'attachment; filename="audit.{format}"'}
    return StreamingResponse(_after(first, lines), media_type=_FORMS[format], headers=named)


async def _after(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk
