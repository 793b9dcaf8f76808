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
from counterseal.positional import made

__all__ = ["answer", "answer_as", "refusal"]


def answer(
    observed: Observed,
    contract: Contract,
    *,
    call_id: str,
    timestamp: float,
    own: Profile | None = None,
    warnings: tuple[str, ...] = (),
    latency_ms: int = 0,
    trace_id: str = "",
    attempt: int = 1,
    approval_id: str | None = None,
    verification: VerificationHint | None = None,
    decisions: Sequence[Recorded] = (),
) -> Observation:
    """The observation of an execution. `own` is the contract's profile, where it is known.

    Whether it is to be verified follows from the contract, unless `verification` says more.
    """
    own = own or profile(contract)
    if verification is None:
        due = own.verified and observed.data is not None
        verification = VerificationHint(required=True) if due else NOT_VERIFIED
    return answer_as(
        own,
        observed,
        call_id,
        timestamp,
        latency_ms,
        trace_id,
        attempt,
        approval_id,
        verification,
        warnings,
        decisions,
    )


def answer_as(
    own: Profile,
    observed: Observed,
    call_id: str,
    timestamp: float,
    latency_ms: int,
    trace_id: str,
    attempt: int,
    approval_id: str | None,
    verification: VerificationHint,
    warnings: tuple[str, ...],
    decisions: Sequence[Recorded],
) -> Observation:
    """The same where all is known, and nothing is named: that costs as much as a gate."""
    code, data, errors, own_warnings, redactions, _, _ = observed
    response = own.responses[code]
    return made(
        Observation,
        (
            own.tool,
            own.version,
            call_id,
            code,
            response,
            response.next_action,
            timestamp,
            data,
            errors,
            (*own_warnings, *warnings) if warnings else own_warnings,
            latency_ms,
            False,
            trace_id,
            attempt,
            own.trust,
            redactions,
            approval_id,
            None,
            None,
            verification,
            decisions,
        ),
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
