"""The observation's envelope: the JSON form that other systems read.

The models fix the form; `observation` makes the observations.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from counterseal.codes import Code

JsonObject = Annotated[dict[str, Any], WithJsonSchema({"type": "object"})]


class FieldError(NamedTuple):
    """A problem with one argument. It never contains the value, which may be a secret."""

    field: str
    """JSON Pointer into the arguments; empty for the arguments as a whole."""
    message: str
    code: str
    expected: str = ""
    actual: str = ""

    def record(self) -> dict[str, str]:
        return self._asdict()


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ToolIdentity(_Part):
    name: str
    version: str
    call_id: str


class ExecutionMetadata(_Part):
    timestamp: datetime
    latency_ms: int = Field(ge=0)
    idempotency_hit: bool
    trace_id: str
    attempt_number: int = Field(ge=1)


class Status(_Part):
    code: int
    is_error: bool
    taxonomy_class: Code
    retryable: bool
    repairable: bool
    requires_approval: bool
    fail_closed: bool


class ErrorDetail(_Part):
    field: str | None
    message: str
    code: str


class ResultPayload(_Part):
    data: JsonObject | None
    errors: tuple[ErrorDetail, ...]
    warnings: tuple[str, ...]


class Verification(_Part):
    post_action_verification_required: bool
    target_state_reference: str | None
    expected_state: JsonObject | None
    delay_seconds: int = Field(ge=0)


class ObservationEnvelope(_Part):
    tool_identity: ToolIdentity
    execution_metadata: ExecutionMetadata
    status: Status
    result_payload: ResultPayload
    verification: Verification
