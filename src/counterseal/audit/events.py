"""The catalogue of audit events, and what each event counts as.

A store keeps the code, the tally and the cost of an event in columns of their own, so that calls
are found and counted by index. They are derived from the event here, and nowhere else. Pure.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class EventType(StrEnum):
    """What is recorded.

    The steps of a call and its aftermath; changes of the registry and of upstream tools; sign-ins;
    what is read or erased of the record; the response paths; the refusals of gates.
    """

    REQUESTED = "tool.requested"
    DENIED = "tool.denied"
    APPROVAL_REQUIRED = "approval.required"
    APPROVAL_VOTED = "approval.voted"
    APPROVAL_GRANTED = "approval.granted"
    APPROVAL_REJECTED = "approval.rejected"
    APPROVAL_EXPIRED = "approval.expired"
    APPROVAL_VOID = "approval.void"
    CORRECTED = "tool.corrected"
    DROPPED = "tool.dropped"
    UNPROVEN = "approval.unproven"
    APPROVAL_NOT_EXECUTED = "approval.not_executed"
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
    VERSION_HELD = "registry.version_held"
    QUARANTINED = "tool.quarantined"
    RELEASED = "tool.released"
    PASSED_ON = "mcp.passed_on"
    SIGNED_IN = "person.signed_in"
    SIGN_IN_REFUSED = "person.refused"
    ERASED = "audit.erased"
    ARGUMENTS_READ = "arguments.read"
    ARGUMENTS_ERASED = "arguments.erased"

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


class CallFields(NamedTuple):
    """The fields that all events of one call share: which call it is, and who made it."""

    tenant: str
    run_id: str
    call_id: str
    tool: str
    version: str
    agent: str
    user: str | None
    trace_id: str
    caller_call_id: str | None = None
    """The caller's own id of the call; two calls may have the same."""
    workflow_id: str | None = None
    conversation_id: str | None = None
    session_id: str | None = None


class Event(NamedTuple):
    """One audit record. `body` holds what only this type of event has; never a secret."""

    type: EventType
    caller: CallFields
    occurred_at: float
    decision: str
    policy_version: str | None = None
    external_ref: str | None = None
    body: Mapping[str, Any] = _NOTHING

    def record(self, event_id: str) -> dict[str, Any]:
        """Return the event as plain JSON data, with the id that the store gave it."""
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


def erasure_event(tenant: str, now: float, count: int, until: int) -> Event:
    """Return the event that records an erasure: how many events, and up to which number."""
    caller = CallFields(tenant, "", "", "", "", "counterseal", None, "")
    return Event(EventType.ERASED, caller, now, "erase", body={"events": count, "until": until})


# --- what an event counts as ----------------------------------------------------------------------


class CallFact(IntEnum):
    """Facts about a call, one bit each; together they are a number in the event's tally."""

    PROPOSAL = 1
    """The event answers an agent's proposal."""
    MUTATES = 2
    """The tool changes something."""
    AGAIN = 4
    """Refusals of this tool were open in its run: this was not the first try."""
    UNSHAPED = 8
    """Refused for its shape, by the gates *parse* or *schema*."""
    ASKED_TO_MEND = 16
    """The agent was told to repair or replan, and no refusal was open: a repair loop began."""
    MENDED = 32
    """The call succeeded, and ended a repair loop."""
    EXHAUSTED = 64
    """The last attempt that a repair loop may have; a person should look."""
    EXECUTED = 128
    """The tool was called."""
    ANNOUNCED = 256
    """An event recorded the start of the execution before."""
    KEY_MATCHED = 512
    """The ledger had an entry under the call's key."""
    REPLAYED = 1024
    """The call was answered from the ledger."""
    RETRIED = 2048
    """The execution took more than one attempt."""
    RETRY_BLOCKED = 4096
    """The call was not retried, because that might have executed it twice."""
    TO_VERIFY = 8192
    """A verification of the effect is due."""
    UNAPPROVED = 16384
    """The approval of the call, or the token that came with it, is not proven."""
    COMPLETE = 32768
    """The outcome is known, and on record."""
    APPROVED = 65536
    """The call was executed with an approval: its proposal was counted when it was required."""
    GAPS = 131072
    """Not everything is kept that the decision depended on, so that it can't be replayed."""


Filed = tuple[str | None, str | None, float | None]
"""The code that a call was answered with, its tally, and its cost.

None: the event ends no call, is not counted, cost nothing.
"""
Counted = tuple[str | None, int, float | None]

_SHAPE: Final = ("parse", "schema")
_MENDING: Final = ("repair", "replan")
_FOUND: Final = ("happened", "did_not_happen")
"""An operator's finding on an unknown outcome."""

Body = Mapping[str, Any]


def filed(kind: str, decision: str, body: Body) -> Filed:
    """Return what an event counts as, from its type, its decision and its body."""
    count = COUNTED.get(kind)
    counted = None if count is None else count(decision, body)
    if counted is None:
        return None, None, None
    code, facts, cost = counted
    # Costs are added up by tally, so that those of two currencies are never added up.
    currency = "" if cost is None else f" {body.get('currency', '')}".rstrip()
    return code, f"{kind} {code or '-'} {facts:d}{currency}", cost


def read_tally(tally: str) -> tuple[str, str | None, int]:
    """Return the event type, the code and the facts of a tally."""
    kind, code, facts = tally.split(" ")[:3]
    return kind, None if code == "-" else code, int(facts)


def currency_of(tally: str) -> str:
    """Return the currency of the costs in a tally; empty if it is not known, or nothing cost."""
    return "".join(tally.split(" ")[3:])


