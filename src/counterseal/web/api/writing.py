"""An observation as it goes over the wire, in JSON."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json

from counterseal.canonical import json_default
from counterseal.observation import Observation

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
    """`shown` as JSON."""
    return to_json(shown(seen, public), inf_nan_mode="null", fallback=json_default)
