"""Calls: how one is made, what came of it, and how it is told later."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from counterseal.codes import Code
from counterseal.contract.effects import Trust
from counterseal.observation.envelope import (
    ExecutionMetadata,
    ResultPayload,
    Status,
    ToolIdentity,
    Verification,
)
from counterseal.web.api.shapes.approvals import ApprovalRow, Vote
from counterseal.web.api.shapes.base import WHOLE, Given, JsonObject, Moment, Page, Shape, Value

__all__ = [
    "LONGEST_NAME",
    "CallPage",
    "CallRow",
    "Event",
    "KeptObservation",
    "Observation",
    "Run",
    "RunRow",
    "Submission",
]

LONGEST_NAME: Final = 512
_Id = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]


class Submission(Given):
    """A call that an agent wants made."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"tool": "look_up_case", "arguments": {"case_id": "case_7"}, "run_id": "run_1"}
            ]
        }
    )

    tool: str = Field(max_length=LONGEST_NAME, description="The contract's name.")
    arguments: JsonObject | str = Field(
        description="As an object, or as the text that a model wrote."
    )
    run_id: _Id | None = Field(
        None, description="Left out: the caller's own, until an hour has passed without a call."
    )
    version: _Id | None = Field(None, description="Left out: the run's, or the one rolled out.")
    operation_id: _Id | None = Field(
        None, description="Tells a call that is meant again from one that is repeated."
    )
    expected_version: str | Annotated[int, WHOLE] | None = Field(
        None, description="The version of the resource that the call was thought up against."
    )
    configurable: JsonObject | None = Field(
        None, description="Values for the contract's config params."
    )


class ResponseVector(Shape):
    error_code: Code
    repairable: bool
    retryable: bool
    requires_approval: bool
    fail_closed: bool
    escalate: bool
    next_action: str


class FieldError(Shape):
    field: str = Field(description="JSON Pointer into the arguments; empty: the whole.")
    message: str
    code: str
    expected: str
    actual: str


class Redaction(Shape):
    rule: str
    pointer: str
    count: int


class Observation(Shape):
    """What returns to the agent."""

    tool_identity: ToolIdentity
    execution_metadata: ExecutionMetadata
    status: Status
    result_payload: ResultPayload
    verification: Verification
    response: ResponseVector
    path: Literal["retry", "repair", "replan", "escalate"] | None
    field_errors: list[FieldError]
    timestamp: float = Field(description="Seconds since the epoch.")
    trust: Trust
    redactions: list[Redaction]
    next_action: str
    approval_id: str | None
    approval_url: str | None = Field(description="Where a person decides.")
    retry_after: float | None = Field(description="Seconds.")
    text: str = Field(description="The same for the model to read.")


class KeptObservation(Observation):
    """What a call was answered, as far as it is kept."""

    cut: str = Field(description="What of the text is not kept; then the data is a summary.")


class CallRow(Shape):
    """How one call ended, or where it stands."""

    call_id: str
    tool: str
    version: str
    agent: str
    user: str | None
    run_id: str
    trace_id: str
    at: Moment
    type: str
    code: str | None
    gate: str | None
    approval_id: str | None
    replayed: bool


class GateRow(Shape):
    gate: str
    verdict: str | None
    microseconds: float | None
    rule: str | None
    code: str | None
    reason: str


class Attempt(Shape):
    number: int
    at: Moment
    code: str | None


class LedgerEntry(Shape):
    key: str
    status: str
    phase: str | None
    attempts: int
    fence: int
    call_id: str
    unknown_since: Moment | None


class Verified(Shape):
    state: str
    at: Moment | None
    wrong: list[Any]
    failed: Any
    reference: str | None
    expected: JsonObject | None
    delay_seconds: float | None


class Compensated(Shape):
    state: str
    at: Moment | None
    tool: str | None
    reason: str | None
    failed: Any
    by_call: str | None


class Event(Shape):
    """One event on record."""

    event_id: str
    type: str
    tenant: str
    run_id: str
    call_id: str
    tool: str
    version: str
    agent: str
    user: str | None
    trace_id: str
    occurred_at: Moment
    decision: str
    policy_version: str | None
    external_ref: str | None
    body: JsonObject


class StoredObservation(Shape):
    """What the model got, as far as it is kept."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    tool_identity: ToolIdentity
    status: Status
    result_payload: ResultPayload


class CopyAs(Shape):
    cli: str
    curl: str


class CallPage(Shape):
    """One call's whole story. To an agent: without gates, votes and events."""

    call: CallRow
    gates: list[GateRow]
    attempts: list[Attempt]
    approval: ApprovalRow | None
    votes: list[Vote]
    ledger: LedgerEntry | None
    observation: StoredObservation | None
    text: str | None
    cut: str = Field(description="What of the text is not kept.")
    not_kept: str
    redactions: list[Redaction]
    verification: Verified | None
    compensation: Compensated | None
    events: list[Event]
    trace_id: str
    copy_as: CopyAs


class BudgetRow(Shape):
    of: Literal["run", "tenant"]
    name: str
    spent: float
    limit: float | None


class StateRow(Shape):
    """What a run's state holds under one key, redacted."""

    key: str
    value: Value
    changed: int
    untrusted: bool = Field(description="Whether something from outside is in it.")


class RunRow(Shape):
    """A run, with its latest call."""

    run_id: str
    started_at: Moment | None
    objective: str | None
    turn: int | None
    latest: CallRow


class Run(Shape):
    """A run: what it was opened with, what it has spent, what it holds, and its latest calls."""

    run_id: str
    started_at: Moment
    objective: str | None
    allowed_tools: list[str] | None
    deadline: Moment | None
    turn: int
    pins: dict[str, str]
    budgets: list[BudgetRow]
    state: list[StateRow] = Field(description="For people.")
    calls: Page[CallRow]
