"""Request bodies, and what pydantic finds wrong with a request, as a problem."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict

from counterseal.canonical import pointer
from counterseal.web.api.problems import FieldProblem, ProblemError, Where

__all__ = ["WHOLE", "RequestBody", "invalid"]

_MOST: Final = 20
_WHERE: Final = frozenset(get_args(Where))


class RequestBody(BaseModel):
    """Base of the bodies that callers send. Unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


WHOLE: Final = BeforeValidator(
    lambda value: int(value) if isinstance(value, float) and value.is_integer() else value
)
"""For strict integers: JSON has one kind of number, so 3.0 is 3."""


def invalid(found: Iterable[Mapping[str, Any]], where: Where | None = None) -> ProblemError:
    """`where` says what the places lead into; None: their first step does, as FastAPI has it."""
    errors = []
    for one in found:
        place = list(one["loc"])
        into: Any = where or (place.pop(0) if place and place[0] in _WHERE else None)
        if one["type"] == "json_invalid":
            return ProblemError("malformed-json", "The body is not JSON.", param="", where="body")
        # Names further in may be those of a union's branches, and lead nowhere in what was sent.
        steps = place[:1] + [step for step in place[1:] if isinstance(step, int)]
        errors.append(
            FieldProblem(
                param=pointer(*steps),
                where=into,
                message=str(one["msg"])[:300],
                code=str(one["type"]),
            )
        )
    first = errors[0]
    name = (first.param or "").removeprefix("/") or (first.where or "request")
    detail = f"{name}: {first.message}"
    return ProblemError(
        "invalid-request", detail, param=first.param, where=first.where, errors=errors[:_MOST]
    )
