"""The observation: the answer to one call, and its forms for agents, programs and the record.

Each form is made on demand: text for a model, the envelope for other systems, the full record, a
compact form for the ledger, and what the vault keeps of a read. The fields are decided elsewhere:
by the gates for a refusal, by `observe` for an outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, Self

from pydantic_core import from_json, to_json

from counterseal.canonical import steps, thaw
from counterseal.codes import RESPONSES, Code, Path, Response
from counterseal.contract.effects import Trust
from counterseal.contract.model import Contract
from counterseal.observation.envelope import FieldError, fence, sentence_for
from counterseal.observation.invisible import neutralise
from counterseal.observation.observe import Observed, Profile, refine, summarise
from counterseal.observation.redact import Redaction

_LONGEST_LINE = 500
_HINT = (
    "post_action_verification_required",
    "target_state_reference",
    "expected_state",
    "delay_seconds",
)
"""The fields of a `VerificationHint` in the envelope."""


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
    """Counterseal's own id of the call, unique; for a repeat, of the call that was executed."""
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
    external_ref: str | None = None
    """The destination's own reference, such as the id of a payment."""
    raw: str | None = None
    """A pointer to the whole output in the vault, for people; a model can't follow it."""
    verification: VerificationHint = NOT_VERIFIED
    decisions: Sequence[Recordable] = ()
    caller_call_id: str | None = None
    """The id that the caller gave this call (`Proposal.call_id`), to match the answer by."""

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
            "tool_identity": {"name": self.tool, "version": self.version, "call_id": self.call_id},
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
            "verification": dict(zip(_HINT, thaw(self.verification), strict=True)),
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
            "external_ref": self.external_ref,
            "caller_call_id": self.caller_call_id,
            "raw": self.raw,
            "decisions": [decision.record() for decision in shown_decisions],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any], **changes: Any) -> Self:
        """Return the observation of a record, with the given fields changed."""
        status, hint = record["status"], record["verification"]
        names, metadata = record["tool_identity"], record["execution_metadata"]
        kept = {
            **record,
            **metadata,
            **record["result_payload"],
            "tool": names["name"],
            "version": names["version"],
            "call_id": names["call_id"],
            "code": status["taxonomy_class"],
            "response": {**record["response"], "status": status["code"]},
            "timestamp": record["timestamp"],
            "errors": record["field_errors"],
            "attempt": metadata["attempt_number"],
            "verification": [hint[name] for name in _HINT],
        }
        return cls(*from_stored(kept, **changes))

    def feedback(self) -> dict[str, Any]:
        """Return what a repair loop needs: the wrong fields, and the next action.

        Errors that name a field come first. The sentence of the code, which every refusal begins
        with, is left out where other errors say more.
        """
        whole = [error for error in self.errors if not error.field]
        named = [error for error in self.errors if error.field]
        if len(self.errors) > 1:
            whole = [error for error in whole if error.message != sentence_for(self.code)]
        return {
            "validation_status": "passed" if self.ok else "failed",
            "error_code": None if self.ok else self.code.value,
            "repairable": self.response.repairable,
            "retryable": self.response.retryable,
            "field_errors": [
                {
                    "field": ".".join(steps(error.field)) or None,
                    "path": error.field,
                    "expected": error.expected,
                    "actual": error.actual,
                    "message": error.message,
                }
                for error in (*named, *whole)
            ],
            "next_action": self.next_action,
            "path": self.path.value if self.path else None,
        }

    def for_model(self) -> str:
        """Return text for the agent: what happened, what to do next, and the fenced data.

        The same observation always gives the same text.
        """
        return "\n".join(_lines(self))


# --- text for a model -----------------------------------------------------------------------------


def _lines(observation: Observation) -> Iterator[str]:
    ending = observation.errors[0].code if observation.errors else ""
    sentence = sentence_for(observation.code, ending)
    yield f"{_line(observation.tool)}: {observation.code.value}. {sentence}"
    yield f"next action: {_line(observation.next_action)}"
    if observation.idempotency_hit:
        yield "replayed: this operation was executed before; nothing was executed again"
    if observation.approval_id:
        yield f"approval: {_line(observation.approval_id)}"
    if observation.retry_after is not None:
        yield f"retry after: {observation.retry_after:g} seconds"
    errors = [
        line for line in map(_error, observation.errors) if line != sentence_for(observation.code)
    ]
    if errors:
        yield "errors:"
        yield from (f"- {line}" for line in errors)
    if observation.warnings:
        yield "warnings:"
        yield from (f"- {_line(warning)}" for warning in observation.warnings)
    if observation.data is not None:
        yield from fence(to_json(observation.data).decode(), observation.call_id, observation.trust)


def _error(error: FieldError) -> str:
    place = f"{_line(error.field)}: " if error.field else ""
    already_named = error.expected in error.message
    wanted = f"expected {_line(error.expected)}" if error.expected and not already_named else ""
    got = f"got {_line(error.actual)}" if error.actual and error.actual not in error.message else ""
    detail = ", ".join(filter(None, (wanted, got)))
    return f"{place}{_line(error.message)}{f' ({detail})' if detail else ''}"


def _line(text: str) -> str:
    """Return untrusted text on one line: it may echo parts of a proposal."""
    line = " ".join(neutralise(text)[0].split())
    return line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 1] + "…"


# --- stored forms ---------------------------------------------------------------------------------


