"""A call: as a row of a list, and as a page with gates, attempts, ledger, observation and events.

A page is put together from the audit record, so that it is the same at any time and on any worker.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from counterseal.audit import Event, EventType
from counterseal.audit.chain import place_of
from counterseal.audit.events import filed
from counterseal.call.capture import Capture
from counterseal.codes import Code
from counterseal.contract.effects import Trust
from counterseal.errors import RegistryError
from counterseal.gates import GATES
from counterseal.ledger.entry import EntryStatus
from counterseal.ledger.records import DueKind, Held
from counterseal.ledger.requests import EventFilter, StoredEntry
from counterseal.observation.envelope import (
    ExecutionMetadata,
    ResultPayload,
    Status,
    ToolIdentity,
    Verification,
)
from counterseal.observation.observation import from_stored, open_read
from counterseal.vault import VaultError
from counterseal.views.approvals import ApprovalRow, VoteRow, approval_row
from counterseal.views.audit_log import EventRow, event_row
from counterseal.views.base import ROW_CONFIG, JsonObject, JsonValue, Moment, Number, RowModel, utc

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

Events = Sequence[tuple[str, Event]]
"""Events of one call with their ids, oldest first."""

_LOOKS: Final = (EventType.ARGUMENTS_READ, EventType.ARGUMENTS_ERASED)
"""Events about a call that are no step of it."""

# --- rows -----------------------------------------------------------------------------------------


class CallRow(RowModel):
    """How one call ended, or where it stands."""

    call_id: str = Field(description="Counterseal's own id of the call, unique.")
    tool: str
    version: str
    agent: str
    user: str | None
    run_id: str
    trace_id: str
    caller_call_id: str | None = Field(description="The caller's id of the call; may repeat.")
    workflow_id: str | None
    conversation_id: str | None
    session_id: str | None
    at: Moment = Field(description="When it was answered.")
    type: str = Field(description="The event that says so, such as tool.succeeded.")
    code: str | None = Field(description="One of the 21 codes; null while it is in progress.")
    status: str | None = Field(
        description="CANCELLED: the caller did not wait for the answer; the code says how far the "
        "call came. Else null."
    )
    gate: str | None = Field(description="The gate that refused it.")
    approval_id: str | None
    replayed: bool = Field(description="Answered from an earlier call with the same key.")
    resource: str | None = Field(description="What it acts on, such as case:case_100002.")
    consequence: str | None = Field(description="What it does, in a sentence, redacted.")
    external_ref: str | None = Field(description="The destination's own reference.")


class GateRow(RowModel):
    """The decision of one gate."""

    gate: str
    verdict: str | None = Field(description="Null: the gate did not run.")
    microseconds: float | None
    rule: str | None
    code: str | None
    reason: str


class AttemptRow(RowModel):
    """One attempt of an execution."""

    number: int
    at: Moment
    code: str | None = Field(description="Null while it is in progress.")
    executed_by: str = Field(description="server, or client: then it was handed over.")
    reported_by: str | None = Field(description="client: the code is that of its report.")


class LedgerRow(RowModel):
    """The ledger entry of a call."""

    key: str
    status: str
    phase: str | None
    attempts: int
    fence: int
    call_id: str
    unknown_since: Moment | None
    created_at: Moment | None = Field(description="When the call was admitted.")
    completed_at: Moment | None = Field(description="When its outcome was written.")
    external_ref: str | None = Field(description="The destination's own reference.")


class VerificationRow(RowModel):
    """Whether the call took effect as expected."""

    state: str = Field(description="required, due, verified, unverified or overtaken.")
    at: Moment | None
    wrong: list[Any]
    failed: Any
    reference: str | None
    expected: JsonObject | None
    delay_seconds: Number | None


class CompensationRow(RowModel):
    """Whether the call was undone by a compensation."""

    state: str = Field(description="due, compensated or failed.")
    at: Moment | None
    tool: str | None
    reason: str | None
    failed: Any
    by_call: str | None


class RedactionRow(RowModel):
    """Values that were removed from an observation."""

    rule: str
    pointer: str
    count: int


class StoredObservation(RowModel):
    """The observation that the model received, as far as it is kept."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"additionalProperties": True})

    tool_identity: ToolIdentity
    status: Status
    result_payload: ResultPayload


class CopyAs(RowModel):
    """Commands that show this call."""

    cli: str
    curl: str = Field(description="`{base}` stands for the server's address.")


