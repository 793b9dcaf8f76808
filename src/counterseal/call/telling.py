"""What is told of a call: to the record, to the agent, to telemetry. Decides nothing."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from types import MappingProxyType
from typing import Any, Final

from counterseal.audit import Caller, Event, EventType
from counterseal.call.asking import Asking
from counterseal.call.trail import Said
from counterseal.canonical import canonical
from counterseal.codes import FINAL, Code, Path, Response
from counterseal.gates import GATES
from counterseal.gates.base import BLANK, Decision, GateContext
from counterseal.observation import Observation, neutralise, refusal
from counterseal.positional import made
from counterseal.proposal import System
from counterseal.storage.base import HeldStatus
from counterseal.telemetry import Finished, trace_in

__all__ = ["NOBODY", "Telling", "shown_name"]

# How often something may happen in a run; the last time, a person should look.
_DENIALS: Final = 3
_SAME_PAYLOAD: Final = 2
_SAME_MISTAKE: Final = 3
_ATTEMPTS: Final = 6
"""Proposals of one tool, until one of its calls succeeds."""
_RETRIES: Final = 20
"""Refusals of one kind that say "later", but come from a gate: something is broken, not busy."""
_REPAIRS: Final = 30
"""Refusals of a whole run before that, unless its budgets say otherwise."""
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
NOBODY: Final = "?"
"""Where proposals of tools that do not exist are counted: all together, whatever they name."""
_PATHS: Final = {
    Path.REPAIR: EventType.REPAIR_ASKED,
    Path.REPLAN: EventType.REPLAN_ASKED,
    Path.ESCALATE: EventType.ESCALATED,
}


class Telling(Asking):
    """Events, refusals and spans of a call."""

    attempt = 1
    key: str | None = None
    """Under which the ledger knows the call."""
    refused: Decision | None = None
    exhausted = False
    """Whether this was the last try that an agent has to get a call right."""
    _caller: Caller | None = None

    def take_on(self, trace_id: str) -> None:
        """Go on under the trace of the call that was held: one story, told under one name."""
        self.trace_id = trace_id
        self._caller = None

    async def refuse(self, decision: Decision) -> Observation:
        """Put a refusal on record and tell the agent; `escalate` when it keeps happening."""
        ctx, code = self.ctx, decision.code or Code.UNKNOWN_ERROR
        self.refused = decision
        if decision != self.trail.last:
            self.trail.add(decision)  # it was found in the ledger, not by a gate
        if decision.voids and decision.approval_id is not None:
            tenant, void = ctx.principal.tenant, HeldStatus.VOID
            told = {"approval_id": decision.approval_id, "reason": decision.reason}
            event = self.event(EventType.APPROVAL_VOID, "void", told)
            await self.runtime.store.decide(tenant, decision.approval_id, void, [event])
        answer = self.answer(decision)
        body = {
            "gate": decision.gate,
            "code": code.value,
            "rule": decision.rule,
            "fields": [error.field for error in decision.field_errors],
            **self.config_told(),
        }
        told = {**body, **self.told(answer), **self._reason(decision)}
        if decision.approval_id is not None:
            told["approval_id"] = decision.approval_id
        events = [self.event(EventType.DENIED, "deny", told)]
        if self._stopped_by_gate():
            events.insert(0, self.event(EventType.refused_by(decision.gate), "deny", body))
        answer = await self.bounded(answer, events)
        self.note_path(answer)
        return answer

    def _reason(self, decision: Decision) -> dict[str, Any]:
        """Why, as the agent is told it."""
        reason = decision.reason
        return {"reason": self.runtime.redactor.redact(reason)[0]} if reason else {}

    def told(self, answer: Observation | None = None) -> dict[str, Any]:
        """What every event tells that ends a call: what kind of call it is, and the gates' words.

        Beside that, which way was pointed out; and whether the agent had been refused this tool
        before, and had not got it right since.
        """
        ctx, compiled = self.ctx, self.ctx.compiled
        body = {} if compiled is None else dict(compiled.told)
        refused = ctx.run.refused
        if refused and (ctx.record.name if ctx.record else NOBODY) in refused:
            body["again"] = True
        if isinstance(ctx.principal, System):
            body["system"] = True
        path = None if answer is None else answer.path
        if path is not None:
            body["path"] = path.value
        if self.trail.told:
            body["gates"] = Said(self.trail)
        return body

    def config_told(self) -> dict[str, Any]:
        """The config that a decision rests on, as an event tells it."""
        shown = self.ctx.config_shown
        return {"config": self.runtime.redactor.redact(shown)[0]} if shown else {}

    async def bounded(self, answer: Observation, events: Sequence[Event] = ()) -> Observation:
        """Put it on record and count it. Too often, and no agent should go on by itself."""
        ctx, refuse = self.ctx, self.runtime.store.refuse
        tenant, run_id = ctx.principal.tenant, ctx.run.run_id
        tool = ctx.record.name if ctx.record else NOBODY
        limits = self._limits(answer)
        if not limits and not events:
            return answer
        times = await refuse(tenant, run_id, tool, list(limits), events)
        counted = dict(zip(limits, times, strict=True))
        if all(counted[one] < limit for one, limit in limits.items()):
            return answer
        left = _ATTEMPTS - counted.get("tool", _ATTEMPTS)
        if left > 0:
            # Who repeats a mistake has used up its attempts, and gets no new ones by another.
            await refuse(tenant, run_id, tool, ["tool"] * left, ())
        mended = answer.path in (Path.REPAIR, Path.REPLAN)
        self.exhausted = mended and all(counted[one] <= limit for one, limit in limits.items())
        return answer._replace(response=_spent(answer.response), next_action="escalate")

    def _limits(self, answer: Observation) -> dict[str, int]:
        """What is counted of a refusal, and how often it may happen."""
        path, code = answer.path, answer.code.value
        if answer.code in FINAL:
            # Trying one door after another is one pattern, whatever the doors are called.
            return {f"run/{code}": _DENIALS}
        if path is Path.ESCALATE:
            return {}  # who was told to stop need not be told again
        rule = self.refused.rule if self.refused else None
        mistake = f"mistake/{code}/{rule}/{','.join(error.field for error in answer.errors)}"
        if path is Path.RETRY:
            # Waiting is no mistake. But no attempt and no budget bounds what stops at a gate.
            broken = answer.code is not Code.RATE_LIMITED and self._stopped_by_gate()
            return {mistake: _RETRIES} if broken else {}
        if path is None:
            return {mistake: _ATTEMPTS}
        own = self.ctx.run.budgets.repairs
        limits = {"run/repairs": (_REPAIRS if own is None else own) + 1, mistake: _SAME_MISTAKE}
        if path is Path.REPAIR:
            limits[f"payload/{_fingerprint(self.ctx)}"] = _SAME_PAYLOAD
        return {**limits, "tool": _ATTEMPTS}

    def _stopped_by_gate(self) -> bool:
        refused = self.refused
        return refused is not None and any(gate.name == refused.gate for gate in GATES)

    def note_path(self, answer: Observation) -> None:
        """Which way was pointed out; retries are on record where they are made."""
        kind = _PATHS.get(answer.path) if answer.path else None
        if kind is not None:
            body: dict[str, Any] = {"code": answer.code.value, "next_action": answer.next_action}
            if self.exhausted:
                body["exhausted"] = True
            self.runtime.store.note(self.event(kind, answer.path or "", body))

    def answer(self, decision: Decision, *, approval_id: str | None = None) -> Observation:
        """An observation of something that was not executed, or failed."""
        ctx, record = self.ctx, self.ctx.record
        seen = refusal(
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
            latency_ms=(perf_counter_ns() - self.started) // 1_000_000,
            trace_id=self.trace_id,
            attempt=self.attempt,
            decisions=self.trail,
        )
        response = _agreeing(seen.response, decision)
        return seen._replace(response=response, next_action=response.next_action)

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

    def event(
        self,
        kind: EventType,
        decision: str,
        body: Mapping[str, Any] = _NOTHING,
        at: float | None = None,
    ) -> Event:
        """Something to be put on record. It happened when the call came, unless `at` says when."""
        ctx = self.ctx
        if self._caller is None:
            record, who = ctx.record, ctx.principal
            tool, version = (
                (record.name, record.version) if record else (shown_name(ctx.proposal.tool), "")
            )
            run_id, call_id, trace_id = ctx.run.run_id, ctx.call_id, self.trace_id
            self._caller = made(
                Caller, (who.tenant, run_id, call_id, tool, version, who.agent, who.user, trace_id)
            )
        when = ctx.now if at is None else at
        return made(Event, (kind, self._caller, when, decision, self.policy_version, None, body))


def _agreeing(response: Response, decision: Decision) -> Response:
    """The response vector, where a decision says more than its code does: one way on, not two."""
    action = decision.next_action
    if action is None:
        return response
    if action == "escalate":
        return _spent(response)
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
    said = dataclasses.replace(response, next_action=action, retryable=False)
    if said.next_action in ("drop_step", "replan"):
        # No other payload makes the step right, and nobody is left to wait for.
        return dataclasses.replace(said, repairable=False, requires_approval=False)
    return said


def _spent(response: Response) -> Response:
    """The response after too many of the same: nothing is left to try."""
    return dataclasses.replace(
        response, repairable=False, retryable=False, escalate=True, next_action="escalate"
    )


def _fingerprint(ctx: GateContext) -> str:
    """What was proposed, whatever it is, as something to recognise it by, however it is spelled."""
    given: Any = ctx.arguments  # as parsed, where it could be
    if given is BLANK["arguments"]:
        given = ctx.proposal.arguments
    if isinstance(given, Mapping):
        try:
            given = canonical(given)
        except (ValueError, TypeError):
            given = repr(given)
    raw = given if isinstance(given, bytes) else str(given).encode(errors="replace")
    return hashlib.sha256(shown_name(ctx.proposal.tool).encode() + b"\0" + raw).hexdigest()


def shown_name(name: object) -> str:
    """A tool's name as the model wrote it, fit to be kept."""
    return neutralise(str(name)[:128].encode(errors="replace").decode())[0]
