"""A refusal as the API sends it and the client reads it: an RFC 9457 problem."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from counterseal.views.base import RowModel
from counterseal.views.call_page import ObservationRow

Where = Literal["body", "query", "path", "header"]


class FieldProblem(RowModel):
    """One field that is wrong."""

    param: str | None = Field(description="JSON Pointer; null: the whole.")
    where: Where | None
    message: str
    code: str


class ProblemBody(RowModel):
    """An RFC 9457 problem, with the members that a program needs to decide what to do."""

    type: str = Field(description="`urn:counterseal:problem:` and the code.")
    title: str
    status: int
    detail: str
    code: str = Field(
        description="One of the 21 codes for a call that was refused, such as POLICY_VIOLATION; "
        "else one of the API's own, such as not-found."
    )
    param: str | None = Field(
        description="JSON Pointer into the body, or the name of a parameter as one."
    )
    where: Where | None = Field(description="Where the pointer leads.")
    repairable: bool = Field(description="A corrected request may succeed.")
    retryable: bool = Field(description="The same request may succeed later.")
    next_action: str
    request_id: str
    errors: list[FieldProblem]
    role: str | None = Field(None, description="The role that is missing.")
    why: str | None = Field(None, description="Why a vote was not accepted, in one word.")
    known: list[str] | None = Field(None, description="The parameters that are allowed.")
    observation: ObservationRow | None = Field(
        None, description="For a call that was refused or failed: what the model is told."
    )
