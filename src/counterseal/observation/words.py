"""What an agent is told about each code, in a sentence or two. Never about a particular value."""

from __future__ import annotations

from counterseal.codes import Code

__all__ = ["said"]

_SAID = {
    Code.SUCCESS: "The call succeeded.",
    Code.PARTIAL_SUCCESS: "Some steps of the call succeeded, others failed.",
    Code.SYNTACTIC_PARSE_FAIL: "The arguments are not valid JSON. Send one JSON object.",
    Code.STRUCTURAL_VIOLATION: "The call does not have a declared shape.",
    Code.TYPE_MISMATCH: "An argument has the wrong type.",
    Code.OUT_OF_BOUNDS: "An argument is outside of what is allowed.",
    Code.SEMANTIC_INVALIDITY: "The arguments break a business rule of this tool.",
    Code.PERMISSION_DENIED: "This is not permitted. Do not try again in another way.",
    Code.POLICY_VIOLATION: "A policy forbids this. Do not try again in another way.",
    Code.STALE_STATE: "The target has changed since you read it. Read it again, then plan again.",
    Code.CONFIRMATION_MISSING: "A person must approve this call. Nothing was executed.",
    Code.BUDGET_EXHAUSTED: "A budget is used up.",
    Code.RATE_LIMITED: "Too many calls at once. Try again later.",
    Code.TIMEOUT: "The tool did not answer in time. It is not known whether it took effect.",
    Code.IDEMPOTENCY_CONFLICT: "The same operation is already in progress. Wait for it.",
    Code.SIGNATURE_MISMATCH: "This key was used before with other arguments. Nothing was executed.",
    Code.DEPENDENCY_UNAVAILABLE: "A service that the tool needs is not available.",
    Code.OBSERVATION_NORMALIZATION_FAIL: "The tool ran, but its output can't be shown.",
    Code.COMPENSATION_REQUIRED: "An earlier step took effect and must be reversed.",
    Code.COMPENSATION_FAILED: "Reversing an earlier step failed. A person must look at it.",
    Code.UNKNOWN_ERROR: "The tool failed. The details are on record, not here.",
}
_ENDED = {
    "rejected": "A person has refused this call. Nothing was executed.",
    "expired": "This call was not approved in time. Nothing was executed.",
}


def said(code: Code, ended: str = "") -> str:
    """The words for a code; for a request that was answered, for how it ended."""
    if code is Code.CONFIRMATION_MISSING:
        return _ENDED.get(ended, _SAID[code])
    return _SAID[code]
