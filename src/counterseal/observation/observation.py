"""The observation: the answer to one call, and its forms for agents, programs and the record.

Each form is made on demand. The fields are decided elsewhere: by the gates for a refusal, by
`observe` for an outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, Self

from counterseal.canonical import thaw
from counterseal.codes import RESPONSES, Code, Path, Response
from counterseal.contract.effects import Trust
from counterseal.contract.model import Contract
from counterseal.observation.envelope import FieldError
from counterseal.observation.observe import Observed, Profile, profile, refine
from counterseal.observation.redact import Redaction
from counterseal.observation.render import render, sentence_for


class Recordable(Protocol):
    """An object that can be recorded, such as a gate's decision."""

    def record(self) -> dict[str, Any]: ...


class ReadBack(NamedTuple):
    """A decision that was read from a record."""

    content: Mapping[str, Any]

    def record(self) -> dict[str, Any]:
        return dict(self.content)


class VerificationHint(NamedTuple):
    """How to verify that the action took effect."""

    required: bool = False
    target_state_reference: str | None = None
    expected_state: Mapping[str, Any] | None = None
    delay_seconds: int = 0


NOT_VERIFIED = VerificationHint()
_SUCCESS, _PARTIAL = Code.SUCCESS, Code.PARTIAL_SUCCESS


class Observation(NamedTuple):
    """The answer to one call."""

    tool: str
    version: str
    call_id: str
    code: Code
    response: Response
    """The code's response vector, as the contract refines it."""
    next_action: str
    timestamp: float
    """Seconds since the epoch."""
    data: Mapping[str, Any] | None = None
    errors: tuple[FieldError, ...] = ()
    warnings: tuple[str, ...] = ()
    latency_ms: int = 0
    idempotency_hit: bool = False
    trace_id: str = ""
    attempt: int = 1
    trust: Trust = Trust.UNTRUSTED
    redactions: tuple[Redaction, ...] = ()
    approval_id: str | None = None
    retry_after: float | None = None
    """Seconds."""
    raw: str | None = None
    """A pointer to the whole output in the vault, for people; a model can't follow it."""
    verification: VerificationHint = NOT_VERIFIED
    decisions: Sequence[Recordable] = ()

    @property
    def ok(self) -> bool:
        """True without an error. A partial success is ok; `warnings` says what failed."""
        return self.code is _SUCCESS or self.code is _PARTIAL

    @property
    def path(self) -> Path | None:
        """The path to take next (retry, repair, replan, escalate); None if there is none."""
        return None if self.ok else self.response.path

    @property
    def retry(self) -> bool:
        """True if the same call may be made again, unchanged."""
        return self.path is Path.RETRY

    @property
    def repair(self) -> bool:
        """True if other arguments may succeed; `feedback()` says what is wrong with these."""
        return self.path is Path.REPAIR

    @property
    def replan(self) -> bool:
        """True if the plan has to change, not only the arguments."""
        return self.path is Path.REPLAN

    @property
    def escalate(self) -> bool:
        """True if a person has to decide, and the agent must not continue by itself."""
        return self.path is Path.ESCALATE

    def envelope(self) -> dict[str, Any]:
        """Return the observation's envelope as plain JSON data."""
        response = self.response
        return {
            "tool_identity": {
                "name": self.tool,
                "version": self.version,
                "call_id": self.call_id,
            },
            "execution_metadata": {
                "timestamp": datetime.fromtimestamp(self.timestamp, UTC).isoformat(),
                "latency_ms": self.latency_ms,
                "idempotency_hit": self.idempotency_hit,
                "trace_id": self.trace_id,
                "attempt_number": self.attempt,
            },
            "status": {
                "code": response.status,
                "is_error": not self.ok,
                "taxonomy_class": self.code.value,
                "retryable": response.retryable,
                "repairable": response.repairable,
                "requires_approval": response.requires_approval,
                "fail_closed": response.fail_closed,
            },
            "result_payload": {
                "data": thaw(self.data),
                "errors": [
                    {"field": error.field or None, "message": error.message, "code": error.code}
                    for error in self.errors
                ],
                "warnings": list(self.warnings),
            },
            "verification": {
                "post_action_verification_required": self.verification.required,
                "target_state_reference": self.verification.target_state_reference,
                "expected_state": thaw(self.verification.expected_state),
                "delay_seconds": self.verification.delay_seconds,
            },
        }

    def record(self, decisions: Sequence[Recordable] | None = None) -> dict[str, Any]:
        """Return the full record as plain JSON data, optionally with other decisions."""
        shown_decisions = self.decisions if decisions is None else decisions
        return {
            **self.envelope(),
            "response": self.response.vector(),
            "path": self.path.value if self.path else None,
            "field_errors": [error.record() for error in self.errors],
            "timestamp": self.timestamp,
            "trust": self.trust.value,
            "redactions": [redaction.record() for redaction in self.redactions],
            "next_action": self.next_action,
            "approval_id": self.approval_id,
            "retry_after": self.retry_after,
            "raw": self.raw,
            "decisions": [decision.record() for decision in shown_decisions],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any], **changes: Any) -> Self:
        """Return the observation of a record, with the given fields changed."""
        identity, metadata = record["tool_identity"], record["execution_metadata"]
        payload, hint = record["result_payload"], record["verification"]
        code = Code(record["status"]["taxonomy_class"])
        return cls(
            tool=identity["name"],
            version=identity["version"],
            call_id=identity["call_id"],
            code=code,
            response=response_of(code, record["status"]["code"], record["response"]),
            next_action=record["next_action"],
            timestamp=record["timestamp"],
            data=thaw(payload["data"]),
            errors=tuple(FieldError(**error) for error in record["field_errors"]),
            warnings=tuple(payload["warnings"]),
            latency_ms=metadata["latency_ms"],
            idempotency_hit=metadata["idempotency_hit"],
            trace_id=metadata["trace_id"],
            attempt=metadata["attempt_number"],
            trust=Trust(record["trust"]),
            redactions=tuple(Redaction(**redaction) for redaction in record["redactions"]),
            approval_id=record["approval_id"],
            retry_after=record["retry_after"],
            raw=record["raw"],
            verification=VerificationHint(
                hint["post_action_verification_required"],
                hint["target_state_reference"],
                thaw(hint["expected_state"]),
                hint["delay_seconds"],
            ),
            decisions=tuple(ReadBack(decision) for decision in record["decisions"]),
        )._replace(**changes)

    def feedback(self) -> dict[str, Any]:
        """Return what a repair loop needs: the wrong fields, and the next action."""
        return {
            "validation_status": "passed" if self.ok else "failed",
            "error_code": None if self.ok else self.code.value,
            "repairable": self.response.repairable,
            "retryable": self.response.retryable,
            "field_errors": [
                {
                    "field": error.field,
                    "expected": error.expected,
                    "actual": error.actual,
                    "message": error.message,
                }
                for error in self.errors
            ],
            "next_action": self.next_action,
            "path": self.path.value if self.path else None,
        }

    def for_model(self) -> str:
        """Return text for the agent: what happened, what to do next, and the fenced data."""
        return render(self)


