"""What is told of a call: to the record, to the agent, to telemetry. Decides nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any

from counterseal.audit import Caller, Event, EventType
from counterseal.codes import Code, Response
from counterseal.gates import GATES
from counterseal.gates.base import Decision
from counterseal.observation import Observation, neutralise, refusal
from counterseal.passage.asking import Asking
from counterseal.proposal import Proposal
from counterseal.storage.base import HeldStatus
from counterseal.telemetry import Finished, trace_in

__all__ = ["Telling"]

_SUSPICIOUS = {Code.PERMISSION_DENIED, Code.POLICY_VIOLATION, Code.SIGNATURE_MISMATCH}
_PATIENCE, _PATIENCE_WITH_MISTAKES = 3, 5
"""How often a run may be refused in the same way before a person should look."""


class Telling(Asking):
    """Events, refusals and spans of a call."""

    attempt = 1
    key: str | None = None
    """Under which the ledger knows the call."""
    refused: Decision | None = None
    _caller: Caller | None = None

    def take_on(self, trace_id: str) -> None:
        """Go on under the trace of the call that was held: one story, told under one name."""
        self.trace_id = trace_id
        self._caller = None

    async def refuse(self, decision: Decision) -> Observation:
        """Put a refusal on record and tell the agent, with `escalate` when it keeps happening."""
        ctx, code = self.ctx, decision.code or Code.UNKNOWN_ERROR
        self.refused = decision
        if decision not in self.trail.decisions[-1:]:
            self.trail.decisions.append(decision)  # it was found in the ledger, not by a gate
            self.trail.nanoseconds.append(0)
        if decision.voids and decision.approval_id is not None:
            tenant, void = ctx.principal.tenant, HeldStatus.VOID
            await self.runtime.store.decide(tenant, decision.approval_id, void, ())
        body = {
            "gate": decision.gate,
            "code": code.value,
            "rule": decision.rule,
            "fields": [error.field for error in decision.field_errors],
        }
        events = [self.event(EventType.DENIED, "deny", body)]
        if any(gate.name == decision.gate for gate in GATES):
            events.insert(0, self.event(EventType.refused_by(decision.gate), "deny", body))
        suspicious = code in _SUSPICIOUS  # trying one door after another is one pattern
        what = code.value if suspicious else f"{code.value}/{decision.rule}"
        fingerprint = what if suspicious else f"{_shown(ctx.proposal)}/{what}"
        times = await self.runtime.store.refuse(
            ctx.principal.tenant, ctx.run.run_id, fingerprint, events
        )
        patience = _PATIENCE if suspicious else _PATIENCE_WITH_MISTAKES
        return self.answer(decision, escalate=times >= patience)

    def answer(
        self, decision: Decision, *, escalate: bool = False, approval_id: str | None = None
    ) -> Observation:
        """An observation of something that was not executed, or failed."""
        ctx, record = self.ctx, self.ctx.record
        seen = refusal(
            decision.code or Code.UNKNOWN_ERROR,
            tool=record.name if record else _shown(ctx.proposal),
            version=record.version if record else "",
            contract=record.contract if record else None,
            call_id=ctx.call_id,
            timestamp=ctx.now,
            reason=decision.reason,
            errors=decision.field_errors,
            next_action=decision.next_action,
            retry_after=decision.retry_after,
            approval_id=approval_id or decision.approval_id,
            latency_ms=(perf_counter_ns() - self.started) // 1_000_000,
            trace_id=self.trace_id,
            attempt=self.attempt,
            decisions=self.trail,
        )
        return seen._replace(response=_agreeing(seen.response, decision, escalate=escalate))

    def finished(self, seen: Observation) -> Finished:
        """What a span tells of this call."""
        ctx, record = self.ctx, self.ctx.record
        return Finished(
            tenant=ctx.principal.tenant,
            tool=seen.tool,
            version=seen.version,
            call_id=seen.call_id,
            risk=record.contract.risk.value if record else "",
            trace_id=self.trace_id,
            traceparent=ctx.proposal.trace if trace_in(ctx.proposal.trace) else None,
            key=self.key,
            code=seen.code.value,
            is_error=not seen.ok,
            retryable=seen.response.retryable,
            repairable=seen.response.repairable,
            approval_id=seen.approval_id,
            corrected=bool(ctx.corrections),
            refused_by=self.refused.gate if self.refused else None,
            idempotency_hit=seen.idempotency_hit,
            started=ctx.now,
            ended=ctx.now + (perf_counter_ns() - self.started) / 1e9,
        )

    def event(self, kind: EventType, decision: str, body: Mapping[str, Any] | None = None) -> Event:
        ctx = self.ctx
        if self._caller is None:
            record, who = ctx.record, ctx.principal
            tool, version = (record.name, record.version) if record else (_shown(ctx.proposal), "")
            run_id, call_id, trace_id = ctx.run.run_id, ctx.call_id, self.trace_id
            self._caller = Caller(
                who.tenant, run_id, call_id, tool, version, who.agent, who.user, trace_id
            )
        if body is None:
            return Event(kind, self._caller, ctx.now, decision, self.policy_version)
        return Event(kind, self._caller, ctx.now, decision, self.policy_version, None, body)


def _agreeing(response: Response, decision: Decision, *, escalate: bool) -> Response:
    """The response vector, where a decision says more than its code does."""
    action = decision.next_action
    if action is None:
        return dataclasses.replace(response, escalate=True) if escalate else response
    final = action in ("escalate", "use_new_operation")
    return dataclasses.replace(
        response,
        next_action=action,
        retryable=response.retryable and not final,
        escalate=response.escalate or escalate or action == "escalate",
    )


def _shown(proposal: Proposal) -> str:
    """A tool's name as the model wrote it, fit to be kept."""
    return neutralise(str(proposal.tool)[:128].encode(errors="replace").decode())[0]
