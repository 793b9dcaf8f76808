"""One call's whole story: gates, attempts, approval, ledger, what the model got, what followed.

Put together from the record, so that it is the same wherever and whenever it is looked at.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from counterseal.audit import Event, EventType
from counterseal.audit.facts import filed
from counterseal.gates import GATES
from counterseal.ledger.rules import place_of
from counterseal.storage.base import Held, Kept
from counterseal.views.aftermath import compensation_of, verification_of
from counterseal.views.base import iso
from counterseal.views.inbox import InboxRow, inbox_row
from counterseal.views.seen import end_of, seen_of, without_gates

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["Attempt", "CallPage", "CallRow", "GateRow", "call_row", "page_of"]

Told = Sequence[tuple[str, Event]]


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
    """The event that says so, such as tool.succeeded, tool.denied or approval.required."""
    code: str | None
    """SUCCESS, or what went wrong; None while it is under way."""
    gate: str | None
    """Which gate refused it, if one did."""
    approval_id: str | None
    replayed: bool
    """Whether it was answered from what an earlier call under the same key did."""

    def record(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in self.__slots__}, "at": iso(self.at)}


def call_row(event: Event) -> CallRow:
    """A call, by the event that ended it."""
    caller, body = event.caller, event.body
    return CallRow(
        call_id=caller.call_id,
        tool=caller.tool,
        version=caller.version,
        agent=caller.agent,
        user=caller.user,
        run_id=caller.run_id,
        trace_id=caller.trace_id,
        at=event.occurred_at,
        type=event.type.value,
        code=filed(event.type, event.decision, body)[0],
        gate=_text(body.get("gate")),
        approval_id=_text(body.get("approval_id")),
        replayed=event.type is EventType.REPLAYED,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


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
    """What came of it; None for one that is under way."""

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
    cut: str
    """What of the text is not kept; empty where all of it is."""
    not_kept: str
    """Why there is none; empty where there is."""
    redactions: Sequence[Mapping[str, Any]]
    verification: Mapping[str, Any] | None
    """state (due, verified, unverified), and what was to be looked at; None: nothing was."""
    compensation: Mapping[str, Any] | None
    """state (due, compensated, failed), which tool, and by which call; None: nobody asked."""
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
            "cut": self.cut,
            "not_kept": self.not_kept,
            "redactions": [dict(one) for one in self.redactions],
            "verification": None if self.verification is None else dict(self.verification),
            "compensation": None if self.compensation is None else dict(self.compensation),
            "events": [dict(event) for event in self.events],
            "trace_id": self.trace_id,
            "copy_as": {"cli": self.cli, "curl": self.curl},
        }


async def page_of(runtime: Runtime, tenant: str, told: Told) -> CallPage:
    """The story of the call that these events are of; there is one at least."""
    end = end_of(told)
    row, body = call_row(end), end.body
    kept = await runtime.store.look_up_call(tenant, str(body.get("of") or row.call_id))
    seen = await seen_of(runtime, tenant, end, kept)
    held = await _request(runtime, tenant, told)
    return CallPage(
        row=row,
        gates=list(_gates(end)),
        attempts=list(_attempts(told, row)),
        approval=None if held is None else inbox_row(runtime, held),
        votes=() if held is None else [_vote(vote) for vote in held.votes],
        ledger=None if kept is None else _entry(kept),
        observation=None if seen.record is None else without_gates(seen.record),
        text=seen.text,
        cut=seen.cut,
        not_kept=seen.not_kept,
        redactions=(seen.record or body).get("redactions", ()),
        verification=await verification_of(runtime, tenant, told, kept),
        compensation=await compensation_of(runtime, tenant, told, kept),
        events=[event.record(event_id) for event_id, event in told],
        trace_id=row.trace_id,
        cli=f"counterseal audit show {shlex.quote(row.call_id)} --tenant {shlex.quote(tenant)}",
        curl=_curl(row.call_id),
    )


def _curl(call_id: str) -> str:
    url = f"{{base}}/v1/calls/{quote(call_id, safe='')}"
    return f'curl -H "Authorization: Bearer $COUNTERSEAL_KEY" {shlex.quote(url)}'


# --- gates and attempts ---------------------------------------------------------------------------


def _gates(end: Event) -> Iterator[GateRow]:
    """Every gate, asked or not; and the ledger, where that had the last word."""
    told = end.body.get("gates")
    said: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
    names = [gate.name for gate in GATES]
    for name in [*names, *(one for one in said if one not in names)]:
        yield _gate(name, said.get(name), end.body)


def _gate(name: str, said: Any, body: Mapping[str, Any]) -> GateRow:
    if said is None:
        return GateRow(gate=name, verdict=None, microseconds=None)
    if isinstance(said, int):
        return GateRow(gate=name, verdict="allow", microseconds=said / 1000)
    took, verdict, rule = said
    refused = verdict == "deny" and body.get("gate") == name
    return GateRow(
        gate=name,
        verdict=verdict,
        microseconds=took / 1000,
        rule=rule,
        code=_text(body.get("code")) if refused else None,
        reason=_text(body.get("reason")) or "" if refused else "",
    )


def _attempts(told: Told, row: CallRow) -> Iterator[Attempt]:
    """What came of one is told by the event that announces the next, or ends the call."""
    ran = row.type in (EventType.SUCCEEDED, EventType.FAILED, EventType.RECONCILED)
    starts = [(one, event) for one, event in told if event.type is EventType.RETRIED]
    first = next((_when(one) for one, event in told if event.type is EventType.STARTED), row.at)
    if not ran and not any(event.type is EventType.STARTED for _, event in told):
        return
    begun = [first, *(_when(one) for one, _ in starts)]
    codes = [*(_text(event.body.get("code")) for _, event in starts), row.code if ran else None]
    for number, (at, code) in enumerate(zip(begun, codes, strict=True), 1):
        yield Attempt(number=number, at=at, code=code)


def _when(event_id: str) -> float:
    """When an event was recorded."""
    return place_of(event_id)[0] / 1e6


# --- what belongs to it ---------------------------------------------------------------------------


async def _request(runtime: Runtime, tenant: str, told: Told) -> Held | None:
    named = [one for _, event in told if (one := _text(event.body.get("approval_id")))]
    return await runtime.store.find_held(tenant, named[-1]) if named else None


def _vote(vote: Any) -> dict[str, Any]:
    """Without its signature: that is for checking, not for reading."""
    said = dict(vote) if isinstance(vote, Mapping) else {}
    said.pop("signature", None)
    return said


def _entry(kept: Kept) -> dict[str, Any]:
    entry = kept.entry
    return {
        "key": entry.key,
        "status": entry.status.value,
        "phase": entry.phase.value if entry.phase else None,
        "attempts": entry.attempts,
        "fence": entry.fence,
        "call_id": entry.call_id,
        "unknown_since": iso(entry.unknown_since),
    }
