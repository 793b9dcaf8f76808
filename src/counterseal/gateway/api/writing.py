"""An observation as it goes over the wire, in JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring as _quoted
from typing import Any, Final

from pydantic_core import to_json

from counterseal.canonical import spelt_out
from counterseal.codes import RESPONSES, Code
from counterseal.contract.effects import Trust
from counterseal.observation import NOT_VERIFIED, Observation
from counterseal.observation.render import fence

__all__ = ["shown", "written"]


def shown(seen: Observation, public: str) -> dict[str, Any]:
    """All of it but what was decided, which is for people; and `text`, which is for the model."""
    named = seen.approval_id
    return {
        **seen.envelope(),
        "response": seen.response.vector(),
        "path": seen.path.value if seen.path else None,
        "field_errors": [error.record() for error in seen.errors],
        "timestamp": seen.timestamp,
        "trust": seen.trust.value,
        "redactions": [redaction.record() for redaction in seen.redactions],
        "next_action": seen.next_action,
        "approval_id": named,
        "approval_url": None if named is None else f"{public}/approvals/{named}",
        "retry_after": seen.retry_after,
        "text": seen.for_model(),
    }


def written(seen: Observation, public: str) -> bytes:
    """The JSON of `shown`; for less where a call simply succeeded, as nearly all do."""
    if not _is_plain(seen):
        return _json(shown(seen, public))
    same, text = _same(seen.tool, seen.version, seen.code, seen.next_action, seen.trust)
    call_id, timestamp = seen.call_id, seen.timestamp
    data = to_json(seen.data).decode()
    if seen.data is not None:
        text = "\n".join((text, *fence(data, call_id, seen.trust)))
    if "NaN" in data or "Infinity" in data:
        data = _json(seen.data).decode()
    return (
        f'{same}"call_id":{_quoted(call_id)}}},"execution_metadata":{{'
        f'"timestamp":"{_moment(timestamp)}","latency_ms":{seen.latency_ms},'
        f'"idempotency_hit":false,"trace_id":{_quoted(seen.trace_id)},'
        f'"attempt_number":{seen.attempt}}},"result_payload":{{"data":{data},"errors":[],'
        f'"warnings":[]}},"timestamp":{timestamp!r},"text":{to_json(text).decode()}}}'
    ).encode()


def _moment(timestamp: float) -> str:
    """As `datetime` has it: rounded to microseconds, without any where there are none."""
    whole = int(timestamp)
    micro = round((timestamp - whole) * 1e6)
    if not 0 < micro < 1_000_000:
        return datetime.fromtimestamp(timestamp, UTC).isoformat()
    return f"{_second(whole)}.{micro:06d}+00:00"


@lru_cache(16)
def _second(whole: int) -> str:
    return datetime.fromtimestamp(whole, UTC).isoformat()[:19]


def _json(value: Any) -> bytes:
    return to_json(value, inf_nan_mode="null", fallback=spelt_out)


def _is_plain(seen: Observation) -> bool:
    """Whether there is nothing to be told but the data."""
    return (
        seen.ok
        and seen.response is RESPONSES[seen.code]
        and seen.verification is NOT_VERIFIED
        and not (seen.errors or seen.warnings or seen.redactions or seen.idempotency_hit)
        and seen.approval_id is None
        and seen.retry_after is None
    )


_OWN: Final = ("tool_identity", "execution_metadata", "result_payload", "timestamp", "text")
"""What is another one with every call."""


@lru_cache(4096)
def _same(tool: str, version: str, code: Code, next_action: str, trust: Trust) -> tuple[str, str]:
    """What is the same for all calls of a tool: most members, and the text before the data."""
    seen = Observation(tool, version, "", code, RESPONSES[code], next_action, 0.0, trust=trust)
    told = {name: value for name, value in shown(seen, "").items() if name not in _OWN}
    begun = f',"tool_identity":{{"name":{_quoted(tool)},"version":{_quoted(version)},'
    return _json(told).decode()[:-1] + begun, seen.for_model()
