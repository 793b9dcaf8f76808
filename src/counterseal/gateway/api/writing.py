"""An observation as it goes over the wire, in JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from math import modf
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
    data = to_json(seen.data)
    if seen.data is not None:
        text = "\n".join((text, *fence(data.decode(), seen.call_id, seen.trust)))
    if b"NaN" in data or b"Infinity" in data:
        data = _json(seen.data)
    return _PLAIN % (
        same,
        _id(seen.call_id),
        _moment(seen.timestamp),
        seen.latency_ms,
        _id(seen.trace_id),
        seen.attempt,
        data,
        repr(seen.timestamp).encode(),
        to_json(text),
    )


def _moment(timestamp: float) -> bytes:
    """As `datetime` has it: rounded to microseconds, without any where there are none."""
    part, whole = modf(timestamp)
    micro = round(part * 1e6)
    if not 0 < micro < 1_000_000:
        return datetime.fromtimestamp(timestamp, UTC).isoformat().encode()
    return b"%b.%06d+00:00" % (_second(whole), micro)


@lru_cache(16)
def _second(whole: float) -> bytes:
    return datetime.fromtimestamp(whole, UTC).isoformat()[:19].encode()


def _id(text: str) -> bytes:
    """A string in JSON: letters and digits need no look at each, and ids have no others."""
    plain = text.isascii() and text.replace("_", "").isalnum()
    return b'"%b"' % text.encode() if plain else to_json(text)


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


_PLAIN: Final = (
    b'%b"call_id":%b},"execution_metadata":{"timestamp":"%b","latency_ms":%d,'
    b'"idempotency_hit":false,"trace_id":%b,"attempt_number":%d},'
    b'"result_payload":{"data":%b,"errors":[],"warnings":[]},"timestamp":%b,"text":%b}'
)
_OWN: Final = ("tool_identity", "execution_metadata", "result_payload", "timestamp", "text")
"""What is another one with every call."""


@lru_cache(4096)
def _same(tool: str, version: str, code: Code, next_action: str, trust: Trust) -> tuple[bytes, str]:
    """What is the same for all calls of a tool: most members, and the text before the data."""
    seen = Observation(tool, version, "", code, RESPONSES[code], next_action, 0.0, trust=trust)
    told = {name: value for name, value in shown(seen, "").items() if name not in _OWN}
    name, number = to_json(tool), to_json(version)
    begun = b',"tool_identity":{"name":%b,"version":%b,' % (name, number)
    return _json(told)[:-1] + begun, seen.for_model()
