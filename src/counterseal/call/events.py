"""What is recorded of a call, and what the agent reads of a refusal. Decides nothing."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from typing import Any, Final

from pydantic_core import to_json

from counterseal.audit import CallFields, Event, EventType
from counterseal.call.call import Call, CallServices
from counterseal.call.capture import keep_proposal, kept_for
from counterseal.canonical import canonical, pointer, thaw
from counterseal.codes import FINAL, Code, Path, Response
from counterseal.contract.invariants import Correction
from counterseal.errors import StoreError
from counterseal.gates import GATES
from counterseal.gates.approval import refused_token
from counterseal.gates.base import EMPTY, Decision, GateContext, deny
from counterseal.gates.parse import caller_ids
from counterseal.ledger.entry import Entry
from counterseal.ledger.records import Due, Held, HeldStatus
from counterseal.observation import Observation, neutralise, refusal
from counterseal.observation.observe import summarise
from counterseal.proposal import System
from counterseal.telemetry import Finished, Telemetry, trace_in

NOT_RECORDED: Final = "The record can't be written right now. Nothing was done."
CANCELLED: Final = "CANCELLED"
"""Status of a call whose caller did not wait for the answer. Its code says how far it came."""
UNKNOWN_TOOL: Final = "?"
"""Refusals of tools that do not exist are counted under this name, whatever they are called."""
# How often a refusal may happen in a run; the last time, the agent is told to escalate.
_DENIALS: Final = 3
_SAME_PAYLOAD: Final = 2
_SAME_MISTAKE: Final = 3
_ATTEMPTS: Final = 6
"""Proposals of one tool, until one of its calls succeeds."""
_RETRIES: Final = 20
"""Refusals by a gate that say "later": something is broken, not busy."""
_REPAIRS: Final = 30
"""Refusals in a run that ask for a repair, unless the run's budgets say otherwise."""
_PATH_EVENTS: Final = {
    Path.REPAIR: EventType.REPAIR_ASKED,
    Path.REPLAN: EventType.REPLAN_ASKED,
    Path.ESCALATE: EventType.ESCALATED,
}
_MAX_SHOWN: Final = 8192
"""Bytes of arguments in one event."""
_GATE_NAMES: Final = frozenset(gate.name for gate in GATES)


# --- events ---------------------------------------------------------------------------------------


def event(
    call: Call,
    kind: EventType,
    decision: str,
    body: Mapping[str, Any] = EMPTY,
    at: float | None = None,
) -> Event:
    """Return an event of this call. Its time is when the call came in, unless `at` is given."""
    ctx = call.ctx
    if call.caller is None:
        record, principal, own = ctx.record, ctx.principal, caller_ids(ctx.proposal)
        call.caller = CallFields(
            tenant=principal.tenant,
            run_id=ctx.run.run_id,
            call_id=ctx.call_id,
            tool=record.name if record else shown_name(ctx.proposal.tool),
            version=record.version if record else "",
            agent=principal.agent,
            user=principal.user,
            trace_id=call.trace_id,
            caller_call_id=own.pop("call_id", None),
            **own,
        )
    return Event(
        type=kind,
        caller=call.caller,
        occurred_at=ctx.now if at is None else at,
        decision=decision,
        policy_version=call.policy_version,
        body=body,
    )


def caller_of(
    about: Entry | Due | Held, agent: str, user: str | None, trace_id: str = ""
) -> CallFields:
    """Return the caller part of an event about something stored."""
    place = (about.tenant, about.run_id, about.call_id, about.tool, about.version)
    return CallFields(*place, agent, user, trace_id)


def event_body(call: Call, answer: Observation | None = None) -> dict[str, Any]:
    """Return what every event says that ends a call.

    That is the kind of call, the decisions of its gates, the path that the answer points to, and
    whether the agent was refused this tool before without getting it right since.
    """
    ctx, compiled = call.ctx, call.ctx.compiled
    body = {} if compiled is None else dict(compiled.event_facts)
    refused = ctx.run.refused
    if refused and (ctx.record.name if ctx.record else UNKNOWN_TOOL) in refused:
        body["again"] = True
    if isinstance(ctx.principal, System):
        body["system"] = True
    if ctx.principal.parents:
        body["parents"] = [*ctx.principal.parents]
    if answer is not None and answer.path is not None:
        body["path"] = answer.path.value
    if call.decisions:
        body["gates"] = decisions_of(call)
    if call.resumed:
        body["resumed"] = True
    if call.cancellation is not None:
        body["status"] = CANCELLED
    return body


