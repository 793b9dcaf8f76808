"""Requests for approval: what waits, what exactly is asked, and a person's vote."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from counterseal.contract.effects import RiskClass
from counterseal.views import packet_record
from counterseal.web.api.asking import (
    Asked,
    Cursor,
    Limit,
    Looking,
    Seat,
    Sought,
    View,
    answer,
    opened,
    page,
)
from counterseal.web.api.shapes import approvals as shapes
from counterseal.web.api.shapes.base import Page as PageShape
from counterseal.web.api.submitting import LONGEST_WAIT

__all__ = ["router"]

router = APIRouter(tags=["approvals"])

Ended = Literal["approved", "rejected", "expired", "spent", "void", "decided"]


@router.get("/v1/approvals", response_model=PageShape[shapes.ApprovalRow])
async def list_approvals(
    desk: Seat,
    exchange: Asked,
    status: Annotated[
        Literal["waiting"] | Ended,
        Query(description="`decided`: whatever became of it."),
    ] = "waiting",
    tool: Sought = None,
    agent: Sought = None,
    risk: RiskClass | None = None,
    text: Annotated[Sought, Query(description="In the consequence.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response:
    """What waits for a decision, what ends first at the top; or what was decided, latest first."""
    place = opened(exchange, f"approvals {status}", cursor)
    narrowed = {"tool": tool, "agent": agent, "risk": risk and risk.value, "text": text}
    if status == "waiting":
        found = await desk.inbox(**narrowed, limit=limit, cursor=place)
    else:
        which = None if status == "decided" else status
        found = await desk.decided(status=which, **narrowed, limit=limit, cursor=place)
    return page(exchange, f"approvals {status}", found)


@router.get("/v1/approvals/{approval_id}", response_model=shapes.Packet | shapes.ApprovalRow)
async def show_approval(view: Looking, approval_id: str) -> Response:
    """Everything that an approver reads. To the agent that asked: in short."""
    if view.is_agent:
        return await _in_short(view, approval_id)
    return answer(packet_record(await view.desk.packet(approval_id)))


@router.get("/v1/approvals/{approval_id}/wait", response_model=shapes.Packet | shapes.ApprovalRow)
async def wait_for_approval(
    view: Looking,
    approval_id: str,
    seconds: Annotated[float, Query(ge=0, le=LONGEST_WAIT)] = 10.0,
) -> Response:
    """The same as soon as it is decided, or as it is when the time is over."""
    if view.is_agent:
        await _in_short(view, approval_id)  # whose it is comes first
        await view.desk.wait(approval_id, seconds)
        return await _in_short(view, approval_id)
    return answer(packet_record(await view.desk.wait(approval_id, seconds)))


async def _in_short(view: View, approval_id: str) -> Response:
    row = await view.desk.request(approval_id)
    view.must_own("approval", row.agent, row.user)
    return answer(row.record())


@router.post("/v1/approvals/{approval_id}/decision", response_model=shapes.Packet | None)
async def decide(desk: Seat, approval_id: str, vote: shapes.Decision) -> Response:
    """Vote. Takes the role approver; null after a rejection of what can't be shown here."""
    packet = await desk.decide(
        approval_id,
        vote.decision,
        comment=vote.comment,
        justification=vote.justification,
        typed=vote.typed,
    )
    return answer(None if packet is None else packet_record(packet))
