"""Requests and answers of the HTTP API, as Python has them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter

from counterseal.errors import CountersealError
from counterseal.observation import Observation
from counterseal.proposal import Proposal
from counterseal.views import ApprovalPage, ApprovalRow
from counterseal.web.api.problems import ProblemBody

__all__ = [
    "LONGEST_PAUSE",
    "ProblemError",
    "Query",
    "body_of",
    "in_path",
    "is_refusal",
    "observation_of",
    "pause_after",
    "problem_of",
    "query_of",
    "quoted",
    "request_of",
    "unreachable",
]

Query = Mapping[str, Any]

LONGEST_PAUSE: Final = 30.0
"""Seconds for which a client waits before it asks again, whatever the server says."""
_UNSENDABLE: Final = ("call_id", "workflow_id", "approval", "origins", "proposed")
_REQUEST: Final[TypeAdapter[ApprovalPage | ApprovalRow]] = TypeAdapter(ApprovalPage | ApprovalRow)


class ProblemError(CountersealError):
    """The server's refusal, or that it could not be reached: then `status` is 0."""

    def __init__(self, problem: ProblemBody) -> None:
        where = f" ({problem.param})" if problem.param else ""
        super().__init__(f"{problem.code}: {problem.detail}{where} [{problem.request_id}]")
        self.problem = problem
        self.status = problem.status
        self.code = problem.code
        self.param = problem.param
        self.repairable = problem.repairable
        self.retryable = problem.retryable
        self.next_action = problem.next_action
        self.request_id = problem.request_id


def body_of(proposal: Proposal) -> dict[str, Any]:
    """A proposal as it is sent. ValueError for what can't be."""
    for name in _UNSENDABLE:
        if getattr(proposal, name) is not None:
            raise ValueError(f"{name}: can't be given over HTTP")
    given = proposal.arguments
    named = ("run_id", "version", "operation_id", "expected_version", "configurable")
    told = {name: value for name in named if (value := getattr(proposal, name)) is not None}
    arguments = given.decode() if isinstance(given, bytes) else given
    return {"tool": proposal.tool, "arguments": arguments, **told}


def observation_of(told: Mapping[str, Any]) -> Observation:
    """An observation as it came."""
    errors = [
        {name: one[name] for name in ("field", "message", "code", "expected", "actual")}
        for one in told["field_errors"]
    ]
    return Observation.from_record({**told, "field_errors": errors, "decisions": [], "raw": None})


def request_of(told: Any) -> ApprovalPage | ApprovalRow:
    """A request for approval: in full, or in short."""
    return _REQUEST.validate_python(told)


def quoted(key: str) -> str:
    """As a structured field has it."""
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def in_path(text: str) -> str:
    """As one step of a path."""
    return quote(text, safe="")


def query_of(given: Query | None) -> dict[str, Any]:
    """Without what is None; moments as the API reads them."""
    told = {name: value for name, value in (given or {}).items() if value is not None}
    return {n: v.isoformat() if isinstance(v, datetime) else v for n, v in told.items()}


def is_refusal(answer: httpx.Response) -> bool:
    """Whether it is a call's own answer that it was refused or failed."""
    if "problem+json" not in answer.headers.get("content-type", ""):
        return False
    try:
        told = answer.json()
    except ValueError:
        return False
    return isinstance(told, dict) and told.get("observation") is not None


def pause_after(answer: httpx.Response, tries: int) -> float:
    """How many seconds to wait before asking again."""
    given = answer.headers.get("retry-after", "")
    seconds = float(given) if given.isdecimal() else 0.1 * 2**tries
    return min(seconds, LONGEST_PAUSE)


def problem_of(answer: httpx.Response) -> ProblemError:
    """What the server refused with."""
    try:
        return ProblemError(ProblemBody.model_validate(answer.json()))
    except ValueError:
        detail = f"the server answered {answer.status_code}, and not in the form of this API"
        return ProblemError(_made_up("unknown-answer", detail, answer.status_code))


def unreachable(error: httpx.TransportError) -> ProblemError:
    """That there was no answer."""
    return ProblemError(_made_up("unreachable", f"{type(error).__name__}: {error}", 0))


def _made_up(code: str, detail: str, status: int) -> ProblemBody:
    return ProblemBody(
        type=f"urn:counterseal:problem:{code}",
        title="The server can't be used",
        status=status,
        detail=detail,
        code=code,
        param=None,
        where=None,
        repairable=False,
        retryable=True,
        next_action="retry_later",
        request_id="",
        errors=[],
        role=None,
        known=None,
        why=None,
        observation=None,
    )