def stored(
    observation: Observation, decisions: Sequence[Recordable] | None = None
) -> dict[str, Any]:
    """Return the compact form as new plain JSON data, optionally with other decisions.

    It leaves out default values and whatever follows from the code: every change stores one.
    """
    response, hint = observation.response, observation.verification
    refined = response is not RESPONSES[observation.code]
    acts_as_usual = observation.next_action == response.next_action
    shown_decisions = observation.decisions if decisions is None else decisions
    optional = {
        "response": {**response.vector(), "status": response.status} if refined else None,
        "next_action": None if acts_as_usual else observation.next_action,
        "errors": [error.record() for error in observation.errors],
        "warnings": list(observation.warnings),
        "idempotency_hit": observation.idempotency_hit,
        "attempt": None if observation.attempt == 1 else observation.attempt,
        "redactions": [redaction.record() for redaction in observation.redactions],
        "approval_id": observation.approval_id,
        "retry_after": observation.retry_after,
        "external_ref": observation.external_ref,
        "caller_call_id": observation.caller_call_id,
        "raw": observation.raw,
        "verification": None if hint == NOT_VERIFIED else thaw(hint),
        "decisions": [decision.record() for decision in shown_decisions],
    }
    kept = {
        "tool": observation.tool,
        "version": observation.version,
        "call_id": observation.call_id,
        "code": observation.code.value,
        "timestamp": observation.timestamp,
        "data": thaw(observation.data),
        "latency_ms": observation.latency_ms,
        "trace_id": observation.trace_id,
        "trust": observation.trust.value,
    }
    # By identity, since zero seconds to wait differ from none given.
    return kept | {
        name: value
        for name, value in optional.items()
        if value is not None and value is not False and value != []
    }


def from_stored(kept: Mapping[str, Any], **changes: Any) -> Observation:
    """Return the stored observation, with the given fields changed."""
    code, hint = Code(kept["code"]), kept.get("verification")
    response = _response(code, kept.get("response"))
    return Observation(
        tool=kept["tool"],
        version=kept["version"],
        call_id=kept["call_id"],
        code=code,
        response=response,
        next_action=kept.get("next_action", response.next_action),
        timestamp=kept["timestamp"],
        data=thaw(kept["data"]),
        errors=tuple(FieldError(**error) for error in kept.get("errors", ())),
        warnings=tuple(kept.get("warnings", ())),
        latency_ms=kept["latency_ms"],
        idempotency_hit=kept.get("idempotency_hit", False),
        trace_id=kept["trace_id"],
        attempt=kept.get("attempt", 1),
        trust=Trust(kept["trust"]),
        redactions=tuple(Redaction(**redaction) for redaction in kept.get("redactions", ())),
        approval_id=kept.get("approval_id"),
        retry_after=kept.get("retry_after"),
        external_ref=kept.get("external_ref"),
        raw=kept.get("raw"),
        verification=NOT_VERIFIED if hint is None else VerificationHint(*thaw(hint)),
        decisions=tuple(ReadBack(decision) for decision in kept.get("decisions", ())),
        caller_call_id=kept.get("caller_call_id"),
    )._replace(**changes)


def _response(code: Code, vector: Mapping[str, Any] | None) -> Response:
    usual = RESPONSES[code]
    if vector is None:
        return usual
    fields = {name: vector[name] for name in usual.vector() if name != "error_code"}
    recorded = Response(code=code, status=vector["status"], **fields)
    return usual if recorded == usual else recorded


class KeptRead(NamedTuple):
    """A read's observation as it is kept in the vault."""

    record: Mapping[str, Any]
    """The observation's record without decisions; if the text is cut, its data is a summary."""
    text: str
    """The text that the model got."""
    cut: str = ""
    """The missing part of the text; empty if it is complete."""


def pack_read(observation: Observation, most: int) -> bytes:
    """Return what to keep of a read, with at most `most` bytes of its text."""
    shown = observation._replace(raw=None, decisions=())
    text = shown.for_model().encode()
    if len(text) <= most:
        return to_json({"record": shown.record()})
    if shown.data is not None:
        size = len(to_json(shown.data))
        shown = shown._replace(data=summarise(shown.data, size, most, lambda value: value))
    begun = text[:most].decode(errors="ignore")
    return to_json({"record": shown.record(), "text": begun, "bytes": len(text)})


def open_read(kept: bytes) -> KeptRead:
    """Return a kept read. Raise ValueError if the bytes are not one."""
    try:
        kept_data = from_json(kept)
        observation = Observation.from_record(kept_data["record"])
        if "text" not in kept_data:
            return KeptRead(kept_data["record"], observation.for_model())
        begun, size = str(kept_data["text"]), int(kept_data["bytes"])
    except (AttributeError, LookupError, TypeError, ValueError):
        raise ValueError("not a kept observation") from None
    missing = f"Only the first {len(begun.encode()):,} of its {size:,} bytes are kept."
    return KeptRead(kept_data["record"], begun, missing)


# --- making observations --------------------------------------------------------------------------


def answer(
    observed: Observed,
    profile: Profile,
    *,
    call_id: str,
    timestamp: float,
    warnings: tuple[str, ...] = (),
    **more: Any,
) -> Observation:
    """Return the observation of an execution, under the profile of its contract."""
    response = profile.responses[observed.code]
    return Observation(
        tool=profile.tool,
        version=profile.version,
        call_id=call_id,
        code=observed.code,
        response=response,
        next_action=response.next_action,
        timestamp=timestamp,
        data=observed.data,
        errors=observed.errors,
        warnings=(*observed.warnings, *warnings),
        trust=profile.trust,
        redactions=observed.redactions,
        **more,
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