class AskedRow(RowModel):
    """The proposal without its arguments: `/v1/calls/{call_id}/arguments` has them."""

    payload_hash: str | None = Field(description="Fingerprint of the arguments, by tenant.")
    key_fingerprint: str | None
    contract_hash: str | None
    effect: str | None
    latency_ms: int | None
    kept: bool = Field(description="Whether the arguments were kept when the call came in.")
    not_kept: str | None = Field(description="Why not: opted_out, limit or failed.")
    gaps: dict[str, str] = Field(
        description="What the capture lacks for a replay: redacted, cut or unreadable parts."
    )


class ArgumentsRow(RowModel):
    """The proposal of a call, and the facts that its decision depended on. Redacted."""

    call_id: str
    arguments: JsonValue = Field(description="As proposed; a text if they could not be parsed.")
    effective: JsonObject | None = Field(description="As executed, where a rule corrected them.")
    cut: bool = Field(description="Whether only the beginning is kept, as text.")
    redactions: list[RedactionRow]
    proposal: JsonObject
    principal: JsonObject
    contract_hash: str | None
    policy_version: str | None
    config: JsonObject
    run: JsonObject
    memory: JsonObject | None
    target: JsonValue = Field(description="What the contract's probe returned.")
    version_seen: str | int | None
    now: Moment = Field(description="When it was decided.")


class CallPage(RowModel):
    """Everything on record about one call. Agents get it without gates, votes and events."""

    call: CallRow
    asked: AskedRow
    gates: list[GateRow]
    attempts: list[AttemptRow]
    approval: ApprovalRow | None
    votes: list[VoteRow]
    ledger: LedgerRow | None
    observation: StoredObservation | None
    text: str | None = Field(description="The observation as the model read it.")
    cut: str = Field(description="The part of the text that is not kept.")
    not_kept: str = Field(description="Why there is no observation; empty where there is one.")
    redactions: list[RedactionRow]
    verification: VerificationRow | None
    compensation: CompensationRow | None
    events: list[EventRow]
    trace_id: str
    copy_as: CopyAs

    @property
    def in_progress(self) -> bool:
        """True until nothing more is to come: no answer, no decision, no work that is due."""
        approval, ledger = self.approval, self.ledger
        waits = approval is not None and approval.status in ("waiting", "approved")
        pending = ledger is not None and ledger.status == EntryStatus.PENDING
        due = any(row and row.state == "due" for row in (self.verification, self.compensation))
        return self.call.code is None or pending or waits or due


class ResponseVector(RowModel):
    """The response to a code: whether to repair, retry, ask a person or stop, and what is next."""

    error_code: Code
    repairable: bool
    retryable: bool
    requires_approval: bool
    fail_closed: bool
    escalate: bool
    next_action: str


class FieldErrorRow(RowModel):
    """One argument that was refused, and why."""

    field: str = Field(description="JSON Pointer into the arguments; empty for the whole.")
    message: str
    code: str
    expected: str
    actual: str


class ObservationRow(BaseModel):
    """The answer that the agent gets."""

    model_config = ROW_CONFIG

    tool_identity: ToolIdentity
    execution_metadata: ExecutionMetadata
    status: Status
    result_payload: ResultPayload
    verification: Verification
    response: ResponseVector
    path: Literal["retry", "repair", "replan", "escalate"] | None
    field_errors: list[FieldErrorRow]
    timestamp: float = Field(description="Seconds since the epoch.")
    trust: Trust
    redactions: list[RedactionRow]
    next_action: str
    approval_id: str | None
    approval_url: str | None = Field(description="Where a person decides.")
    retry_after: float | None = Field(description="Seconds.")
    external_ref: str | None = Field(description="The destination's own reference.")
    caller_call_id: str | None = Field(None, description="The id that the caller gave this call.")
    text: str = Field(description="The observation as text for the model.")


class KeptObservation(ObservationRow):
    """The observation of an earlier call, as far as it is kept."""

    cut: str = Field(description="The part of the text that is not kept; then data is a summary.")


# --- refusals -------------------------------------------------------------------------------------

Where = Literal["body", "query", "path", "header"]


class FieldProblem(RowModel):
    """One field that is wrong."""

    param: str | None = Field(description="JSON Pointer; null: the whole.")
    where: Where | None
    message: str
    code: str


class CallChoiceRow(RowModel):
    """One of several calls that have the same caller's id."""

    call_id: str
    tool: str
    run_id: str
    at: Moment