def _plain(_decision: str, _body: Body) -> Counted:
    return (None, 0, None)


def _kind_of(body: Body) -> int:
    """Return the facts that every answer to a proposal can have."""
    facts = 0 if "system" in body or "resumed" in body else int(CallFact.PROPOSAL)
    if "mutates" in body:
        facts |= CallFact.MUTATES
    if "gaps" in body or "not_captured" in body:
        facts |= CallFact.GAPS
    if "again" in body:
        facts |= CallFact.AGAIN
    elif body.get("path") in _MENDING:
        facts |= CallFact.ASKED_TO_MEND
    return facts


def _denied(_decision: str, body: Body) -> Counted:
    gate, code = body.get("gate"), body.get("code")
    facts = _kind_of(body)
    if gate in _SHAPE:
        facts |= CallFact.UNSHAPED
    elif gate == "approval" and str(body.get("rule")).startswith("token-"):
        facts |= CallFact.UNAPPROVED  # a rejected or expired request that comes again is no forgery
    elif gate == "ledger" and code != "DEPENDENCY_UNAVAILABLE":
        facts |= CallFact.KEY_MATCHED
        if code == "IDEMPOTENCY_CONFLICT":
            facts |= CallFact.RETRY_BLOCKED
    return (str(code) if code else "UNKNOWN_ERROR", facts, None)


def _succeeded(decision: str, body: Body) -> Counted:
    facts = _executed(body) | CallFact.COMPLETE
    if "again" in body:
        facts |= CallFact.MENDED
    if "verify" in body:
        facts |= CallFact.TO_VERIFY
    return (decision, facts, _cost(body))


def _failed(decision: str, body: Body) -> Counted:
    facts = _executed(body)
    if "began" in body:  # present only when the execution did not begin
        return (decision, (facts & ~CallFact.EXECUTED) | CallFact.COMPLETE, None)
    if "unknown" not in body:
        facts |= CallFact.COMPLETE
    if "retry_blocked" in body:
        facts |= CallFact.RETRY_BLOCKED
    return (decision, facts, _cost(body))


def _executed(body: Body) -> int:
    facts = _kind_of(body) | CallFact.EXECUTED
    if "announced" in body:
        facts |= CallFact.ANNOUNCED
    if "approval_id" in body:
        facts |= CallFact.APPROVED
    if "attempts" in body:
        facts |= CallFact.RETRIED
    return facts


def _cost(body: Body) -> float | None:
    cost = body.get("cost")
    return None if cost is None else float(cost) * int(body.get("attempts", 1))


def _reconciled(decision: str, body: Body) -> Counted | None:
    if decision in _FOUND:  # the call keeps the code that its agent was given
        return (None, CallFact.MUTATES | CallFact.ANNOUNCED | CallFact.COMPLETE, None)
    if not decision.isupper():
        return None  # an operator's step, not an outcome
    ended = _succeeded if decision in ("SUCCESS", "PARTIAL_SUCCESS") else _failed
    return ended(decision, body)


def _escalated(_decision: str, body: Body) -> Counted | None:
    if "looks" in body:  # the caller is gone, and the outcome could not be found out
        return ("UNKNOWN_ERROR", 0, None)
    return (None, CallFact.EXHAUSTED, None) if "exhausted" in body else None


COUNTED: Final[Mapping[str, Callable[[str, Body], Counted | None]]] = {
    EventType.DENIED: _denied,
    EventType.APPROVAL_REQUIRED: lambda _, body: ("CONFIRMATION_MISSING", _kind_of(body), None),
    EventType.UNPROVEN: lambda _, __: (None, CallFact.UNAPPROVED, None),
    EventType.REPLAYED: lambda code, body: (
        code,
        _kind_of(body) | CallFact.KEY_MATCHED | CallFact.REPLAYED,
        None,
    ),
    EventType.SUCCEEDED: _succeeded,
    EventType.FAILED: _failed,
    EventType.RECONCILED: _reconciled,
    EventType.ESCALATED: _escalated,
    EventType.STARTED: _plain,
    EventType.RETRIED: _plain,
    EventType.APPROVAL_REJECTED: _plain,
    EventType.COMPENSATED: _plain,
    EventType.COMPENSATION_FAILED: _plain,
}
"""The types of events that are counted, with the function that counts each."""


# --- lines of an export ---------------------------------------------------------------------------

COLUMNS: Final = (
    "event_id",
    "type",
    *CallFields._fields,
    "occurred_at",
    "decision",
    "policy_version",
    "external_ref",
    "body",
)
"""The fields of an event's record, in its order; in CSV the body is a cell of JSON."""

_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")
"""Characters that a spreadsheet takes for the beginning of a formula."""


def json_line(event_id: str, event: Event) -> str:
    """Return an event as one line of JSON, in ASCII, so that nothing in it can break the line."""
    return f"{_json(event.record(event_id))}\n"


def csv_head() -> str:
    """Return the header line: the column names."""
    return _line(COLUMNS)


def csv_line(event_id: str, event: Event) -> str:
    """Return an event as a line of CSV."""
    record = event.record(event_id)
    record["body"] = _json(record["body"]) if record["body"] else ""
    texts = ["" if record[name] is None else str(record[name]) for name in COLUMNS]
    return _line(map(csv_cell, texts))


def csv_cell(text: str) -> str:
    """Return a cell that no spreadsheet runs as a formula: such a text gets an apostrophe."""
    return f"'{text}" if text.startswith(_FORMULAS) else text


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=dict)


def _line(cells: Iterable[str]) -> str:
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue()
