"""Requests for approval: in short, in full, and the vote on one."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from counterseal.web.api.shapes.base import Given, JsonObject, Moment, Shape, Value

__all__ = ["ApprovalRow", "Decision", "HeldStatus", "Packet", "Vote"]

HeldStatus = Literal["waiting", "approved", "rejected", "expired", "spent", "void"]


class ApprovalRow(Shape):
    """One request in a list."""

    approval_id: str
    status: HeldStatus
    tool: str
    version: str
    risk_class: str
    consequence: str | None
    unreadable: str
    agent: str
    user: str | None
    run_id: str
    call_id: str
    approved: int
    approvers: int
    created_at: Moment
    expires_at: Moment


class Vote(Shape):
    approver: str
    decision: Literal["approve", "reject"]
    voted_at: float
    roles: list[str]
    comment: str
    justification: str


class Action(Shape):
    tool: str
    version: str
    effect: str | None
    contract_hash: str


class StateChange(Shape):
    pointer: str
    before: Value
    after: Value


class Why(Shape):
    reason: str
    rule: str | None


class Terms(Shape):
    approvers: int
    pattern: str
    roles: list[list[str]]
    expires_after: int
    then: str
    justification_required: bool
    data_class: str | None
    jurisdictions: list[str]
    accountable_owners: list[str]
    who: str


class Votes(Shape):
    so_far: str
    cast: list[Vote]


class Requester(Shape):
    tenant: str
    agent: str
    user: str | None


class Reversibility(Shape):
    text: str
    compensation_tool: str | None


class Packet(Shape):
    """Everything that an approver reads before deciding."""

    approval_id: str
    status: HeldStatus
    consequence: str
    action: Action
    target: str | None
    arguments: JsonObject
    config: JsonObject
    origins: dict[str, str]
    before: JsonObject | None
    after: JsonObject | None
    changes: list[StateChange]
    fingerprint: str
    risk_class: str
    why: Why
    approval: Terms
    votes: Votes
    requester: Requester
    reversibility: Reversibility
    if_rejected: str
    created_at: Moment
    expires_at: Moment
    trace_id: str
    confirmation: str | None = Field(description="What must be typed to approve it.")


class Decision(Given):
    """A person's vote."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"decision": "approve", "comment": "Checked with Ann."}]}
    )

    decision: Literal["approve", "reject"]
    comment: str = Field("", max_length=2000, description="For the agent, and for the record.")
    justification: str = Field("", max_length=2000, description="Where the request asks for one.")
    typed: str = Field(
        "", max_length=200, description="The packet's `confirmation`, if it has one."
    )


def is_packet(record: dict[str, Any]) -> bool:
    """Whether a record is a packet; else it is a request in short."""
    return "confirmation" in record
