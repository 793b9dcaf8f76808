"""What pydantic finds wrong with a request, as a problem."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args

from counterseal.canonical import pointer
from counterseal.web.api.problems import FieldProblem, ProblemError, Where

__all__ = ["invalid"]

_MOST: Final = 20
_WHERE: Final = frozenset(get_args(Where))


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
        errors.append(FieldProblem(pointer(*steps), into, str(one["msg"])[:300], str(one["type"])))
    first = errors[0]
    name = (first.param or "").removeprefix("/") or (first.where or "request")
    detail = f"{name}: {first.message}"
    return ProblemError(
        "invalid-request", detail, param=first.param, where=first.where, errors=errors[:_MOST]
    )
