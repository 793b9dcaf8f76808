"""What routes raise, as problems. What is not in the table is a fault of ours."""

from __future__ import annotations

import re
from typing import Any, Final

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from counterseal.errors import CountersealError, GrantError, RegistryError, StoreError
from counterseal.operations.approver import ApprovalError
from counterseal.views import NotFoundError, RoleRequiredError
from counterseal.web.api.exchange import Exchange
from counterseal.web.api.front import EXCHANGE, INTERNAL, methods_at
from counterseal.web.api.problems import MEDIA, ProblemError, Where
from counterseal.web.api.validation import invalid

__all__ = ["HANDLERS", "problem_of"]

_NAMED: Final = re.compile(r"(cursor|since|until|code|metric|part|types|window|buckets): ")
"""How a desk says which parameter makes no sense."""
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
    "busy": ("unavailable", None),
    "contract": ("cannot-be-shown", None),
    "unreadable": ("cannot-be-shown", None),
    "keys": ("cannot-be-shown", None),
    "forged": ("cannot-be-shown", None),
}
"""Why a vote is not taken, as a problem and what of the body is wrong."""


def problem_of(error: Exception) -> ProblemError | None:
    """None: nobody thought of it."""
    match error:
        case ProblemError():
            return error
        case RequestValidationError():
            return invalid(error.errors())
        case NotFoundError():
            return ProblemError("not-found", str(error))
        case RoleRequiredError():
            return ProblemError("role-required", str(error), role=error.role.value)
        case ApprovalError():
            code, param = _VOTES.get(error.why, ("conflict", None))
            into: Where | None = None if param is None else "body"
            return ProblemError(code, str(error), param=param, where=into, why=error.why)
        case StoreError():
            told = "The store can't be reached now. Try again later."
            return ProblemError("unavailable", told, headers={"Retry-After": "5"})
        case RegistryError() | GrantError():
            return ProblemError("refused-change", str(error)[:500])
        case CountersealError():
            return ProblemError("conflict", str(error)[:500])
        case ValueError() if named := _NAMED.match(str(error)):
            param = f"/{named[1]}"
            return ProblemError("invalid-request", str(error), param=param, where="query")
    return None


async def _known(request: Request, error: Exception) -> Response:
    problem = problem_of(error)
    if problem is None:
        raise error
    return _response(request, problem)


async def _of_the_router(request: Request, error: Exception) -> Response:
    """Where there is no route, or not for this method."""
    exchange: Exchange = request.scope[EXCHANGE]
    allowed = methods_at(exchange.house.routes, request.scope)
    if allowed and isinstance(error, HTTPException) and error.status_code in (404, 405):
        told = f"By {allowed} only."
        problem = ProblemError("method-not-allowed", told, headers={"Allow": allowed})
    elif isinstance(error, HTTPException) and error.status_code == 400:
        problem = ProblemError("malformed-json", "The body can't be read.", where="body")
    else:
        problem = ProblemError("not-found", "There is nothing at this path.")
    return _response(request, problem)


async def _fault(request: Request, _: Exception) -> Response:
    return _response(request, ProblemError("internal", INTERNAL))


def _response(request: Request, problem: ProblemError) -> Response:
    exchange: Exchange = request.scope[EXCHANGE]
    body = problem.body(exchange.request_id)
    return Response(body, problem.known.status, headers=problem.headers, media_type=MEDIA.decode())


HANDLERS: Final[dict[int | type[Exception], Any]] = {
    ProblemError: _known,
    RequestValidationError: _known,
    CountersealError: _known,
    ValueError: _known,
    HTTPException: _of_the_router,
    Exception: _fault,
}
"""For FastAPI."""
