"""Inputs and outputs of the tools: fields, bounds and descriptions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

__all__ = [
    "AmountEur",
    "CaseId",
    "CaseSummary",
    "Channel",
    "DraftId",
    "Evidence",
    "Facts",
    "InReview",
    "Limit",
    "NoticeDraft",
    "PolicyExcerpt",
    "PolicyId",
    "Query",
    "Reason",
    "Recipient",
    "Revision",
    "SentNotice",
    "Status",
    "StatusChange",
    "Template",
    "Topic",
    "Version",
]

Status = Literal["open", "under_review", "awaiting_reply", "decided", "closed"]
Template = Literal["information_request", "hearing", "decision", "penalty"]
Channel = Literal["email", "registered"]
Topics = Literal[
    "appeals",
    "complaints",
    "evidence",
    "hearings",
    "inspections",
    "notices",
    "penalties",
    "permits",
]

CaseId = Annotated[
    str, Field(pattern=r"^case_[0-9]{6}$", description="The case, like case_100004.")
]
DraftId = Annotated[
    str,
    Field(
        pattern=r"^drf_(information_request|hearing|decision|penalty)_[0-9a-f]{12}$",
        description="The draft, by the name that create_notice_draft gave it.",
    ),
]
PolicyId = Annotated[
    Annotated[str, Field(pattern=r"^pol_[a-z]{2,40}$")] | None,
    Field(description="The policy, like pol_hearings."),
]
Topic = Annotated[Topics | None, Field(description="What the policy is about.")]
Query = Annotated[str, Field(min_length=2, max_length=200, description="Words to look for.")]
Limit = Annotated[int, Field(ge=1, le=10, description="How many pieces at most.")]
Facts = Annotated[
    list[Annotated[str, Field(pattern=r"^ev_[0-9]{6}$")]],
    Field(
        min_length=1,
        max_length=8,
        json_schema_extra={"uniqueItems": True},
        description="The evidence that the notice rests on, by evidence_id.",
    ),
]
Revision = Annotated[
    int,
    Field(ge=1, le=20, description="1; one more when the notice is written anew after a refusal."),
]
AmountEur = Annotated[
    int, Field(ge=0, le=50_000, description="How much the penalty is, in euros; else 0.")
]
Recipient = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9._-]{1,64}@[a-z0-9.-]{1,180}$",
        max_length=245,
        description="The mailbox on the case file, as get_case_summary shows it.",
    ),
]
Version = Annotated[
    int, Field(ge=1, le=1_000_000, description="The version of the case that you have read.")
]
Reason = Annotated[
    str, Field(min_length=10, max_length=500, description="Why, in a sentence, for the file.")
]


class CaseSummary(BaseModel):
    case_id: str
    company: str
    register_no: str
    kind: Literal["permit", "inspection", "complaint"]
    subject: str
    status: Status
    next_statuses: list[Status] = Field(description="What the status can become.")
    risk_level: Literal["low", "medium", "high"]
    opened_on: str
    due_on: str
    mailbox: str = Field(description="The only address that notices of this case go to.")
    evidence_count: int
    draft_count: int
    version: int = Field(description="One more with every change of status.")


class Piece(BaseModel):
    evidence_id: str
    kind: str
    title: str
    received_on: str
    text: str = Field(max_length=2000, description="As it was uploaded: somebody else's words.")


class Evidence(BaseModel):
    case_id: str
    found: int = Field(description="How many pieces of evidence speak of it.")
    pieces: list[Piece] = Field(description="The best of them.")


class PolicyExcerpt(BaseModel):
    policy_id: str
    topic: Topics
    title: str
    section: str
    text: str
    in_force_since: str


class NoticeDraft(BaseModel):
    draft_id: str
    case_id: str
    template: Template
    revision: int
    channel: Channel
    recipient: str = Field(description="Where it would go.")
    subject: str
    body: str
    status: Literal["draft", "in_review", "sent"]


class InReview(BaseModel):
    review_id: str
    draft_id: str
    status: Literal["in_review"] = "in_review"
    approved: Literal[False] = Field(
        default=False, description="People are asked when the notice is to be sent, not here."
    )


class SentNotice(BaseModel):
    notice_id: str
    draft_id: str
    recipient: str
    channel: Channel
    message_id: str
    sent_at: str


class StatusChange(BaseModel):
    case_id: str
    previous_status: Status
    status: Status
    version: int = Field(description="The version of the case from now on.")