class ProblemBody(RowModel):
    """An RFC 9457 problem, with the members that a program needs to decide what to do."""

    type: str = Field(description="`urn:counterseal:problem:` and the code.")
    title: str
    status: int
    detail: str
    code: str = Field(
        description="One of the 21 codes for a call that was refused, such as POLICY_VIOLATION; "
        "else one of the API's own, such as not-found."
    )
    param: str | None = Field(
        description="JSON Pointer into the body, or the name of a parameter as one."
    )
    where: Where | None = Field(description="Where the pointer leads.")
    repairable: bool = Field(description="A corrected request may succeed.")
    retryable: bool = Field(description="The same request may succeed later.")
    next_action: str
    request_id: str
    errors: list[FieldProblem]
    role: str | None = Field(None, description="The role that is missing.")
    why: str | None = Field(None, description="Why a vote was not accepted, in one word.")
    known: list[str] | None = Field(None, description="The parameters that are allowed.")
    choices: list[CallChoiceRow] | None = Field(None, description="The calls that have the id.")
    observation: ObservationRow | None = Field(
        None, description="For a call that was refused or failed: what the model is told."
    )


# --- a row ----------------------------------------------------------------------------------------


def call_row(event: Event) -> CallRow:
    """Return a call as a row, from the event that ended it."""
    names = ("status", "gate", "approval_id", "resource", "consequence")
    texts: dict[str, Any] = {name: _text(event.body.get(name)) for name in names}
    return CallRow(
        **event.caller._asdict(),
        **texts,
        at=utc(event.occurred_at),
        type=event.type.value,
        code=filed(event.type, event.decision, event.body)[0],
        replayed=event.type is EventType.REPLAYED,
        external_ref=event.external_ref,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def last_event(events: Events) -> Event:
    """Return the event that ended the call; while it is in progress, the latest event."""
    bare = [event for _, event in events if event.type not in _LOOKS] or [events[-1][1]]
    ended = [event for event in bare if filed(event.type, event.decision, event.body)[0]]
    return (ended or bare)[-1]


# --- a page ---------------------------------------------------------------------------------------


async def call_page(runtime: Runtime, tenant: str, events: Events) -> CallPage:
    """Return the page of the call that these events belong to. There must be at least one."""
    end = last_event(events)
    row, body, first = call_row(end), end.body, events
    executed = _text(body.get("of")) or row.call_id
    if executed != row.call_id:  # what came after the effect is on record for that call
        first = await runtime.store.search(tenant, EventFilter(call_id=executed))
    entries = await runtime.store.look_up_call(tenant, executed)
    if len(entries) > 1:  # in earlier versions, calls of several runs could have the same id
        about = (end.caller.run_id, end.caller.tool)
        entries = [one for one in entries if (one.entry.run_id, one.entry.tool) == about]
    kept = entries[0] if len(entries) == 1 else None
    shown = await ModelInput.of_call(runtime, tenant, end, kept)
    ids = [value for _, event in events if (value := _text(event.body.get("approval_id")))]
    held = await runtime.store.find_held(tenant, ids[-1]) if ids else None
    observation = None if shown.record is None else without_decisions(shown.record)
    return CallPage(
        call=row,
        asked=_asked(events),
        gates=_gates(events, end),
        attempts=_attempts(events, row),
        approval=None if held is None else approval_row(runtime, held),
        votes=[] if held is None else _votes(held),
        ledger=None
        if kept is None
        else LedgerRow(
            **{**kept.entry._asdict(), **kept._asdict()},
            external_ref=_text((kept.entry.observation or {}).get("external_ref")),
        ),
        observation=None if observation is None else StoredObservation(**observation),
        text=shown.text,
        cut=shown.cut,
        not_kept=shown.not_kept,
        redactions=[RedactionRow(**one) for one in (shown.record or body).get("redactions", ())],
        verification=await _verification(runtime, tenant, first, kept),
        compensation=await _compensation(runtime, tenant, first, kept),
        events=[event_row(event_id, event) for event_id, event in events],
        trace_id=row.trace_id,
        copy_as=_commands(row.call_id, tenant),
    )


def _asked(events: Events) -> AskedRow:
    """Return what the call's own events say of the proposal; the latest one counts."""
    facts: dict[str, Any] = {}
    for _, event in events:
        facts |= event.body
    texts = ("payload_hash", "key_fingerprint", "contract_hash", "effect")
    kept, took = "captured" in facts, facts.get("latency_ms")
    return AskedRow(
        **{name: _text(facts.get(name)) for name in texts},
        latency_ms=took if isinstance(took, int) else None,
        kept=kept,
        not_kept=None if kept else _text(facts.get("not_captured")),
        gaps=facts.get("gaps", {}),
    )


def arguments_row(call_id: str, capture: Capture) -> ArgumentsRow:
    """Return a captured proposal as a row."""
    fields = {**capture.record(), "call_id": call_id, "now": utc(capture.now)}
    return ArgumentsRow(**{name: fields[name] for name in ArgumentsRow.model_fields})


def _commands(call_id: str, tenant: str) -> CopyAs:
    url = shlex.quote(f"{{base}}/v1/calls/{quote(call_id, safe='')}")
    return CopyAs(
        cli=f"counterseal audit show {shlex.quote(call_id)} --tenant {shlex.quote(tenant)}",
        curl=f'curl -H "Authorization: Bearer $COUNTERSEAL_KEY" {url}',
    )


def _gates(events: Events, end: Event) -> list[GateRow]:
    """Return a row for every gate, and one for the ledger where it decided the call.

    A worker that continues a call asks only some gates again, and an operator none: the others'
    decisions are those that were recorded when the call was admitted.
    """
    decisions: dict[str, Any] = {}
    for _, event in events:
        stored = event.body.get("gates")
        decisions.update(stored if isinstance(stored, Mapping) else {})
    names = dict.fromkeys([*(gate.name for gate in GATES), *decisions])
    return [_gate(name, decisions.get(name), end.body) for name in names]


def _gate(name: str, decision: Any, body: Mapping[str, Any]) -> GateRow:
    """Return one gate's row. A bare number is the time of a gate that allowed the call."""
    took, verdict, rule = (None, None, None) if decision is None else (decision, "allow", None)
    if decision is not None and not isinstance(decision, int):
        took, verdict, rule = decision
    refused = verdict == "deny" and body.get("gate") == name
    return GateRow(
        gate=name,
        verdict=verdict,
        microseconds=None if took is None else took / 1000,
        rule=rule,
        code=_text(body.get("code")) if refused else None,
        reason=_text(body.get("reason")) or "" if refused else "",
    )


def _attempts(events: Events, row: CallRow) -> list[AttemptRow]:
    """Return the attempts. The event of the next attempt, or the last event, says how one ended."""
    recorded = [(utc(place_of(event_id)[0] / 1e6), event) for event_id, event in events]
    executed = row.type in (EventType.SUCCEEDED, EventType.FAILED, EventType.RECONCILED)
    retries = [(at, event) for at, event in recorded if event.type is EventType.RETRIED]
    started = [at for at, event in recorded if event.type is EventType.STARTED]
    if not executed and not started:
        return []
    times = [started[0] if started else row.at, *(at for at, _ in retries)]
    codes = [_text(event.body.get("code")) for _, event in retries]
    codes.append(row.code if executed else None)
    facts = {name: value for _, event in recorded for name, value in event.body.items()}
    by = _text(facts.get("executed_by")) or "server", _text(facts.get("reported_by"))
    return [
        AttemptRow(number=number, at=at, code=code, executed_by=by[0], reported_by=by[1])
        for number, (at, code) in enumerate(zip(times, codes, strict=True), 1)
    ]


def _votes(held: Held) -> list[VoteRow]:
    """Return the votes, without their signatures. Stored data that is not a vote is left out."""
    votes = []
    for vote in held.votes:
        with suppress(ValidationError):
            votes.append(VoteRow.model_validate(vote))
    return votes


# --- what the model received ----------------------------------------------------------------------

_NOT_KEPT: Final = {
    EventType.DENIED: "The call was refused. The reason is on record; the observation is not kept.",
    EventType.APPROVAL_REQUIRED: "The call waits for approval; the agent was told so.",
    EventType.STARTED: "The call is in progress.",
}
_READ: Final = (
    "Not kept, because the call changed nothing."
    " `[observations] keep_reads` selects the reads whose observations are kept."
)
_VAULT_REFUSED: Final = "It could not be kept: the vault did not accept it."
_DELETED: Final = "It is no longer kept."
_UNKNOWN: Final = "The outcome of the call is unknown; the agent was told so."
_NEVER_KEPT: Final = "It is no longer kept, or was never recorded."


class ModelInput(NamedTuple):
    """What the model received of a call, or why that is not known."""

    record: Mapping[str, Any] | None = None
    text: str | None = None
    """The record as the model read it."""
    cut: str = ""
    """The part of the text that is not kept."""
    not_kept: str = ""

    @classmethod
    async def of_call(
        cls, runtime: Runtime, tenant: str, end: Event, kept: StoredEntry | None
    ) -> ModelInput:
        """Return it from the vault if the call's last event points there, else from the ledger."""
        stored = await cls.from_vault(runtime, tenant, end) or cls.from_ledger(kept)
        if stored is not None:
            return stored
        why = _NOT_KEPT.get(end.type) or (_NEVER_KEPT if "mutates" in end.body else _READ)
        if kept is not None and kept.entry.status is EntryStatus.PENDING:
            why = _NOT_KEPT[EventType.STARTED] if end.type is EventType.STARTED else _UNKNOWN
        return cls(not_kept=why)

    @classmethod
    def from_ledger(cls, kept: StoredEntry | None) -> ModelInput | None:
        """Return the ledger's observation; None if it has none."""
        if kept is None or kept.entry.observation is None:
            return None
        observation = from_stored(kept.entry.observation)
        return cls(observation.record(), observation.for_model())

    @classmethod
    async def from_vault(cls, runtime: Runtime, tenant: str, end: Event) -> ModelInput | None:
        """Return a read's observation; None if reads of this tool are not kept."""
        if "seen" not in end.body:
            return None
        pointer = end.body["seen"]
        if not isinstance(pointer, str):
            return cls(not_kept=_VAULT_REFUSED)
        sealed = await runtime.store.fetch(tenant, pointer)
        with suppress(VaultError, ValueError):
            if sealed is not None:
                return cls(*open_read(runtime.vault.open(tenant, end.caller.call_id, sealed)))
        return cls(not_kept=_DELETED)


def without_decisions(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return an observation's record without the gates' decisions, which are for people."""
    return {name: value for name, value in record.items() if name not in ("decisions", "raw")}


# --- verification and compensation ----------------------------------------------------------------

_VERIFIED: Final = {
    EventType.VERIFIED: "verified",
    EventType.UNVERIFIED: "unverified",
    EventType.OVERTAKEN: "overtaken",
}
_COMPENSATED: Final = {
    EventType.COMPENSATION_REQUIRED: "due",
    EventType.COMPENSATION_FAILED: "failed",
    EventType.COMPENSATED: "compensated",
}


async def _verification(
    runtime: Runtime, tenant: str, events: Events, kept: StoredEntry | None
) -> VerificationRow | None:
    """Return the state of the call's verification; None if it needs none."""
    states = [(_VERIFIED[event.type], event) for _, event in events if event.type in _VERIFIED]
    stored = kept.entry.observation if kept else None
    hint = None if stored is None else from_stored(stored).verification
    due = await runtime.store.find_due(tenant, DueKind.VERIFY, kept.entry.key) if kept else None
    if not states and due is None and not (hint and hint.required):
        return None
    state, event = states[-1] if states else ("due" if due else "required", None)
    return VerificationRow(
        state=state,
        at=utc(event.occurred_at) if event else None,
        wrong=list(event.body.get("wrong", ())) if event else [],
        failed=due.failed if due else None,
        reference=hint.target_state_reference if hint else None,
        expected=dict(hint.expected_state) if hint and hint.expected_state is not None else None,
        delay_seconds=hint.delay_seconds if hint else None,
    )


async def _compensation(
    runtime: Runtime, tenant: str, events: Events, kept: StoredEntry | None
) -> CompensationRow | None:
    """Return the state of the call's compensation; None if none was requested."""
    states = [
        (_COMPENSATED[event.type], event) for _, event in events if event.type in _COMPENSATED
    ]
    if not states:
        return None
    state, event = states[-1]
    due = await runtime.store.find_due(tenant, DueKind.COMPENSATE, kept.entry.key) if kept else None
    tool = None
    with suppress(RegistryError):
        record = runtime.registry.get(event.caller.tool, event.caller.version)
        tool = record.contract.transactional.compensation_tool
    return CompensationRow(
        state=state,
        at=utc(event.occurred_at),
        tool=tool,
        reason=event.body.get("reason"),
        failed=due.failed if due else None,
        by_call=event.body.get("by") if state == "compensated" else None,
    )
