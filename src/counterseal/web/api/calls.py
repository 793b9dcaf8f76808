"""Routes for calls, observations, runs and budgets."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field, StrictBool, model_validator
from pydantic_core import to_json
from starlette.responses import Response

from counterseal.canonical import json_default
from counterseal.codes import Code
from counterseal.views.audit_log import EventRow
from counterseal.views.base import Items, JsonObject, JsonValue, NotFoundError, Page
from counterseal.views.call_page import (
    ArgumentsRow,
    CallPage,
    CallRow,
    KeptObservation,
    ObservationRow,
)
from counterseal.views.calls import BudgetRow, CallSearch, RunPage, RunRow
from counterseal.views.metrics import METRICS
from counterseal.web.api.dependencies import (
    Caller,
    Context,
    Cursor,
    Filter,
    ForPeople,
    ForPeopleAndAgents,
    Limit,
    Time,
    open_cursor,
    seconds,
    sign_cursor,
)
from counterseal.web.api.submit import observation_json
from counterseal.web.problems import WHOLE, RequestBody, RequestProblemError

router = APIRouter()

MetricName = StrEnum("MetricName", {name: name for name in METRICS})  # type: ignore[misc]
Part = Literal["numerator", "denominator", "rest"]


# --- calls ----------------------------------------------------------------------------------------


@router.get("/v1/calls", tags=["calls"])
async def search_calls(
    view: ForPeopleAndAgents,
    caller: Caller,
    context: Context,
    tool: Filter = None,
    version: Filter = None,
    agent: Filter = None,
    user: Filter = None,
    run: Filter = None,
    code: Code | None = None,
    external_ref: Filter = None,
    caller_call_id: Filter = None,
    workflow: Filter = None,
    conversation: Filter = None,
    session: Filter = None,
    metric: Annotated[
        MetricName | None,
        Query(description="One row for each event that the metric counts. For people."),
    ] = None,
    part: Annotated[
        Part | None, Query(description="Part of the metric; its numerator by default.")
    ] = None,
    since: Time = None,
    until: Time = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[CallRow]:
    """List calls, newest first. An agent sees its own calls."""
    if caller.principal is not None and metric is not None:
        raise RequestProblemError("people-only", "metric: agents cannot read metrics.")
    limited = caller.limited(agent, user)
    if limited is None:
        return Page[CallRow](items=[], next=None)
    search = CallSearch(
        tool=tool,
        version=version,
        agent=limited[0],
        user=limited[1],
        run=run,
        external_ref=external_ref,
        caller_call_id=caller_call_id,
        workflow=workflow,
        conversation=conversation,
        session=session,
        code=None if code is None else code.value,
        metric=None if metric is None else metric.value,
        part=part,
        since=seconds(since),
        until=seconds(until),
        cursor=open_cursor(context, "calls", cursor),
        limit=limit,
    )
    return sign_cursor(context, "calls", await view.calls.search(search))


@router.get("/v1/calls/{call_id:path}/events", tags=["calls"])
async def call_events(view: ForPeople, call_id: str) -> Items[EventRow]:
    """List a call's events, oldest first."""
    return Items[EventRow](items=await view.calls.events(call_id))


@router.get("/v1/calls/{call_id:path}/arguments", tags=["calls"])
async def show_arguments(view: ForPeople, call_id: str) -> ArgumentsRow:
    """Show what was proposed in a call. Requires the role operator, and is put on record."""
    return await view.calls.arguments(call_id)


