"""Problems: every refusal of a request, from one table.

The API answers with `application/problem+json` (RFC 9457), the console with a page. A program
decides by the code: one of the codes for a call that was refused, else one of those in
`PROBLEMS`. No text names a file, a query, or other callers. `problem_of` translates what routes
raise; what it does not know is a fault of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, get_args

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import to_json
from starlette.datastructures import QueryParams

from counterseal.call.handover import ReportError
from counterseal.canonical import pointer
from counterseal.errors import CountersealError, GrantError, RegistryError, StoreError
from counterseal.operations.approver import ApprovalError
from counterseal.operations.auditor import AmbiguousCallError, NotKeptError
from counterseal.views.audit_log import VerificationRunningError
from counterseal.views.base import NotFoundError, RoleRequiredError, utc
from counterseal.views.call_page import CallChoiceRow, FieldProblem, Where

MEDIA_TYPE: Final = "application/problem+json"
_MAX_ERRORS: Final = 20
_MAX_NAME: Final = 100


class ProblemKind(NamedTuple):
    """Status, title and next action of a problem code."""

    status: int
    title: str
    next_action: str

    @property
    def repairable(self) -> bool:
        return self.next_action in _REPAIRS

    @property
    def retryable(self) -> bool:
        return self.next_action == "retry_later"


_REPAIRS: Final = frozenset(
    {"repair_request", "name_the_call", "start_over", "look_again", "confirm", "justify"}
)
"""Next actions after which a corrected request may succeed."""


PROBLEMS: Final[Mapping[str, ProblemKind]] = {
    "invalid-request": ProblemKind(400, "The request is not valid", "repair_request"),
    "malformed-json": ProblemKind(400, "The body is not valid JSON", "repair_request"),
    "invalid-cursor": ProblemKind(400, "The cursor is not valid", "start_over"),
    "idempotency-key-required": ProblemKind(400, "Idempotency-Key is missing", "name_the_call"),
    "idempotency-key-malformed": ProblemKind(
        400, "The Idempotency-Key is malformed", "name_the_call"
    ),
    "unauthenticated": ProblemKind(401, "A valid credential is required", "authenticate"),
    "agents-only": ProblemKind(403, "Only agents may do this", "stop"),
    "people-only": ProblemKind(403, "Only people may do this", "stop"),
    "role-required": ProblemKind(403, "Another role is required", "stop"),
    "scope-required": ProblemKind(403, "The token lacks a required scope", "stop"),
    "csrf": ProblemKind(403, "The request does not come from a page of this session", "reload"),
    "may-not-vote": ProblemKind(403, "This person may not decide on this request", "stop"),
    "not-found": ProblemKind(404, "Not found", "stop"),
    "method-not-allowed": ProblemKind(405, "Method not allowed", "stop"),
    "request-timeout": ProblemKind(408, "The body arrived too slowly", "retry_later"),
    "ambiguous-id": ProblemKind(409, "Several calls have this id", "repair_request"),
    "conflict": ProblemKind(409, "The object has changed since it was read", "look_again"),
    "already-decided": ProblemKind(409, "Already decided", "stop"),
    "already-settled": ProblemKind(409, "The outcome of this call is settled", "stop"),
    "tool-stopped": ProblemKind(409, "The tool is stopped", "escalate"),
    "cannot-be-shown": ProblemKind(409, "This request can't be decided here", "escalate"),
    "too-large": ProblemKind(413, "The body is too large", "repair_request"),
    "unsupported-media-type": ProblemKind(415, "The body must be JSON", "repair_request"),
    "refused-change": ProblemKind(422, "The change is not valid", "repair_request"),
    "confirmation-required": ProblemKind(422, "A typed confirmation is required", "confirm"),
    "justification-required": ProblemKind(422, "A justification is required", "justify"),
    "rate-limited": ProblemKind(429, "Too many requests", "retry_later"),
    "internal": ProblemKind(500, "Internal error", "escalate"),
    "unavailable": ProblemKind(503, "Temporarily unavailable", "retry_later"),
}
"""Every code of the API's own."""


class RequestProblemError(Exception):
    """Raised to refuse a request, by routes, pages and middleware."""

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
        self.kind = PROBLEMS[code]
        self.code = code
        self.detail = detail
        self.param = param
        self.where = where
        self.errors = tuple(errors)
        self.headers = dict(headers or {})
        self.more = more
        """Members that only some problems have, such as `role`."""

    def body(self, request_id: str) -> bytes:
        kind = self.kind
        return problem_body(
            code=self.code,
            title=kind.title,
            status=kind.status,
            detail=self.detail,
            param=self.param,
            where=self.where,
            repairable=kind.repairable,
            retryable=kind.retryable,
            next_action=kind.next_action,
            request_id=request_id,
            errors=self.errors,
            **self.more,
        )


def problem_body(*, code: str, errors: Iterable[FieldProblem], **members: Any) -> bytes:
    """Return a problem as JSON."""
    listed = [error.model_dump() for error in errors]
    problem = {"type": f"urn:counterseal:problem:{code}", "code": code, **members, "errors": listed}
    return to_json(problem, inf_nan_mode="null")


# --- requests that are not valid ------------------------------------------------------------------


