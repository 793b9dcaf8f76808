"""The event catalogue: what is put on record, and in which words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

__all__ = ["Caller", "Event", "EventType"]

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class EventType(StrEnum):
    """A call's life and what follows it, one for each way on, one for each gate that can end it."""

    REQUESTED = "tool.requested"
    DENIED = "tool.denied"
    APPROVAL_REQUIRED = "approval.required"
    APPROVAL_VOTED = "approval.voted"
    APPROVAL_GRANTED = "approval.granted"
    APPROVAL_REJECTED = "approval.rejected"
    APPROVAL_EXPIRED = "approval.expired"
    APPROVAL_VOID = "approval.void"
    STARTED = "tool.started"
    SUCCEEDED = "tool.succeeded"
    FAILED = "tool.failed"
    REPLAYED = "tool.replayed"
    RECONCILED = "tool.reconciled"
    COMPENSATED = "tool.compensated"
    VERIFIED = "tool.verified"
    UNVERIFIED = "tool.unverified"
    OVERTAKEN = "tool.overtaken"
    COMPENSATION_REQUIRED = "compensation.required"
    COMPENSATION_FAILED = "compensation.failed"
    REGISTRY_CHANGED = "registry.changed"
    QUARANTINED = "tool.quarantined"
    RELEASED = "tool.released"
    PASSED_ON = "mcp.passed_on"
    SIGNED_IN = "person.signed_in"
    SIGN_IN_REFUSED = "person.refused"
    ERASED = "audit.erased"

    RETRIED = "path.retry"
    REPAIR_ASKED = "path.repair"
    REPLAN_ASKED = "path.replan"
    ESCALATED = "path.escalate"

    PARSE_REFUSED = "gate.parse.refused"
    SCHEMA_REFUSED = "gate.schema.refused"
    SCOPE_REFUSED = "gate.scope.refused"
    SEMANTICS_REFUSED = "gate.semantics.refused"
    POLICY_REFUSED = "gate.policy.refused"
    STATE_REFUSED = "gate.state.refused"
    APPROVAL_REFUSED = "gate.approval.refused"
    BUDGET_REFUSED = "gate.budget.refused"

    @classmethod
    def refused_by(cls, gate: str) -> EventType:
        return cls(f"gate.{gate}.refused")


class Caller(NamedTuple):
    """What all events of one call have in common."""

    tenant: str
    run_id: str
    call_id: str
    tool: str
    version: str
    agent: str
    user: str | None
    trace_id: str


class Event(NamedTuple):
    """One audit record. `body` holds what only this type of event has; never a secret."""

    type: EventType
    caller: Caller
    occurred_at: float
    decision: str
    policy_version: str | None = None
    external_ref: str | None = None
    body: Mapping[str, Any] = _NOTHING

    def record(self, event_id: str) -> dict[str, Any]:
        """As plain JSON data, with the id that the store gave it."""
        return {
            "event_id": event_id,
            "type": self.type.value,
            **self.caller._asdict(),
            "occurred_at": datetime.fromtimestamp(self.occurred_at, UTC).isoformat(),
            "decision": self.decision,
            "policy_version": self.policy_version,
            "external_ref": self.external_ref,
            "body": dict(self.body),
        }
