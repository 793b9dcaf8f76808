"""Observations made of their parts: of an outcome that was observed, or of a refusal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from counterseal.codes import Code
from counterseal.contract.effects import Trust
from counterseal.contract.model import Contract
from counterseal.observation.models import FieldError
from counterseal.observation.observation import (
    NOT_VERIFIED,
    Observation,
    Recorded,
    VerificationHint,
)
from counterseal.observation.observe import Observed
from counterseal.observation.profile import Profile, profile, refine
from counterseal.observation.words import said

__all__ = ["answer", "refusal"]


def answer(
    observed: Observed,
    contract: Contract,
    *,
    call_id: str,
    timestamp: float,
    own: Profile | None = None,
    next_action: str | None = None,
    warnings: tuple[str, ...] = (),
    latency_ms: int = 0,
    idempotency_hit: bool = False,
    trace_id: str = "",
    attempt: int = 1,
    approval_id: str | None = None,
    retry_after: float | None = None,
    raw: str | None = None,
    verification: VerificationHint | None = None,
    decisions: Sequence[Recorded] = (),
) -> Observation:
    """The observation of an execution. `own` is the contract's profile, where it is known.

    Whether it is to be verified follows from the contract, unless `verification` says more.
    """
    own = own or profile(contract)
    response = own.responses[observed.code]
    if verification is None:
        due = own.verified and observed.data is not None
        verification = VerificationHint(required=True) if due else NOT_VERIFIED
    # In the order of the fields: naming two dozen of them would cost more than checking the output.
    return Observation(
        own.tool,
        own.version,
        call_id,
        observed.code,
        response,
        next_action or response.next_action,
        timestamp,
        observed.data,
        observed.errors,
        (*observed.warnings, *warnings) if warnings else observed.warnings,
        latency_ms,
        idempotency_hit,
        trace_id,
        attempt,
        own.trust,
        observed.redactions,
        approval_id,
        retry_after,
        raw,
        verification,
        decisions,
    )


def refusal(
    code: Code,
    *,
    tool: str,
    call_id: str,
    timestamp: float,
    version: str = "",
    contract: Contract | None = None,
    reason: str = "",
    errors: Iterable[FieldError] = (),
    next_action: str | None = None,
    **more: Any,
) -> Observation:
    """The observation of a call that was not executed.

    There is no contract for a tool that does not exist; then the code's own vector stands.
    """
    response = refine(code, contract)
    listed = tuple(errors)
    if not listed or (reason and all(error.message != reason for error in listed)):
        listed = (FieldError("", reason or said(code), code.value), *listed)
    return Observation(
        tool,
        version or (contract.version if contract else ""),
        call_id,
        code,
        response,
        next_action or response.next_action,
        timestamp,
        None,
        listed,
        trust=more.pop("trust", Trust.TRUSTED),
        **more,
    )
