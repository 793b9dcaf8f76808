"""Calls: which there were, and one call's whole story on a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterseal.desk.approvals import InboxRow
from counterseal.desk.base import Page, Seat, iso

__all__ = ["Attempt", "CallPage", "CallRow", "CallSearch", "CallsDesk", "GateRow", "RunPage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSearch:
    """Which calls. What is None does not narrow."""

    tool: str | None = None
    agent: str | None = None
    user: str | None = None
    run: str | None = None
    code: str | None = None
    """One of the 21 codes: SUCCESS, PERMISSION_DENIED…"""
    since: float | None = None
    until: float | None = None
    cursor: str | None = None
    limit: int = 50

    def query(self) -> dict[str, str]:
        """As the parameters of a URL: only what narrows."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """How one call ended, or where it stands."""

    call_id: str
    tool: str
    version: str
    agent: str
    user: str | None
    run_id: str
    trace_id: str
    at: float
    """When it was answered."""
    type: str
    """The event that says so: tool.succeeded, tool.failed, tool.denied, approval.required…"""
    code: str
    """SUCCESS, or what went wrong."""
    gate: str | None
    """Which gate refused it, if one did."""
    approval_id: str | None
    replayed: bool
    """Whether it was answered from what an earlier call under the same key did."""

    def record(self) -> dict[str, Any]:
        return {
            "call_id": self.call_id,
            "tool": self.tool,
            "version": self.version,
            "agent": self.agent,
            "user": self.user,
            "run_id": self.run_id,
            "trace_id": self.trace_id,
            "at": iso(self.at),
            "type": self.type,
            "code": self.code,
            "gate": self.gate,
            "approval_id": self.approval_id,
            "replayed": self.replayed,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRow:
    """What one gate said, in the order of the gates."""

    gate: str
    verdict: str | None
    """allow, deny, require_approval; None: it was not asked."""
    microseconds: float | None
    rule: str | None = None
    code: str | None = None
    reason: str = ""

    def record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try of an execution."""

    number: int
    at: float
    code: str | None
    """What came of it; None for one that is under way, or of which only the next try tells."""

    def record(self) -> dict[str, Any]:
        return {"number": self.number, "at": iso(self.at), "code": self.code}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPage:
    """One call's whole story."""

    row: CallRow
    gates: Sequence[GateRow]
    attempts: Sequence[Attempt]
    approval: InboxRow | None
    votes: Sequence[Mapping[str, Any]]
    """Who said what on it."""
    ledger: Mapping[str, Any] | None
    """key, status, phase, attempts, fence, call_id of the entry; None: it went into no ledger."""
    observation: Mapping[str, Any] | None
    """As the model got it, without the gates; None where it is not kept (any more)."""
    text: str | None
    """The same as the model read it."""
    redactions: Sequence[Mapping[str, Any]]
    verification: Mapping[str, Any] | None
    """required, state (due, verified, unverified, failed), and the reference and expectation."""
    compensation: Mapping[str, Any] | None
    """state (due, compensated, failed), and which tool."""
    events: Sequence[Mapping[str, Any]]
    """All of them, oldest first, as records."""
    trace_id: str
    cli: str
    """The command that shows this call."""
    curl: str
    """The same from the HTTP API; `{base}` stands for the server."""

    def record(self) -> dict[str, Any]:
        return {
            "call": self.row.record(),
            "gates": [gate.record() for gate in self.gates],
            "attempts": [attempt.record() for attempt in self.attempts],
            "approval": None if self.approval is None else self.approval.record(),
            "votes": [dict(vote) for vote in self.votes],
            "ledger": None if self.ledger is None else dict(self.ledger),
            "observation": None if self.observation is None else dict(self.observation),
            "text": self.text,
            "redactions": [dict(one) for one in self.redactions],
            "verification": None if self.verification is None else dict(self.verification),
            "compensation": None if self.compensation is None else dict(self.compensation),
            "events": [dict(event) for event in self.events],
            "trace_id": self.trace_id,
            "copy_as": {"cli": self.cli, "curl": self.curl},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """A run: what it was opened with, what it has spent, and its latest calls."""

    run_id: str
    started_at: float
    objective: str | None
    allowed_tools: Sequence[str] | None
    deadline: float | None
    turn: int
    pins: Mapping[str, str]
    budgets: Sequence[Mapping[str, Any]]
    """name, spent, limit (None: none of its own), of (run or tenant)."""
    calls: Page[CallRow]

    def record(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "started_at": iso(self.started_at),
            "objective": self.objective,
            "allowed_tools": None if self.allowed_tools is None else list(self.allowed_tools),
            "deadline": iso(self.deadline),
            "turn": self.turn,
            "pins": dict(self.pins),
            "budgets": [dict(one) for one in self.budgets],
            "calls": self.calls.record(),
        }


class CallsDesk(Seat):
    async def calls(self, search: CallSearch | None = None) -> Page[CallRow]:
        """Calls, newest first. ValueError for a cursor that was never given out."""
        raise NotImplementedError

    async def call(self, call_id: str) -> CallPage:
        """NotThere."""
        raise NotImplementedError

    async def observation(
        self, *, call_id: str | None = None, key: str | None = None
    ) -> dict[str, Any]:
        """What the model got, by the call or by its key in the ledger. NotThere."""
        raise NotImplementedError

    async def events(self, call_id: str) -> list[dict[str, Any]]:
        """A call's events as records, oldest first. NotThere where there are none."""
        raise NotImplementedError

    async def run(self, run_id: str) -> RunPage:
        """NotThere."""
        raise NotImplementedError

    async def budgets(self, run_id: str | None = None) -> list[dict[str, Any]]:
        """What was spent of what: of the tenant today, and of a run. NotThere for the run."""
        raise NotImplementedError
