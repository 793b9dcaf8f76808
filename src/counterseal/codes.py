"""The codes and their response vectors, which say what a caller can do. One table.

A contract's `error_contract` and `error_taxonomy_mapping` refine the vector for its own tool.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class Code(StrEnum):
    SUCCESS = "SUCCESS"
    PARTIAL_SUCCESS = "PARTIAL_SUCCESS"
    SYNTACTIC_PARSE_FAIL = "SYNTACTIC_PARSE_FAIL"
    STRUCTURAL_VIOLATION = "STRUCTURAL_VIOLATION"
    TYPE_MISMATCH = "TYPE_MISMATCH"
    OUT_OF_BOUNDS = "OUT_OF_BOUNDS"
    SEMANTIC_INVALIDITY = "SEMANTIC_INVALIDITY"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    POLICY_VIOLATION = "POLICY_VIOLATION"
    STALE_STATE = "STALE_STATE"
    CONFIRMATION_MISSING = "CONFIRMATION_MISSING"
    BUDGET_EXHAUSTED = "BUDGET_EXHAUSTED"
    RATE_LIMITED = "RATE_LIMITED"
    TIMEOUT = "TIMEOUT"
    IDEMPOTENCY_CONFLICT = "IDEMPOTENCY_CONFLICT"
    SIGNATURE_MISMATCH = "SIGNATURE_MISMATCH"
    DEPENDENCY_UNAVAILABLE = "DEPENDENCY_UNAVAILABLE"
    OBSERVATION_NORMALIZATION_FAIL = "OBSERVATION_NORMALIZATION_FAIL"
    COMPENSATION_REQUIRED = "COMPENSATION_REQUIRED"
    COMPENSATION_FAILED = "COMPENSATION_FAILED"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


FAILURES: Final = frozenset(Code) - {Code.SUCCESS, Code.PARTIAL_SUCCESS}
"""Codes of failures. An exception is never a success, whatever a contract says."""

FINAL: Final = frozenset({Code.PERMISSION_DENIED, Code.POLICY_VIOLATION, Code.SIGNATURE_MISMATCH})
"""Refusals that neither another payload nor a retry changes, whatever a contract says."""


class Path(StrEnum):
    """The four ways to go on after a failure. A response points to one of them at most."""

    RETRY = "retry"
    """Send the same payload again, later: the cause is outside the call."""
    REPAIR = "repair"
    """Another payload for the same purpose: the cause is the proposal."""
    REPLAN = "replan"
    """Back to the planner: the target, or the plan, is not as assumed."""
    ESCALATE = "escalate"
    """A person has to act: investigate, approve, or grant more. No agent goes on by itself."""


_REPLANS = frozenset({"refresh_state_and_replan", "drop_step", "replan"})
"""Next actions for which other arguments do not help. `replan_or_ask_user` is not one of them: an
invariant is often met with other arguments, so that SEMANTIC_INVALIDITY stays on the path repair.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A code's response vector, with the integer status that goes into an observation."""

    code: Code
    status: int
    repairable: bool = False
    retryable: bool = False
    requires_approval: bool = False
    fail_closed: bool = False
    escalate: bool = False
    next_action: str

    @property
    def path(self) -> Path | None:
        """Which way to go on; None if there is nothing to do."""
        if self.escalate or self.requires_approval:
            return Path.ESCALATE
        if self.retryable:
            return Path.RETRY
        if self.next_action in _REPLANS:
            return Path.REPLAN
        return Path.REPAIR if self.repairable else None

    def vector(self) -> dict[str, Any]:
        return {
            "error_code": self.code.value,
            "repairable": self.repairable,
            "retryable": self.retryable,
            "requires_approval": self.requires_approval,
            "fail_closed": self.fail_closed,
            "escalate": self.escalate,
            "next_action": self.next_action,
        }


# fmt: off
_TABLE = (
    Response(code=Code.SUCCESS, status=200, next_action="continue"),
    Response(code=Code.PARTIAL_SUCCESS, status=207, next_action="review_failed_steps"),
    Response(code=Code.SYNTACTIC_PARSE_FAIL, status=400, repairable=True, next_action="repair_arguments"),
    Response(code=Code.STRUCTURAL_VIOLATION, status=400, repairable=True, next_action="repair_arguments"),
    Response(code=Code.TYPE_MISMATCH, status=400, repairable=True, next_action="repair_arguments"),
    Response(code=Code.OUT_OF_BOUNDS, status=400, repairable=True, next_action="repair_arguments"),
    Response(code=Code.SEMANTIC_INVALIDITY, status=422, repairable=True, next_action="replan_or_ask_user"),
    Response(code=Code.PERMISSION_DENIED, status=403, fail_closed=True, next_action="stop"),
    Response(code=Code.POLICY_VIOLATION, status=403, fail_closed=True, next_action="stop"),
    Response(code=Code.STALE_STATE, status=409, repairable=True, next_action="refresh_state_and_replan"),
    Response(code=Code.CONFIRMATION_MISSING, status=428, requires_approval=True, next_action="await_approval"),
    Response(code=Code.BUDGET_EXHAUSTED, status=402, requires_approval=True, fail_closed=True, next_action="request_budget"),
    Response(code=Code.RATE_LIMITED, status=429, retryable=True, next_action="retry_later"),
    Response(code=Code.TIMEOUT, status=504, retryable=True, next_action="retry_same_key"),
    Response(code=Code.IDEMPOTENCY_CONFLICT, status=409, retryable=True, next_action="retry_later"),
    Response(code=Code.SIGNATURE_MISMATCH, status=422, fail_closed=True, next_action="use_new_operation"),
    Response(code=Code.DEPENDENCY_UNAVAILABLE, status=503, retryable=True, next_action="retry_later"),
    Response(code=Code.OBSERVATION_NORMALIZATION_FAIL, status=502, escalate=True, next_action="escalate"),
    Response(code=Code.COMPENSATION_REQUIRED, status=500, escalate=True, next_action="compensate"),
    Response(code=Code.COMPENSATION_FAILED, status=500, requires_approval=True, fail_closed=True, escalate=True, next_action="escalate"),
    Response(code=Code.UNKNOWN_ERROR, status=500, fail_closed=True, escalate=True, next_action="escalate"),
)
# fmt: on

RESPONSES: dict[Code, Response] = {response.code: response for response in _TABLE}
