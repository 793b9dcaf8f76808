"""Runs, and what was spent of budgets."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter
from starlette.responses import Response

from counterseal.views import CallSearch, NotThere, RunPage
from counterseal.views import Page as Found
from counterseal.web.api.asking import (
    Cursor,
    Limit,
    Looking,
    Seat,
    Sought,
    View,
    answer,
    opened,
    page,
    sealed,
)
from counterseal.web.api.shapes import calls as shapes
from counterseal.web.api.shapes.base import Items, Page

__all__ = ["router"]

router = APIRouter(tags=["runs"])


@router.get("/v1/runs", response_model=Page[shapes.RunRow])
async def list_runs(
    view: Looking,
    agent: Sought = None,
    user: Sought = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response:
    """Runs in which calls were answered, the latest first. An agent finds those with its own."""
    if view.is_agent:
        if agent not in (None, view.agent) or (view.user and user not in (None, view.user)):
            return page(view.exchange, "runs", Found([]))
        agent, user = view.agent, view.user or user
    place = opened(view.exchange, "runs", cursor)
    found = await view.desk.runs(agent=agent, user=user, limit=limit, cursor=place)
    return page(view.exchange, "runs", found)


@router.get("/v1/runs/{run_id:path}", response_model=shapes.Run)
async def show_run(view: Looking, run_id: str) -> Response:
    """A run: what it was opened with, what it has spent, what it holds, and its latest calls.

    An agent finds the runs that it has made calls in, and of those its own.
    """
    found = await view.desk.run(run_id)
    if view.is_agent:
        found = await _own(view, found)
    told = found.record()
    # Its cursor leads on in the calls of this run: /v1/calls?run=…&cursor=…
    told["calls"]["next"] = sealed(view.exchange, "calls", found.calls.next)
    return answer(told)


async def _own(view: View, run: RunPage) -> RunPage:
    asked = CallSearch(run=run.run_id, agent=view.agent, user=view.user)
    calls = await view.desk.calls(asked)
    if not calls.items:
        raise NotThere("run")
    spent = [row for row in run.budgets if row.of == "run"]
    return replace(run, calls=calls, budgets=spent, state=())


@router.get("/v1/budgets", response_model=Items[shapes.BudgetRow])
async def list_budgets(desk: Seat, run: Sought = None) -> Response:
    """What was spent of the tenant's budgets today, and of a run's."""
    return answer({"items": [row.record() for row in await desk.budgets(run)]})
