"""Routes for what waits for a person: approvals and votes, and what needs attention."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field

from counterseal.contract.effects import RiskClass
from counterseal.views.approvals import ApprovalPage, ApprovalRow
from counterseal.views.attention import AttentionRow
from counterseal.views.base import JsonObject, Page
from counterseal.web.api.dependencies import (
    Caller,
    Context,
    Cursor,
    Filter,
    ForPeople,
    ForPeopleAndAgents,
    Limit,
    Reason,
    open_cursor,
    sign_cursor,
)
from counterseal.web.api.submit import MAX_WAIT
from counterseal.web.problems import RequestBody

router = APIRouter()

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


@router.get("/v1/approvals", tags=["approvals"])
async def list_approvals(
    view: ForPeople,
    context: Context,
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
    page = await view.approvals.search(status, **filters, limit=limit, cursor=position)
    return sign_cursor(context, subject, page)


@router.get("/v1/approvals/{approval_id}", tags=["approvals"])
async def show_approval(
    view: ForPeopleAndAgents, caller: Caller, approval_id: str
) -> ApprovalPage | ApprovalRow:
    """Show a request in full; to the agent that made the call, in short."""
    if caller.principal is None:
        return await view.approvals.page(approval_id)
    row = await view.approvals.row(approval_id)
    caller.must_own("approval", row.agent, row.user)
    return row


@router.get("/v1/approvals/{approval_id}/wait", tags=["approvals"])
async def wait_for_approval(
    view: ForPeopleAndAgents,
    caller: Caller,
    approval_id: str,
    seconds: Annotated[float, Query(ge=0, le=MAX_WAIT)] = 10.0,
) -> ApprovalPage | ApprovalRow:
    """Show a request as soon as it is decided, or when the time is over."""
    await show_approval(view, caller, approval_id)  # agents don't wait for others' requests
    await view.approvals.wait(approval_id, seconds)
    return await show_approval(view, caller, approval_id)


@router.post("/v1/approvals/{approval_id}/decision", tags=["approvals"])
async def decide(view: ForPeople, approval_id: str, vote: VoteBody) -> ApprovalPage | None:
    """Vote. Requires the role approver. Null after rejecting a request that cannot be shown."""
    packet = await view.approvals.decide(
        approval_id,
        vote.decision,
        comment=vote.comment,
        justification=vote.justification,
        typed=vote.typed,
    )
    return None if packet is None else view.approvals.page_of(packet)


# --- needs attention: on the wire the list is called `concerns` -----------------------------------

Kind = Literal["unknown", "verify", "compensate", "execute", "notify"]
Act = Literal["happened", "did_not_happen", "again", "compensate", "dismiss"]


class AttentionBody(RequestBody):
    """An operator's reason, and the result of a call that happened."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"reason": "the bank says that it was paid"}]}
    )

    reason: Reason
    data: JsonObject | None = Field(None, description="The call's result, for `happened`.")


@router.get("/v1/concerns", tags=["concerns"])
async def list_concerns(
    view: ForPeople, context: Context, cursor: Cursor = None, limit: Limit = 50
) -> Page[AttentionRow]:
    """List what waits for a person, oldest first."""
    position = open_cursor(context, "concerns", cursor)
    return sign_cursor(context, "concerns", await view.attention.rows(limit=limit, cursor=position))


@router.post("/v1/concerns/{kind}/{key:path}/{action}", tags=["concerns"], status_code=204)
async def act_on_concern(
    view: ForPeople, kind: Kind, key: str, action: Act, body: AttentionBody
) -> None:
    """Carry out one of an item's `actions`. Requires the role operator."""
    await view.attention.act(kind, key, action, reason=body.reason, data=body.data)