class RequestBody(BaseModel):
    """Base of the bodies that callers send. Unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


WHOLE: Final = BeforeValidator(
    lambda value: int(value) if isinstance(value, float) and value.is_integer() else value
)
"""For strict integers: JSON has one kind of number, so 3.0 is 3."""


def invalid_request(
    errors: Iterable[Mapping[str, Any]], where: Where | None = None
) -> RequestProblemError:
    """Return pydantic's errors as a problem.

    `where` says what their places lead into; None: their first step says so, as FastAPI has it.
    """
    problems = []
    for error in errors:
        place = list(error["loc"])
        into: Any = where or (place.pop(0) if place and place[0] in get_args(Where) else None)
        if error["type"] == "json_invalid":
            detail = "The body is not valid JSON."
            return RequestProblemError("malformed-json", detail, param="", where="body")
        # Deeper names may be those of a union's branches, which are no part of the request.
        steps = place[:1] + [step for step in place[1:] if isinstance(step, int)]
        problems.append(
            FieldProblem(
                param=pointer(*steps),
                where=into,
                message=str(error["msg"])[:300],
                code=str(error["type"]),
            )
        )
    first = problems[0]
    name = (first.param or "").removeprefix("/") or (first.where or "request")
    return RequestProblemError(
        "invalid-request",
        f"{name}: {first.message}",
        param=first.param,
        where=first.where,
        errors=problems[:_MAX_ERRORS],
    )


_REPEATABLE: Final = ("type",)
"""Query parameters that may be given several times."""


def check_parameters(given: QueryParams, allowed: Sequence[str]) -> None:
    """Raise RequestProblemError for a query parameter that the route does not have, or given twice.

    Ignoring an unknown one would make a list look narrower than it is. Of two, each reader on the
    way could take another one.
    """
    names = [name for name, _ in given.multi_items()]
    for name in names:
        if name not in _REPEATABLE and names.count(name) > 1:
            shown = name[:_MAX_NAME]
            detail = f'Parameter "{shown}" is given twice. Send it once.'
            raise RequestProblemError(
                "invalid-request", detail, param=pointer(shown), where="query"
            )
    unknown = [name for name in names if name not in allowed]
    if not unknown:
        return
    name = unknown[0]
    shown, similar = name[:_MAX_NAME], get_close_matches(name[:_MAX_NAME], allowed, n=1)
    hint = f' Did you mean "{similar[0]}"?' if similar else ""
    raise RequestProblemError(
        "invalid-request",
        f'Unknown parameter "{shown}".{hint} Allowed: {", ".join(allowed) or "none"}.',
        param=pointer(shown),
        where="query",
        known=list(allowed),
    )


# --- what routes raise ----------------------------------------------------------------------------

_PARAMETER: Final = re.compile(
    r"(cursor|since|until|code|metric|part|types|window|buckets|percentage): "
)
"""How a view names the parameter that is not valid."""
_VOTES: Final = {
    "typed": ("confirmation-required", "/typed"),
    "justification": ("justification-required", "/justification"),
    "decision": ("invalid-request", "/decision"),
    "decided": ("already-decided", None),
    "expired": ("already-decided", None),
    "voted": ("already-decided", None),
    "requester": ("may-not-vote", None),
    "not-the-user": ("may-not-vote", None),
    "role": ("may-not-vote", None),
    "tenant": ("not-found", None),
    "unknown": ("not-found", None),
    "stopped": ("tool-stopped", None),
    "busy": ("unavailable", None),
    "contract": ("cannot-be-shown", None),
    "unreadable": ("cannot-be-shown", None),
    "keys": ("cannot-be-shown", None),
    "forged": ("cannot-be-shown", None),
}
"""Problem and field of the body for each reason why a vote is refused."""


_REPORTS: Final = {
    "unknown": "not-found",
    "late": "already-settled",
    "reported": "already-settled",
    "elsewhere": "unavailable",
}
"""Problem for each reason why a report is refused."""


_CODES: Final = (
    (NotFoundError, "not-found"),
    (NotKeptError, "not-found"),
    (RegistryError, "refused-change"),
    (GrantError, "refused-change"),
    (CountersealError, "conflict"),
)
"""Codes of exceptions that say themselves what is wrong; the first that fits."""


def problem_of(error: Exception) -> RequestProblemError | None:
    """Return the problem that an exception stands for; None: it is a fault of ours."""
    match error:
        case RequestProblemError():
            return error
        case RequestValidationError():
            return invalid_request(error.errors())
        case RoleRequiredError():
            return RequestProblemError("role-required", str(error), role=error.role.value)
        case ApprovalError():
            vote, param = _VOTES.get(error.why, ("conflict", None))
            where: Where | None = None if param is None else "body"
            return RequestProblemError(vote, str(error), param=param, where=where, why=error.why)
        case ReportError():
            return RequestProblemError(_REPORTS[error.why], str(error))
        case AmbiguousCallError():
            rows = [
                CallChoiceRow(**{**choice._asdict(), "at": utc(choice.at)})
                for choice in error.choices
            ]
            choices = [row.model_dump(mode="json") for row in rows]
            return RequestProblemError("ambiguous-id", str(error), choices=choices)
        case VerificationRunningError():
            return RequestProblemError("conflict", str(error), headers={"Retry-After": "5"})
        case StoreError():
            detail = "The store can't be reached at the moment. Try again later."
            return RequestProblemError("unavailable", detail, headers={"Retry-After": "5"})
        case ValueError() if named := _PARAMETER.match(str(error)):
            param = f"/{named[1]}"
            return RequestProblemError("invalid-request", str(error), param=param, where="query")
    code = next((code for kind, code in _CODES if isinstance(error, kind)), None)
    return None if code is None else RequestProblemError(code, str(error)[:500])
