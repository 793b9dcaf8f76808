"""Calls: which there were, one call's story, and what its model got."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from counterseal.codes import Code
from counterseal.views import METRICS, CallSearch, Page
from counterseal.views import CallPage as Story
from counterseal.web.api.asking import (
    Cursor,
    Limit,
    Looking,
    Seat,
    Sought,
    Time,
    View,
    answer,
    opened,
    page,
    seconds,
)
from counterseal.web.api.problems import ProblemError
from counterseal.web.api.shapes import calls as shapes
from counterseal.web.api.shapes.base import Items
from counterseal.web.api.shapes.base import Page as PageShape

__all__ = ["router"]

router = APIRouter(tags=["calls"])

MetricName = StrEnum("MetricName", {name: name for name in METRICS})  # type: ignore[misc]
Part = Literal["numerator", "denominator", "rest"]


@router.get("/v1/calls", response_model=PageShape[shapes.CallRow])
async def search_calls(
    view: Looking,
    tool: Sought = None,
    agent: Sought = None,
    user: Sought = None,
    run: Sought = None,
    code: Code | None = None,
    metric: Annotated[
        MetricName | None,
        Query(description="One row for each event that it counts. For people."),
    ] = None,
    part: Annotated[
        Part | None, Query(description="Of the metric: left out, its numerator.")
    ] = None,
    since: Time = None,
    until: Time = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response:
    """Calls, newest first. An agent finds its own."""
    if view.is_agent and metric is not None:
        raise ProblemError("people-only", "metric: numbers are for people.")
    asked = CallSearch(
        tool=tool,
        agent=agent,
        user=user,
        run=run,
        code=None if code is None else code.value,
        metric=None if metric is None else metric.value,
        part=part,
        since=seconds(since),
        until=seconds(until),
        cursor=opened(view.exchange, "calls", cursor),
        limit=limit,
    )
    if view.is_agent:
        if agent not in (None, view.agent) or (view.user and user not in (None, view.user)):
            return page(view.exchange, "calls", Page([]))
        asked = replace(asked, agent=view.agent, user=view.user or user)
    return page(view.exchange, "calls", await view.desk.calls(asked))


@router.get("/v1/calls/{call_id:path}/events", response_model=Items[shapes.Event])
async def call_events(desk: Seat, call_id: str) -> Response:
    """A call's events, oldest first."""
    return answer({"items": await desk.events(call_id)})


@router.get("/v1/calls/{call_id:path}", response_model=shapes.CallPage)
async def show_call(view: Looking, call_id: str) -> Response:
    """One call's whole story. To an agent: without gates, votes and events."""
    story = await view.desk.call(call_id)
    view.must_own("call", story.row.agent, story.row.user)
    told = _for_agent(story) if view.is_agent else story
    return answer(told.record())


def _for_agent(story: Story) -> Story:
    """Without what is for people: who said what, and which rule."""
    return replace(story, gates=(), votes=(), events=())


@router.get("/v1/observations", response_model=shapes.KeptObservation)
async def find_observation(
    view: Looking,
    call_id: Sought = None,
    key: Annotated[
        str | None,
        Query(min_length=1, max_length=1000, description="With `tool`: the one that was sent."),
    ] = None,
    tool: Sought = None,
) -> Response:
    """What a call was answered, by its id or its key, as long as it is kept."""
    if (call_id is None) == (key is None):
        told = "Give call_id or key."
        raise ProblemError("invalid-request", told, param="/call_id", where="query")
    found = await view.desk.observation(call_id=call_id, key=key, tool=tool)
    await _must_own(view, found["tool_identity"]["call_id"])
    named, public = found["approval_id"], view.exchange.house.public
    url = None if named is None else f"{public}/approvals/{named}"
    return answer({**found, "approval_url": url})


async def _must_own(view: View, call_id: str) -> None:
    if view.is_agent:
        first = (await view.desk.events(call_id))[0]
        view.must_own("observation", first["agent"], first["user"])
