"""An observation as it goes over the wire, in JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring as _quoted
from typing import Any, Final

from pydantic_core import to_json

from counterseal.canonical import json_default
from counterseal.codes import RESPONSES, Code
from counterseal.contract.effects import Trust
from counterseal.observation import NOT_VERIFIED, Observation
from counterseal.observation.render import fence

__all__ = ["shown", "written"]

_MILLION: Final = 1_000_000
_WELL: Final = (Code.SUCCESS, Code.PARTIAL_SUCCESS)


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
    # Taken apart at once: by their names, one after the other, it takes longer than to write them.
    # fmt: off
    (tool, version, call_id, code, response, next_action, timestamp, given, errors, warnings,
     latency_ms, replayed, trace_id, attempt, trust, redactions, approval_id, retry_after,
     _, verification, _) = seen
    # fmt: on
    if (
        code not in _WELL
        or response is not RESPONSES[code]
        or verification is not NOT_VERIFIED
        or (errors or warnings or redactions or replayed)
        or approval_id is not None
        or retry_after is not None
    ):
        return _json(shown(seen, public))
    same, text, above = _same(tool, version, code, next_action, trust)
    data = to_json(given).decode()
    if given is not None:
        _, opening, _, closing = fence(data, call_id, trust)
        inside = to_json(data).decode()[1:-1]
        text = f'{above}\\n{opening}\\n{inside}\\n{closing}"'  # its lines end as JSON has it
    if "NaN" in data or "Infinity" in data:
        data = _json(given).decode()
    return (
        f'{same}{_quoted(call_id)}}},"execution_metadata":{{'
        f'"timestamp":"{_moment(timestamp)}","latency_ms":{latency_ms},'
        f'"idempotency_hit":false,"trace_id":{_quoted(trace_id)},'
        f'"attempt_number":{attempt}}},"result_payload":{{"data":{data},"errors":[],'
        f'"warnings":[]}},"timestamp":{to_json(timestamp).decode()},"text":{text}}}'
    ).encode()


def _moment(timestamp: float) -> str:
    """As `datetime` has it: rounded to microseconds, without any where there are none."""
    whole = int(timestamp)
    micro = round((timestamp - whole) * 1e6)
    if not 0 < micro < _MILLION:
        return datetime.fromtimestamp(timestamp, UTC).isoformat()
    return f"{_second(whole)}.{str(_MILLION + micro)[1:]}+00:00"


@lru_cache(16)
def _second(whole: int) -> str:
    return datetime.fromtimestamp(whole, UTC).isoformat()[:19]


def _json(value: Any) -> bytes:
    return to_json(value, inf_nan_mode="null", fallback=json_default)


_OWN: Final = ("tool_identity", "execution_metadata", "result_payload", "timestamp", "text")
"""What is another one with every call."""


@lru_cache(4096)
def _same(
    tool: str, version: str, code: Code, next_action: str, trust: Trust
) -> tuple[str, str, str]:
    """What is the same for all calls of a tool: most members; the text, and what is above data."""
    seen = Observation(tool, version, "", code, RESPONSES[code], next_action, 0.0, trust=trust)
    told = {name: value for name, value in shown(seen, "").items() if name not in _OWN}
    begun = f',"tool_identity":{{"name":{_quoted(tool)},"version":{_quoted(version)},"call_id":'
    text = seen.for_model()
    note, *_ = fence("", "", trust)
    above = to_json(f"{text}\n{note}").decode()[:-1]
    return _json(told).decode()[:-1] + begun, to_json(text).decode(), above