def response_of(code: Code, status: int, vector: Mapping[str, Any]) -> Response:
    """Return the response with this vector."""
    usual = RESPONSES[code]
    fields = {name: vector[name] for name in usual.vector() if name != "error_code"}
    recorded = Response(code=code, status=status, **fields)
    return usual if recorded == usual else recorded


# --- making observations --------------------------------------------------------------------------


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
    decisions: Sequence[Recordable] = (),
) -> Observation:
    """Return the observation of an execution. `own` is the contract's profile, if known.

    Verification follows from the contract, unless `verification` is given.
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
    decisions: Sequence[Recordable],
) -> Observation:
    """Return the observation of an execution whose contract's profile is known."""
    code, data, errors, own_warnings, redactions, _, _ = observed
    response = own.responses[code]
    return Observation(
        tool=own.tool,
        version=own.version,
        call_id=call_id,
        code=code,
        response=response,
        next_action=response.next_action,
        timestamp=timestamp,
        data=data,
        errors=errors,
        warnings=(*own_warnings, *warnings) if warnings else own_warnings,
        latency_ms=latency_ms,
        trace_id=trace_id,
        attempt=attempt,
        trust=own.trust,
        redactions=redactions,
        approval_id=approval_id,
        verification=verification,
        decisions=decisions,
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
    """Return the observation of a call that was not executed.

    For an unknown tool there is no contract, and the code's own response vector is used.
    """
    response = refine(code, contract)
    listed = tuple(errors)
    if not listed or (reason and all(error.message != reason for error in listed)):
        listed = (FieldError("", reason or sentence_for(code), code.value), *listed)
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
