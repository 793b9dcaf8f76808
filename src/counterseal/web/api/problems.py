"""What is wrong with a request, as `application/problem+json`. One table, and one form for all.

A code is what a program decides by: one of the 21 for a call that was refused, else one of those
here. Nothing that is told names a file, a query, or whoever else there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

from pydantic import Field
from pydantic_core import to_json

from counterseal.views.base import RowModel
from counterseal.views.call_page import ObservationRow

__all__ = [
    "PROBLEMS",
    "FieldProblem",
    "Known",
    "ProblemBody",
    "ProblemError",
    "Where",
    "problem_body",
]

Where = Literal["body", "query", "path", "header"]
MEDIA: Final = b"application/problem+json"


class Known(NamedTuple):
    """What is always so of a problem."""

    status: int
    title: str
    next_action: str

    @property
    def repairable(self) -> bool:
        return self.next_action in _MENDS

    @property
    def retryable(self) -> bool:
        return self.next_action == "retry_later"


_MENDS: Final = frozenset(
    {"repair_request", "name_the_call", "start_over", "look_again", "confirm", "justify"}
)
"""What whoever sent a request can do about it, to send another one."""


PROBLEMS: Final[Mapping[str, Known]] = {
    "invalid-request": Known(400, "The request is not valid", "repair_request"),
    "malformed-json": Known(400, "The body is not JSON", "repair_request"),
    "invalid-cursor": Known(400, "The cursor is none of ours", "start_over"),
    "idempotency-key-required": Known(400, "An Idempotency-Key is required", "name_the_call"),
    "idempotency-key-malformed": Known(400, "The Idempotency-Key is malformed", "name_the_call"),
    "unauthenticated": Known(401, "Who calls is not known", "authenticate"),
    "agents-only": Known(403, "This is for agents", "stop"),
    "people-only": Known(403, "This is for people", "stop"),
    "role-required": Known(403, "Another role is needed", "stop"),
    "scope-required": Known(403, "The token's scope is too small", "stop"),
    "csrf": Known(403, "The request does not come from a page of this session", "reload"),
    "may-not-vote": Known(403, "This person can't decide on this", "stop"),
    "not-found": Known(404, "There is nothing here", "stop"),
    "method-not-allowed": Known(405, "Not by this method", "stop"),
    "request-timeout": Known(408, "The body came too slowly", "retry_later"),
    "conflict": Known(409, "It is not as it was thought to be", "look_again"),
    "already-decided": Known(409, "It is decided already", "stop"),
    "cannot-be-shown": Known(409, "It can't be decided here", "escalate"),
    "too-large": Known(413, "The body is too large", "repair_request"),
    "unsupported-media-type": Known(415, "The body has to be JSON", "repair_request"),
    "refused-change": Known(422, "The change makes no sense", "repair_request"),
    "confirmation-required": Known(422, "Something has to be typed to confirm it", "confirm"),
    "justification-required": Known(422, "It takes a justification", "justify"),
    "rate-limited": Known(429, "Too many requests", "retry_later"),
    "internal": Known(500, "Something went wrong here", "escalate"),
    "unavailable": Known(503, "It can't be told now", "retry_later"),
}
"""Every code that is not a call's."""


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


class ProblemError(Exception):
    """Raised anywhere on the way of a request; the front sends it."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        param: str | None = None,
        where: Where | None = None,
        errors: Iterable[FieldProblem] = (),
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.known = PROBLEMS[code]
        self.code = code
        self.detail = detail
        self.param = param
        self.where = where
        self.errors = tuple(errors)
        self.headers = dict(headers or {})
        self.more = more
        """Members that only some problems have, such as `role`."""

    def body(self, request_id: str) -> bytes:
        known = self.known
        return problem_body(
            code=self.code,
            title=known.title,
            status=known.status,
            detail=self.detail,
            param=self.param,
            where=self.where,
            repairable=known.repairable,
            retryable=known.retryable,
            next_action=known.next_action,
            request_id=request_id,
            errors=self.errors,
            **self.more,
        )


def problem_body(*, code: str, errors: Iterable[FieldProblem], **members: Any) -> bytes:
    """A problem as it is sent."""
    listed = [error.model_dump() for error in errors]
    told = {"type": f"urn:counterseal:problem:{code}", "code": code, **members, "errors": listed}
    return to_json(told, inf_nan_mode="null")