class OutcomeBody(RequestBody):
    """What became of a call that the client carried out: an output, or an error."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"fence": 1, "output": {"window_id": "w_7"}}]}
    )

    fence: Annotated[int, Field(strict=True, ge=1, le=2**53 - 1), WHOLE] = Field(
        description="The number that came with the call."
    )
    output: JsonValue = Field(None, description="What the tool returned; the contract's form.")
    error: JsonObject | str | None = Field(
        None, description="Why it failed: a text, or an object with `message` and `code`."
    )
    not_done: StrictBool = Field(
        default=False, description="The client did nothing, so the call may be made again."
    )

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.output is not None and (self.error is not None or self.not_done):
            raise ValueError("a call that failed, or was not carried out, has no output")
        return self


@router.post("/v1/calls/{call_id:path}/outcome", tags=["calls"], response_model=ObservationRow)
async def report_outcome(
    caller: Caller, context: Context, call_id: str, body: OutcomeBody
) -> Response:
    """Report what became of a call that was handed to the client. Answers with its observation.

    Only the agent that made the call can report it, once; the same report is answered the same.
    """
    if caller.principal is None:
        detail = "Only the agent that made a call reports its outcome."
        raise RequestProblemError("agents-only", detail)
    state = context.state
    seen = await state.report_outcome(call_id, caller.principal, **dict(body))
    shown = observation_json(seen.record(()), seen.for_model(), state.public)
    content = to_json(shown, inf_nan_mode="null", fallback=json_default)
    return Response(content, media_type="application/json")


@router.get("/v1/calls/{call_id:path}", tags=["calls"])
async def show_call(view: ForPeopleAndAgents, caller: Caller, call_id: str) -> CallPage:
    """Show everything on record about a call; to an agent, without gates, votes and events.

    `call_id` is Counterseal's id or the caller's own. If several calls have the caller's id, the
    problem ambiguous-id lists them.
    """
    page = await view.calls.page(call_id, caller.owner)
    caller.must_own("call", page.call.agent, page.call.user)
    if caller.principal is not None:
        return page.model_copy(update={"gates": [], "votes": [], "events": []})
    return page


@router.get("/v1/observations", tags=["calls"], response_model=KeptObservation)
async def find_observation(
    view: ForPeopleAndAgents,
    caller: Caller,
    context: Context,
    call_id: Filter = None,
    key: Annotated[
        str | None,
        Query(
            min_length=1, max_length=1000, description="With `tool`: the caller's Idempotency-Key."
        ),
    ] = None,
    tool: Filter = None,
) -> Response:
    """Show the observation of a call, by the call's id or its key, as long as it is kept."""
    if (call_id is None) == (key is None):
        detail = "Pass either call_id or key."
        raise RequestProblemError("invalid-request", detail, param="/call_id", where="query")
    record = await view.calls.observation(call_id=call_id, key=key, tool=tool, owner=caller.owner)
    if caller.principal is not None:
        first = (await view.calls.events(record["tool_identity"]["call_id"]))[0]
        caller.must_own("observation", first.agent, first.user)
    # Sent as it was kept: a row would write its timestamp in another form.
    shown = observation_json(record, record["text"], context.state.public)
    content = to_json(shown, inf_nan_mode="null", fallback=json_default)
    return Response(content, media_type="application/json")


# --- runs -----------------------------------------------------------------------------------------


@router.get("/v1/runs", tags=["runs"])
async def list_runs(
    view: ForPeopleAndAgents,
    caller: Caller,
    context: Context,
    agent: Filter = None,
    user: Filter = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[RunRow]:
    """List runs with answered calls, latest first. An agent sees the runs of its own calls."""
    limited = caller.limited(agent, user)
    if limited is None:
        return Page[RunRow](items=[], next=None)
    agent, user = limited
    position = open_cursor(context, "runs", cursor)
    page = await view.runs.search(agent=agent, user=user, limit=limit, cursor=position)
    return sign_cursor(context, "runs", page)


@router.get("/v1/runs/{run_id:path}", tags=["runs"])
async def show_run(
    view: ForPeopleAndAgents, caller: Caller, context: Context, run_id: str
) -> RunPage:
    """Show a run: its settings, what it has spent, its state, and its latest calls.

    An agent sees the runs that it has made calls in, with its own calls.
    """
    page = await view.runs.page(run_id)
    if caller.owner is not None:
        agent, user = caller.owner
        calls = await view.calls.search(CallSearch(run=run_id, agent=agent, user=user))
        if not calls.items:
            raise NotFoundError("run")
        budgets = [row for row in page.budgets if row.of == "run"]
        page = page.model_copy(update={"calls": calls, "budgets": budgets, "state": []})
    # The cursor continues in the calls of this run: /v1/calls?run=…&cursor=…
    return page.model_copy(update={"calls": sign_cursor(context, "calls", page.calls)})


@router.get("/v1/budgets", tags=["runs"])
async def list_budgets(view: ForPeople, run: Filter = None) -> Items[BudgetRow]:
    """List what was spent of the tenant's budgets today, and of a run's."""
    return Items[BudgetRow](items=await view.runs.budgets(run))
