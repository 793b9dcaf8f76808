"""The stored forms of an observation: compact in the ledger, sealed in the vault for reads.

The ledger's form leaves out default values and whatever follows from the code, because every change
stores one. `Observation.record` gives the full form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from counterseal.canonical import thaw
from counterseal.codes import RESPONSES, Code
from counterseal.contract.effects import Trust
from counterseal.observation.envelope import FieldError
from counterseal.observation.observation import (
    NOT_VERIFIED,
    Observation,
    ReadBack,
    Recordable,
    VerificationHint,
    response_of,
)
from counterseal.observation.observe import summarise
from counterseal.observation.redact import Redaction

_PLAIN: Final = ((), (), False, 1, (), None, None, None, NOT_VERIFIED)
"""The default values that `stored` leaves out, in the order of its checks."""


def stored(
    observation: Observation, decisions: Sequence[Recordable] | None = None
) -> dict[str, Any]:
    """Return the observation as new plain JSON data, optionally with other decisions."""
    # fmt: off
    (tool, version, call_id, code, response, next_action, timestamp, data, errors, warnings,
     latency_ms, hit, trace_id, attempt, trust, redactions, approval_id, retry_after, raw,
     verification, own_decisions) = observation
    # fmt: on
    kept: dict[str, Any] = {
        "tool": tool,
        "version": version,
        "call_id": call_id,
        "code": str(code),
        "timestamp": timestamp,
        "data": thaw(data),
        "latency_ms": latency_ms,
        "trace_id": trace_id,
        "trust": str(trust),
    }
    if response is not RESPONSES[code]:
        kept["response"] = {**response.vector(), "status": response.status}
    if next_action != response.next_action:
        kept["next_action"] = next_action
    optional = (
        errors,
        warnings,
        hit,
        attempt,
        redactions,
        approval_id,
        retry_after,
        raw,
        verification,
    )
    if optional != _PLAIN:
        kept.update(_particulars(observation))
    if decisions is None:
        decisions = own_decisions
    if decisions:
        kept["decisions"] = [decision.record() for decision in decisions]
    return kept


def _particulars(observation: Observation) -> dict[str, Any]:
    """Fields that a plain success does not have."""
    hint = observation.verification
    every = {
        "errors": [error.record() for error in observation.errors],
        "warnings": list(observation.warnings),
        "idempotency_hit": observation.idempotency_hit,
        "attempt": observation.attempt,
        "redactions": [redaction.record() for redaction in observation.redactions],
        "approval_id": observation.approval_id,
        "retry_after": observation.retry_after,
        "raw": observation.raw,
        "verification": None if hint == NOT_VERIFIED else thaw(hint),
    }
    # By identity, since zero seconds to wait differ from none given.
    return {
        name: value
        for name, value in every.items()
        if value is not None and value is not False and value != []
    }


def from_stored(kept: Mapping[str, Any], **changes: Any) -> Observation:
    """Return the stored observation, with the given fields changed."""
    code, vector = Code(kept["code"]), kept.get("response")
    response = RESPONSES[code] if vector is None else response_of(code, vector["status"], vector)
    hint = kept.get("verification")
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
        raw=kept.get("raw"),
        verification=NOT_VERIFIED if hint is None else VerificationHint(*thaw(hint)),
        decisions=tuple(ReadBack(decision) for decision in kept.get("decisions", ())),
    )._replace(**changes)


# --- kept reads in the vault ----------------------------------------------------------------------


class KeptRead(NamedTuple):
    """A read's observation as it is kept in the vault."""

    record: Mapping[str, Any]
    """The observation's record without decisions; if the text is cut, its data is a summary."""
    text: str
    """The text that the model got."""
    cut: str = ""
    """What is missing of the text; empty if it is complete."""


def pack_read(observation: Observation, most: int) -> bytes:
    """Return what to keep of a read, with at most so many bytes of its text."""
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
    return KeptRead(kept_data["record"], begun, _missing(begun, size))


def _missing(begun: str, size: int) -> str:
    return f"Only the first {len(begun.encode()):,} of its {size:,} bytes are kept."
