"""Tools as one tenant has them, and what operators do about one."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from counterseal.gateway.catalogue import EFFECT, VERSION
from counterseal.web.api.asking import Looking, Seat, Sought, answer
from counterseal.web.api.callers import Agent
from counterseal.web.api.grants import grant_record
from counterseal.web.api.shapes import tools as shapes
from counterseal.web.api.shapes.base import Items

__all__ = ["router"]

router = APIRouter(tags=["tools"])

Window = Annotated[
    str,
    Query(
        pattern=r"^([1-9]\d{0,3}m|[1-9]\d{0,2}h|([1-9]\d?|[12]\d\d|3[0-5]\d|36[0-6])d)$",
        description="So far back from now: 15m, 24h, 7d.",
        examples=["24h"],
    ),
]


@router.get("/v1/tools", response_model=Items[shapes.ToolRow] | Items[shapes.CatalogueEntry])
async def list_tools(
    view: Looking,
    run: Annotated[Sought, Query(description="For an agent: as this run may use them.")] = None,
) -> Response:
    """Every tool of the tenant; to an agent, those that it may use, as MCP lists them."""
    caller = view.caller
    if not isinstance(caller, Agent):
        return answer({"items": [row.record() for row in view.desk.tools()]})
    found = await view.exchange.house.catalogue.tools(caller.principal, run)
    return answer({"items": [_entry(one) for one in found]})


def _entry(tool: dict[str, Any]) -> dict[str, Any]:
    told = {name: value for name, value in tool.items() if name != "_meta"}
    return {**told, "effect": tool["_meta"][EFFECT], "version": tool["_meta"][VERSION]}


@router.get("/v1/tools/{name}", response_model=shapes.Tool)
async def show_tool(desk: Seat, name: str) -> Response:
    """A tool's card: contract, versions, grants, kills, what operators changed, quarantine."""
    card = desk.tool(name)
    return answer({**card.record(), "grant_list": [grant_record(one) for one in card.grants]})


@router.get("/v1/tools/{name}/versions", response_model=Items[shapes.ToolVersion])
async def tool_versions(desk: Seat, name: str) -> Response:
    """Newest first."""
    return answer({"items": desk.versions(name)})


@router.get("/v1/tools/{name}/use", response_model=shapes.ToolUse)
async def tool_use(desk: Seat, name: str, window: Window = "24h") -> Response:
    """How its latest calls ended."""
    return answer((await desk.use(name, window)).record())


@router.post("/v1/tools/{name}/enable", response_model=shapes.Change)
async def enable_tool(desk: Seat, name: str, given: shapes.OfVersion) -> Response:
    """Let it be used again. Takes the role operator."""
    return answer((await desk.enable(name, given.version, reason=given.reason)).export())


@router.post("/v1/tools/{name}/disable", response_model=shapes.Change)
async def disable_tool(desk: Seat, name: str, given: shapes.OfVersion) -> Response:
    """Take it out of use. Takes the role operator."""
    return answer((await desk.disable(name, given.version, reason=given.reason)).export())


@router.get("/v1/tools/{name}/rollout", response_model=Items[shapes.Share])
async def preview_rollout(
    desk: Seat,
    name: str,
    version: Annotated[str, Query(min_length=1, max_length=100)],
    percentage: Annotated[int, Query(ge=0, le=100)],
) -> Response:
    """What new runs would get if a version were rolled out so far. Takes the role operator."""
    found = await desk.preview_rollout(name, version, percentage)
    return answer({"items": [one._asdict() for one in found]})


@router.post("/v1/tools/{name}/rollout", response_model=shapes.Change)
async def roll_out_tool(desk: Seat, name: str, given: shapes.Rollout) -> Response:
    """How many of the new runs get a version. Takes the role operator."""
    made = await desk.set_rollout(name, given.version, given.percentage, reason=given.reason)
    return answer(made.export())


# --- quarantine -----------------------------------------------------------------------------------


@router.get("/v1/quarantine", response_model=Items[shapes.Quarantined])
async def list_quarantined(desk: Seat) -> Response:
    """What is kept out until a person accepts it."""
    return answer({"items": [one.record() for one in desk.quarantined()]})


@router.get("/v1/quarantine/{name}/changes", response_model=Items[shapes.DefinitionChange])
async def quarantine_changes(desk: Seat, name: str) -> Response:
    """What differs from the definition that was accepted."""
    return answer({"items": [one._asdict() for one in desk.definition_changes(name)]})


@router.post("/v1/quarantine/{name}/accept", status_code=204)
async def accept_definition(desk: Seat, name: str, given: shapes.Accept) -> Response:
    """Let exactly this definition in. Takes the role operator everywhere."""
    await desk.accept(name, given.definition)
    return Response(status_code=204)


@router.post("/v1/quarantine/{name}/refuse", status_code=204)
async def refuse_definition(desk: Seat, name: str, given: shapes.Because) -> Response:
    """Keep it out, and say so on record. Takes the role operator everywhere."""
    await desk.refuse(name, reason=given.reason)
    return Response(status_code=204)
