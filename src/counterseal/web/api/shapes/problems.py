"""A refusal, as a program reads it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from counterseal.web.api.shapes.base import Shape
from counterseal.web.api.shapes.calls import Observation

__all__ = ["FieldProblem", "Problem"]


class FieldProblem(Shape):
    """One thing that is wrong."""

    param: str | None = Field(description="JSON Pointer; null: the whole.")
    where: Literal["body", "query", "path", "header"] | None
    message: str
    code: str


class Problem(Shape):
    """RFC 9457, with what a program decides by."""

    type: str = Field(description="`urn:counterseal:problem:` and the code.")
    title: str
    status: int
    detail: str
    code: str = Field(
        description="One of the 21 codes for a call that was refused, such as POLICY_VIOLATION; "
        "else a word of the API's own, such as not-found."
    )
    param: str | None = Field(
        description="JSON Pointer to what is wrong: into the body, or to a parameter by its name."
    )
    where: Literal["body", "query", "path", "header"] | None = Field(
        description="What the pointer leads into."
    )
    repairable: bool = Field(description="Another request for the same purpose may succeed.")
    retryable: bool = Field(description="The same request may succeed later.")
    next_action: str
    request_id: str
    errors: list[FieldProblem]
    role: str | None = Field(None, description="The role that is needed, where one is missing.")
    why: str | None = Field(None, description="In a word, why a vote was not taken.")
    known: list[str] | None = Field(None, description="The parameters that there are.")
    observation: Observation | None = Field(
        None, description="Of a call that was refused or failed: what its model is told."
    )