def decisions_of(call: Call) -> dict[str, Any]:
    """Return, by gate, its nanoseconds; with verdict and rule where it did more than allow."""
    return {
        decision.gate: nanoseconds
        if decision.plain
        else [nanoseconds, str(decision.verdict), decision.rule]
        for decision, nanoseconds in call.decisions
    }


def gate_events(call: Call, services: CallServices) -> list[Event]:
    """Return what the gates did beside deciding: each correction, and a refused approval token.

    Events may be kept for longer than arguments: where that time is set, they hold no values.
    """
    ctx = call.ctx
    events = [
        event(call, EventType.CORRECTED, "correct", correction_body(call, correction, services))
        for correction in ctx.corrections
    ]
    rule = None if ctx.proposal.approval is None else refused_token(ctx)
    if rule is not None:
        events.append(event(call, EventType.UNPROVEN, "refuse", {"rule": rule}))
    return events


def correction_body(call: Call, correction: Correction, services: CallServices) -> dict[str, Any]:
    """Return which invariant changed which arguments, from what to what."""
    names, why = changed_arguments(correction), {"invariant": correction.invariant}
    if kept_for(call, services) is not None:
        return {**why, "fields": [pointer(name) for name in names]}
    sides = [
        {name: values[name] for name in names if name in values}
        for values in (correction.before, correction.after)
    ]
    before, after = (_shown_arguments(values, services) for values in sides)
    return {**why, "before": before, "after": after}


def changed_arguments(correction: Correction) -> list[str]:
    """Return the names of the arguments that a correction added, changed or removed."""
    before, after = correction.before, correction.after
    return [
        name
        for name in {**before, **after}
        if (name in before, before.get(name)) != (name in after, after.get(name))
    ]


def dropped_body(
    call: Call, arguments: Mapping[str, Any], why: Mapping[str, Any], services: CallServices
) -> dict[str, Any]:
    """Return which rule dropped a step with which arguments."""
    if kept_for(call, services) is not None:
        return {**why, "fields": [pointer(name) for name in arguments]}
    return {**why, "before": _shown_arguments(arguments, services), "after": None}


def _shown_arguments(arguments: Mapping[str, Any], services: CallServices) -> dict[str, Any]:
    """Return arguments for an event: redacted, and a summary where they are large."""
    clean: dict[str, Any] = services.redactor.redact(thaw(arguments))[0]
    size = len(to_json(clean))
    return clean if size <= _MAX_SHOWN else summarise(clean, size, _MAX_SHOWN, lambda value: value)


def shown_config(call: Call, services: CallServices) -> dict[str, Any]:
    """Return the config that a decision rests on, redacted, as part of an event's body."""
    config = call.ctx.config_shown
    return {"config": services.redactor.redact(config)[0]} if config else {}


def note_path(call: Call, answer: Observation, services: CallServices) -> None:
    """Record which path an answer points to. Retries are recorded where they are made."""
    if call.resumed:
        return
    kind = _PATH_EVENTS.get(answer.path) if answer.path else None
    if kind is not None:
        body: dict[str, Any] = {"code": answer.code.value, "next_action": answer.next_action}
        if call.attempts_exhausted:
            body["exhausted"] = True
        services.store.note(event(call, kind, answer.path or "", body))


def emit_span(call: Call, answer: Observation, telemetry: Telemetry) -> None:
    """Hand an answered call to OpenTelemetry, if an SDK is configured."""
    if not call.traced:
        return
    ctx, record = call.ctx, call.ctx.record
    own = caller_ids(ctx.proposal)
    telemetry.emit(
        Finished(
            tenant=ctx.principal.tenant,
            tool=answer.tool,
            kind=record.contract.mcp.kind if record and record.contract.mcp else "tool",
            version=answer.version,
            call_id=call.call_id,
            caller_call_id=own.pop("call_id", None),
            **own,
            risk=record.contract.risk.value if record else "",
            trace_id=call.trace_id,
            traceparent=ctx.proposal.trace if trace_in(ctx.proposal.trace) else None,
            key=call.key,
            code=answer.code.value,
            is_error=not answer.ok,
            retryable=answer.response.retryable,
            repairable=answer.response.repairable,
            approval_id=answer.approval_id,
            corrected=bool(ctx.corrections),
            refused_by=call.refused_by.gate if call.refused_by else None,
            idempotency_hit=answer.idempotency_hit,
            cancelled=call.cancellation is not None,
            replayable="captured" in call.captured and "gaps" not in call.captured,
            started=ctx.now,
            ended=ctx.now + (perf_counter_ns() - call.started_ns) / 1e9,
        )
    )


