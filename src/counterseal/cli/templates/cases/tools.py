"""The tools of a small case assistant. Replace what they do with your own systems.

Type hints and docstrings are the contract: the hints become the input schema, the docstring the
description. `effect` says what kind of action it is, and settles the rest: key, approval,
verification, budget. `counterseal show NAME` prints what came of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from counterseal import Effect, Invariant, Secret, tool

CASES = {"case_1001": ("Burst pipe in flat 4", "open"), "case_1002": ("Noise complaint", "closed")}
DRAFTS = Path(__file__).with_name("drafts")
OUTBOX = Path(__file__).with_name("outbox.txt")  # stands for a mail server

CaseId = Annotated[str, Field(pattern=r"^case_[0-9]{4}$", description="The case, like case_1001.")]
DraftId = Annotated[str, Field(pattern=r"^drf_[0-9]{4}$", description="The draft, like drf_0001.")]


class CaseSummary(BaseModel):
    case_id: str
    title: str
    status: Literal["open", "closed", "unknown"]


class Draft(BaseModel):
    draft_id: str
    length: int


class Sent(BaseModel):
    draft_id: str
    status: Literal["sent"]


@tool(
    effect=Effect.READ_ONLY,
    version="1.0.0",
    owner="case-team",
    scopes=["case:read"],
    examples=[{"description": "One case", "arguments": {"case_id": "case_1001"}}],
)
async def get_case_summary(case_id: CaseId) -> CaseSummary:
    """Look up one case: its title and its status. Does not search for cases."""
    title, status = CASES.get(case_id, ("", "unknown"))
    return CaseSummary.model_validate({"case_id": case_id, "title": title, "status": status})


@tool(
    effect=Effect.DRAFT,
    version="1.0.0",
    owner="case-team",
    scopes=["notice:draft"],
    forbidden_use_cases=["sending anything"],
    invariants=[
        Invariant(
            id="text-not-blank",
            rule="The text says something.",
            check=lambda call, _state, _config: bool(call["text"].strip()),
        )
    ],
)
async def create_notice_draft(
    case_id: CaseId,
    text: Annotated[str, Field(max_length=4000, description="What the notice says.")],
) -> Draft:
    """Write a notice for a case and keep it as a draft. Does not send it."""
    DRAFTS.mkdir(exist_ok=True)
    draft_id = f"drf_{len(list(DRAFTS.iterdir())) + 1:04}"
    (DRAFTS / draft_id).write_text(f"{case_id}: {text}", encoding="utf-8")
    return Draft(draft_id=draft_id, length=len(text))


def find_sent(draft_id: str, recipient: str) -> Sent | None:
    """Ask the outbox what became of a notice, after a call and whenever its answer did not come."""
    found = OUTBOX.exists() and f"{draft_id} to {recipient}: " in OUTBOX.read_text("utf-8")
    return Sent(draft_id=draft_id, status="sent") if found else None


@tool(
    effect=Effect.EXTERNAL_NOTIFICATION,
    version="1.0.0",
    owner="case-team",
    scopes=["notice:send"],
    egress_policy="allowlisted_domains",
    consequence="Notice {draft_id} is e-mailed to {recipient}.",
    business_key=["draft_id", "recipient"],
    read_back=find_sent,
    invariants=[
        # As text, a check is a CEL expression; a YAML contract can hold the same.
        Invariant(
            id="recipient-lower-case",
            rule="The recipient is written in lower case.",
            check="!call.recipient.matches('[A-Z]')",
            correct=lambda call, _state, _config: call.replace(recipient=call["recipient"].lower()),
        )
    ],
)
async def send_approved_notice(
    draft_id: DraftId,
    recipient: Annotated[str, Field(max_length=254, description="Address on the case file.")],
    smtp_password: Annotated[str, Secret("smtp_password")],
) -> Sent:
    """Send a finished draft to one recipient. Does not write or change drafts."""
    if not smtp_password:
        raise RuntimeError("no password for the mail server")
    text = (DRAFTS / draft_id).read_text("utf-8")
    with OUTBOX.open("a", encoding="utf-8") as outbox:
        outbox.write(f"{draft_id} to {recipient}: {text}\n")
    return Sent(draft_id=draft_id, status="sent")
