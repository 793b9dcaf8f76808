"""Routes for approvals: the lists, one request, and a person's vote."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field

from counterseal.contract.effects import RiskClass
from counterseal.views import ApprovalPage, ApprovalRow, Page, approval_page
from counterseal.web.api.dependencies import (
    CallerView,
    Cursor,
    Filter,
    ForPeople,
    ForPeopleAndAgents,
    Limit,
    Requested,
    open_cursor,
    sealed,
)
from counterseal.web.api.problems import RequestBody
from counterseal.web.api.submit import MAX_WAIT

router = APIRouter(tags=["approvals"])

Ended = Literal["approved", "rejected", "expired", "spent", "void", "decided"]


class VoteBody(RequestBody):
    """A person's vote."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"decision": "approve", "comment": "Checked with Ann."}]}
    )

    decision: Literal["approve", "reject"]
    comment: str = Field("", max_length=2000, description="For the agent, and for the record.")
    justification: str = Field("", max_length=2000, description="If the request requires one.")
    typed: str = Field("", max_length=200, description="The request's `confirmation`, if any.")


@router.get("/v1/approvals")
async def list_approvals(
    view: ForPeople,
    context: Requested,
    status: Annotated[
        Literal["waiting"] | Ended, Query(description="`decided`: any outcome.")
    ] = "waiting",
    tool: Filter = None,
    agent: Filter = None,
    risk: RiskClass | None = None,
    text: Annotated[Filter, Query(description="Text in the consequence.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[ApprovalRow]:
    """List requests that wait for a decision, by expiry; or decided ones, latest first."""
    subject = f"approvals {status}"
    position = open_cursor(context, subject, cursor)
    filters = {"tool": tool, "agent": agent, "risk": risk and risk.value, "text": text}
    if status == "waiting":
        page = await view.approvals.waiting(**filters, limit=limit, cursor=position)
    else:
        ended = None if status == "decided" else status
        page = await view.approvals.decided(status=ended, **filters, limit=limit, cursor=position)
    return sealed(context, subject, page)


@router.get("/v1/approvals/{approval_id}")
async def show_approval(caller: ForPeopleAndAgents, approval_id: str) -> ApprovalPage | ApprovalRow:
    """Show a request in full; to the agent that made the call, in short."""
    if caller.is_agent:
        return await _own_row(caller, approval_id)
    return await caller.view.approvals.page(approval_id)


@router.get("/v1/approvals/{approval_id}/wait")
async def wait_for_approval(
    caller: ForPeopleAndAgents,
    approval_id: str,
    seconds: Annotated[float, Query(ge=0, le=MAX_WAIT)] = 10.0,
) -> ApprovalPage | ApprovalRow:
    """Show a request as soon as it is decided, or when the time is over."""
    if caller.is_agent:
        await _own_row(caller, approval_id)  # an agent must not wait for another agent's request
        await caller.view.approvals.wait(approval_id, seconds)
        return await _own_row(caller, approval_id)
    return approval_page(await caller.view.approvals.wait(approval_id, seconds))


async def _own_row(caller: CallerView, approval_id: str) -> ApprovalRow:
    row = await caller.view.approvals.row(approval_id)
    caller.must_own("approval", row.agent, row.user)
    return row


@router.post("/v1/approvals/{approval_id}/decision")
async def decide(view: ForPeople, approval_id: str, vote: VoteBody) -> ApprovalPage | None:
    """Vote. Requires the role approver. Null after rejecting a request that cannot be shown."""
    packet = await view.approvals.decide(
        approval_id,
        vote.decision,
        comment=vote.comment,
        justification=vote.justification,
        typed=vote.typed,
    )
    return None if packet is None else approval_page(packet)