# --- refusals -------------------------------------------------------------------------------------


async def refuse(call: Call, decision: Decision, services: CallServices) -> Observation:
    """Record a refusal and return it as an observation; `escalate` if it happens too often."""
    code = decision.code or Code.UNKNOWN_ERROR
    call.refused_by, call.answered = decision, True
    if all(timed.decision != decision for timed in call.decisions):
        call.add_decision(decision)  # by the ledger, not by a gate
    if decision.voids and decision.approval_id is not None:
        reason = {"approval_id": decision.approval_id, "reason": decision.reason}
        voided = event(call, EventType.APPROVAL_VOID, "void", reason)
        await services.store.decide(call.tenant, decision.approval_id, HeldStatus.VOID, [voided])
    answer = refused_observation(call, decision)
    by_gate = {
        "gate": decision.gate,
        "code": code.value,
        "rule": decision.rule,
        "fields": [error.field for error in decision.field_errors],
        **shown_config(call, services),
    }
    body = {**by_gate, **event_body(call, answer), **keep_proposal(call, services, refused=True)}
    if decision.reason:
        body["reason"] = services.redactor.redact(decision.reason)[0]
    if decision.approval_id is not None:
        body["approval_id"] = decision.approval_id
    events = gate_events(call, services)
    if decision.next_action == "drop_step":
        why = {"invariant": decision.rule}
        dropped = dropped_body(call, call.ctx.arguments, why, services)
        events.append(event(call, EventType.DROPPED, "drop", dropped))
    if decision.gate in _GATE_NAMES:
        events.append(event(call, EventType.refused_by(decision.gate), "deny", by_gate))
    events.append(event(call, EventType.DENIED, "deny", body))
    answer = await count_refusal(call, answer, services, events)
    note_path(call, answer, services)
    return answer


def note_cancelled(call: Call, error: BaseException, services: CallServices) -> None:
    """Record that the caller was cancelled before the call was admitted, or answered."""
    if call.answered or call.cancellation is not None:
        return  # its end is on record
    call.cancellation = error
    body = {**event_body(call), **keep_proposal(call, services, refused=True), "began": False}
    events = [*gate_events(call, services), event(call, EventType.FAILED, Code.TIMEOUT.value, body)]
    try:
        for one in events:
            services.store.note(one)
    except StoreError as failure:
        services.report(call.call_id, "store", failure)


def refuse_unrecorded(call: Call, error: StoreError, services: CallServices) -> Observation:
    """Return the answer when the store fails: what can't be recorded is not executed."""
    services.report(call.call_id, "store", error)
    code = Code.DEPENDENCY_UNAVAILABLE
    call.refused_by = deny("ledger", code, NOT_RECORDED, rule="store-failed")
    call.add_decision(call.refused_by)
    return refused_observation(call, call.refused_by)


def refused_observation(
    call: Call, decision: Decision, *, approval_id: str | None = None
) -> Observation:
    """Return the observation of a call that was not executed, or failed."""
    ctx, record = call.ctx, call.ctx.record
    answer = refusal(
        decision.code or Code.UNKNOWN_ERROR,
        tool=record.name if record else shown_name(ctx.proposal.tool),
        version=record.version if record else "",
        contract=record.contract if record else None,
        call_id=ctx.call_id,
        timestamp=ctx.now,
        reason=decision.reason,
        errors=decision.field_errors,
        next_action=decision.next_action,
        retry_after=decision.retry_after,
        approval_id=approval_id or decision.approval_id,
        latency_ms=(perf_counter_ns() - call.started_ns) // 1_000_000,
        trace_id=call.trace_id,
        attempt=call.attempt,
        decisions=tuple(call.decisions),
    )
    response = response_for(answer.response, decision)
    return answer._replace(response=response, next_action=response.next_action, data=decision.data)


async def count_refusal(
    call: Call, answer: Observation, services: CallServices, events: Sequence[Event] = ()
) -> Observation:
    """Record events and count a refusal. Beyond a limit, the answer becomes `escalate`.

    A resumed call is not counted: no agent has made this attempt.
    """
    if call.resumed:
        return answer
    ctx, record_and_count = call.ctx, services.store.record_and_count
    tool = ctx.record.name if ctx.record else UNKNOWN_TOOL
    limits = _limits(call, answer)
    if not limits and not events:
        return answer
    times = await record_and_count(call.tenant, ctx.run.run_id, tool, list(limits), events)
    counts = dict(zip(limits, times, strict=True))
    if all(counts[name] < limit for name, limit in limits.items()):
        return answer
    attempts_left = _ATTEMPTS - counts.get("tool", _ATTEMPTS)
    if attempts_left > 0:
        # An agent that repeats one mistake gets no new attempts by making another one.
        await record_and_count(call.tenant, ctx.run.run_id, tool, ["tool"] * attempts_left, ())
    call.attempts_exhausted = answer.path in (Path.REPAIR, Path.REPLAN) and all(
        counts[name] <= limit for name, limit in limits.items()
    )
    return answer._replace(response=escalated(answer.response), next_action="escalate")


def _limits(call: Call, answer: Observation) -> dict[str, int]:
    """Return what is counted of a refusal, and how often it may happen."""
    path, code, refused = answer.path, answer.code.value, call.refused_by
    if answer.code in FINAL:
        # Trying one tool after another is one pattern, so they are counted together.
        return {f"run/{code}": _DENIALS}
    if path is Path.ESCALATE:
        return {}
    rule = refused.rule if refused else None
    mistake = f"mistake/{code}/{rule}/{','.join(error.field for error in answer.errors)}"
    if path is Path.RETRY:
        # Waiting is no mistake. But no attempt and no budget bounds what stops at a gate.
        by_gate = refused is not None and refused.gate in _GATE_NAMES
        broken = answer.code is not Code.RATE_LIMITED and by_gate
        return {mistake: _RETRIES} if broken else {}
    if path is None:
        return {mistake: _ATTEMPTS}
    repairs = call.ctx.run.budgets.repairs
    limits = {"run/repairs": (_REPAIRS if repairs is None else repairs) + 1, mistake: _SAME_MISTAKE}
    if path is Path.REPAIR:
        limits[f"payload/{_payload_digest(call.ctx)}"] = _SAME_PAYLOAD
    return {**limits, "tool": _ATTEMPTS}


def response_for(response: Response, decision: Decision) -> Response:
    """Return the response vector, changed where the decision is more specific than its code."""
    action = decision.next_action
    if action is None:
        return response
    if action == "escalate":
        return escalated(response)
    if action in ("retry_same_key", "retry_later"):
        return dataclasses.replace(
            response,
            next_action=action,
            retryable=True,
            repairable=False,
            requires_approval=False,
            escalate=False,
        )
    if response.escalate:
        return response
    response = dataclasses.replace(response, next_action=action, retryable=False)
    if action in ("drop_step", "replan"):
        # No other payload makes the step right, and there is nothing to wait for.
        return dataclasses.replace(response, repairable=False, requires_approval=False)
    return response


def escalated(response: Response) -> Response:
    """Return the response vector for an agent that has nothing left to try."""
    return dataclasses.replace(
        response, repairable=False, retryable=False, escalate=True, next_action="escalate"
    )


def _payload_digest(ctx: GateContext) -> str:
    """Return a digest of what was proposed, the same however the JSON is written."""
    payload: Any = ctx.arguments
    if payload is EMPTY:  # could not be parsed
        payload = ctx.proposal.arguments
    if isinstance(payload, Mapping):
        try:
            payload = canonical(payload)
        except (ValueError, TypeError):
            payload = repr(payload)
    raw = payload if isinstance(payload, bytes) else str(payload).encode(errors="replace")
    return hashlib.sha256(shown_name(ctx.proposal.tool).encode() + b"\0" + raw).hexdigest()


def shown_name(name: object) -> str:
    """Return a tool's name as the model wrote it, bounded and neutralised for records."""
    return neutralise(str(name)[:128].encode(errors="replace").decode())[0]
