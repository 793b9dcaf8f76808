"""One call's way through the runtime, step by step. `runtime.py` tells the order.

A step returns what ends the call (a refusal, or an answer that was known before), or None to go on.
All that a call knows is in its gate context; the trail keeps every decision.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from random import getrandbits, random
from time import perf_counter_ns
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, overload

from counterseal import ledger
from counterseal.audit import Caller, Event, EventType
from counterseal.canonical import digest
from counterseal.codes import Code
from counterseal.contract.model import Contract
from counterseal.contract.surroundings import Context
from counterseal.execution.local import Outcome, Work, deadline, execute
from counterseal.gates import BEFORE_RECALL, BUDGET, GATES, PARSE
from counterseal.gates.approval import ended
from counterseal.gates.base import (
    AsyncGate,
    Decision,
    GateContext,
    Learned,
    Timed,
    Verdict,
    deny,
)
from counterseal.gates.budget import exhausted, rate_limited
from counterseal.gates.state import resource_of
from counterseal.ledger import Answer, Entry, Phase, Status
from counterseal.observation import (
    NOT_VERIFIED,
    Observation,
    Observed,
    VerificationHint,
    answer,
    observe,
    refusal,
)
from counterseal.proposal import Principal, Proposal
from counterseal.registry import Reason, Refusal, RegistryRecord
from counterseal.storage.base import (
    Admission,
    Admit,
    Charge,
    Held,
    HeldStatus,
    Memory,
    Refused,
    RunRecord,
    Settle,
)
from counterseal.telemetry import Finished, trace_in

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["AGAIN", "Again", "Passage", "Preview", "Trail"]

_SUSPICIOUS = {Code.PERMISSION_DENIED, Code.POLICY_VIOLATION, Code.SIGNATURE_MISMATCH}
_PATIENCE, _PATIENCE_WITH_MISTAKES = 3, 5
"""How often a run may be refused in the same way before a person should look."""
_RETRY_AFTER = 1.0
_MAY_HAVE_HAPPENED = {Code.TIMEOUT, Code.DEPENDENCY_UNAVAILABLE}


class Again:
    """Returned by *admit*: what was decided on has changed; decide anew."""


AGAIN = Again()
_NOTHING: Mapping[str, str | int] = MappingProxyType({})
ALLOWED = Verdict.ALLOW
_DONE = Outcome(Code.SUCCESS)


class Trail(Sequence[Timed]):
    """The decisions of a call in their order, with the time each took; put together on demand."""

    __slots__ = ("decisions", "nanoseconds")

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.nanoseconds: list[int] = []

    def __len__(self) -> int:
        return len(self.decisions)

    def __iter__(self) -> Iterator[Timed]:
        return map(Timed, self.decisions, self.nanoseconds)

    @overload
    def __getitem__(self, index: int) -> Timed: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Timed, ...]: ...
    def __getitem__(self, index: int | slice) -> Timed | tuple[Timed, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        return Timed(self.decisions[index], self.nanoseconds[index])


End = Decision | Observation | Again | None
"""How a step ends: a refusal, an answer, "decide anew", or not at all."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What would happen: the decisions of every gate that was asked, and nothing done."""

    decisions: tuple[Timed, ...]
    arguments: Mapping[str, Any]
    verdict: str
    code: str | None
    reason: str


class Passage:
    """A call under way. Made anew for every try."""

    # What most calls never set is a default of the class.
    attempt = 1
    key: str | None = None
    request = b""
    """The hash of the arguments as proposed."""
    entry: Entry | None = None
    refused: Decision | None = None
    asked: Decision | None = None
    """The approval gate's word that somebody must be asked."""
    policy_version: str | None = None
    outcome = _DONE
    observed: Observed | None = None
    _caller: Caller | None = None

    def __init__(self, runtime: Runtime, proposal: Proposal, principal: Principal) -> None:
        now = runtime.clock()
        self.started = perf_counter_ns()
        self.runtime = runtime
        self.trail = Trail()
        self.trace_id = runtime.trace_of(proposal.trace)
        self.epoch = runtime.registry.epoch
        self.ctx = ctx = GateContext()
        ctx.learn(
            {
                "proposal": proposal,
                "principal": principal,
                # Ids of new rows begin with the time, so that a store's index grows at one end.
                "call_id": proposal.call_id or f"call_{int(now * 1000):011x}{getrandbits(52):013x}",
                "now": now,
                "registry": runtime.registry,
            }
        )
        if principal.tenant in runtime.tenants:
            tenant = runtime.tenants[principal.tenant]
            ctx.learn({"tenant": tenant.facts, "limits": tenant.budgets})

    # --- receive, check ---------------------------------------------------------------------------

    def receive(self, run: RunRecord) -> Decision | None:
        """Find the version of the tool that this run uses, and parse."""
        ctx = self.ctx
        found = self._resolved(run, ctx.proposal)
        if isinstance(found, Refusal):
            ctx.learn({"run": run, "refusal": found})
        else:
            compiled = self.runtime.compiled[found.name, found.version]
            ctx.learn({"run": run, "record": found, "compiled": compiled})
        return self._ask(PARSE)

    def _resolved(self, run: RunRecord, proposal: Proposal) -> RegistryRecord | Refusal:
        """What the run began with, it keeps; a proposal can't talk it into another version."""
        pinned, who = run.pins.get(proposal.tool), self.ctx.principal
        if pinned is not None and proposal.version not in (None, pinned):
            return Refusal(
                reason=Reason.VERSION_UNKNOWN,
                message=f"This run uses version {pinned} of {proposal.tool}.",
            )
        return self.ctx.registry.resolve(
            proposal.tool,
            tenant=who.tenant,
            run_id=run.run_id,
            version=pinned or proposal.version,
            agent=who.agent,
        )

    def check(self) -> Decision | None:
        """Shape and authority. Nothing is read from the store for it."""
        return self._ask(BEFORE_RECALL)

    # --- recall -----------------------------------------------------------------------------------

    async def recall(self) -> Decision | Observation | None:
        """One read. What was done under this key before is answered from memory."""
        ctx, record, compiled = self.ctx, self.ctx.record, self.ctx.compiled
        if record is None or compiled is None or not compiled.recalls:
            return None
        if compiled.keyed:
            self.request = ledger.request_hash(ctx.arguments)
            self.key = self._derived_key(record)
        entry = (await self._remember()).entry
        return None if entry is None else self._duplicate(entry)

    async def _remember(self) -> Memory:
        ctx = self.ctx
        memory = await self.runtime.store.recall(ctx.principal.tenant, ctx.run.run_id, self.key)
        ctx.learn({"memory": memory})
        return memory

    def _derived_key(self, record: RegistryRecord) -> str:
        ctx = self.ctx
        run_id = ctx.run.run_id
        return ledger.derive_key(
            record.contract, ctx.proposal, ctx.principal, run_id, ctx.arguments
        )

    def _duplicate(self, entry: Entry) -> Decision | Observation | None:
        """What a second request under the same key gets. Nothing is executed or spent."""
        found = ledger.duplicate(entry, self.request)
        if found is Answer.EXECUTE:
            return None
        if found is Answer.MISMATCH:
            reason = "The key was used for another request."
            return deny("ledger", Code.SIGNATURE_MISMATCH, reason)
        if found is Answer.REPLAY and self._repeats():
            reason = "This call was made before. To mean it again, give an operation_id or a key."
            return deny("ledger", Code.SEMANTIC_INVALIDITY, reason, rule="repeat-unnamed")
        if found is Answer.REPLAY and entry.observation is not None:
            # The outcome is the first call's; the trace is that of whoever asks now.
            return Observation.from_record(
                entry.observation, idempotency_hit=True, trace_id=self.trace_id
            )
        if found is Answer.EXPIRED:
            reason = "The answer to this key is no longer kept."
            return deny("ledger", Code.IDEMPOTENCY_CONFLICT, reason, rule="key-expired")
        reason = "A call with the same key is under way."
        code = Code.IDEMPOTENCY_CONFLICT
        return deny("ledger", code, reason, rule="in-progress", retry_after=_RETRY_AFTER)

    def _repeats(self) -> bool:
        proposal, record = self.ctx.proposal, self.ctx.record
        unnamed = proposal.key is None and proposal.operation_id is None
        return unnamed and record is not None and record.contract.repeatable

    # --- decide -----------------------------------------------------------------------------------

    async def decide(self) -> Decision | Observation | None:
        """Rules, policy, state, approval, budget. Asks for approval only where the rest allows."""
        compiled = self.ctx.compiled
        if compiled is not None and not compiled.waits:
            refused = self._ask(compiled.gates)
        else:
            refused = await self._judge()
        if self.ctx.approval_id is not None and self.ctx.memory and self.ctx.memory.held:
            self.trace_id = self.ctx.memory.held.trace_id  # one story, told under one name
        if refused is not None or self.asked is None:
            return refused
        if self.ctx.memory is None:
            await self._remember()
            refused = self._ask(BUDGET)  # nobody is asked to approve what could not run
        return refused or await self._hold(self.asked)

    async def _judge(self) -> Decision | None:
        compiled = self.ctx.compiled
        if compiled is None:
            return deny("scope", Code.PERMISSION_DENIED, "The tool can't be used.")
        gates, began = compiled.gates, 0
        for index, gate in enumerate(gates):
            if isinstance(gate, AsyncGate):
                stopped = self._ask(gates[began:index]) or await self._ask_the_world(gate)
                if stopped is not None:
                    return stopped
                began = index + 1
        return self._ask(gates[began:])

    def _ask(self, gates: Sequence[Any]) -> Decision | None:
        """Ask these gates in turn. Returns the decision that ends the call, if one does."""
        ctx = self.ctx
        decisions, nanoseconds = self.trail.decisions, self.trail.nanoseconds
        began = perf_counter_ns()
        for gate in gates:
            try:
                said = gate if isinstance(gate, Decision) else gate.check(ctx)
            # A gate that raises denies: there is no way past a broken gate.
            except Exception as error:  # noqa: BLE001
                said = self._broken(str(getattr(gate, "name", "")), error)
            if isinstance(said, Learned):
                decision = said.decision
                ctx.learn(said.found)
            else:
                decision = said
            ended = perf_counter_ns()
            decisions.append(decision)
            nanoseconds.append(ended - began)
            began = ended
            if decision.verdict is not ALLOWED and self._ends(decision):
                return decision
            if decision.policy_version is not None:
                self.policy_version = decision.policy_version
        return None

    async def _ask_the_world(self, gate: AsyncGate) -> Decision | None:
        began = perf_counter_ns()
        try:
            said = await gate.check(self.ctx)
        except Exception as error:  # noqa: BLE001 - as in _ask
            said = self._broken(gate.name, error)
        if isinstance(said, Learned):
            self.ctx.learn(said.found)
        decision = said.decision if isinstance(said, Learned) else said
        self.trail.decisions.append(decision)
        self.trail.nanoseconds.append(perf_counter_ns() - began)
        return decision if decision.verdict is Verdict.DENY else None

    def _ends(self, decision: Decision) -> bool:
        """Whether a decision that does not simply allow ends the call, or lays down a duty."""
        if decision.verdict is Verdict.DENY:
            return True
        if decision.gate == "approval":
            self.asked = decision
        else:
            self.ctx.learn({"approvals": (*self.ctx.approvals, decision)})
        return False

    def _broken(self, gate: str, error: Exception) -> Decision:
        self.runtime.report(self.ctx.call_id, f"gate {gate}", error)
        code = Code.POLICY_VIOLATION if gate == "policy" else Code.UNKNOWN_ERROR
        return deny(
            gate, code, "The call could not be judged, so it is refused.", rule="gate-error"
        )

    async def _hold(self, demand: Decision) -> Decision | Observation | None:
        """Keep the proposal for a person, unless an approval for exactly this is there already."""
        record = self.ctx.record
        if record is None:
            return None
        self.key = self.key or self._derived_key(record)
        event = self._event(EventType.APPROVAL_REQUIRED, "require_approval", {"rule": demand.rule})
        held = await self.runtime.store.hold(self._held(demand, record, self.key), [event])
        if held.status is HeldStatus.APPROVED:
            self.ctx.learn({"approval_id": held.approval_id})
            self.trace_id = held.trace_id
            return None
        return ended(held, demand) or self.answer(demand, approval_id=held.approval_id)

    def _held(self, demand: Decision, record: RegistryRecord, key: str) -> Held:
        ctx = self.ctx
        asked = max((one.approvers or 0 for one in ctx.approvals), default=0)
        return Held(
            approval_id=f"appr_{int(ctx.now * 1000):011x}{getrandbits(52):013x}",
            tenant=ctx.principal.tenant,
            key=key,
            approval_hash=digest(ctx.arguments),
            call_id=ctx.call_id,
            run_id=ctx.run.run_id,
            tool=record.name,
            version=record.version,
            contract_hash=record.contract.hash,
            arguments=ctx.arguments,
            agent=ctx.principal.agent,
            user=ctx.principal.user,
            scopes=ctx.principal.scopes,
            reason=demand.reason,
            rule=demand.rule,
            approvers=max(asked, record.contract.approvers, 1),
            before=ctx.before,
            version_seen=ctx.version_seen,
            created_at=ctx.now,
            trace_id=self.trace_id,
        )

    async def preview(self, run: RunRecord) -> Preview:
        """What the gates say. Nothing is recorded, held, spent or executed."""
        self.ctx.learn({"preview": True})
        stopped: Decision | None = self.receive(run) or self.check()
        if stopped is None:
            known = await self.recall()
            stopped = known if isinstance(known, Decision) else None
            if self.ctx.memory is None:
                await self._remember()
        if stopped is None:
            stopped = await self._judge() or self.asked
        last = stopped or self.trail[-1].decision
        return Preview(
            decisions=tuple(self.trail),
            arguments=self.ctx.arguments,
            verdict=last.verdict.value,
            code=last.code.value if last.code else None,
            reason=last.reason,
        )

    # --- admit ------------------------------------------------------------------------------------

    async def admit(self) -> End:
        """One transaction: check again what can have changed, spend, reserve, record."""
        ctx, record = self.ctx, self.ctx.record
        if record is None or self.epoch != self.runtime.registry.epoch:
            return AGAIN
        admission = await self.runtime.store.admit(
            Admit(
                ctx.principal.tenant,
                ctx.run.run_id,
                record.name,
                record.version,
                ctx.now,
                ctx.charges,
                ctx.rates,
                self._reservation(record),
                ctx.approval_id,
                self.epoch,
                self._announced(),
            )
        )
        self.entry = admission.entry
        return None if admission.refused is None else self._not_admitted(admission)

    def _announced(self) -> Sequence[Event]:
        """What goes on record beforehand. A read can't be half done: its end tells it all."""
        if self.ctx.compiled is None or not self.ctx.compiled.announced:
            return ()
        requested = self._event(EventType.REQUESTED, "allow")
        return requested, requested._replace(type=EventType.STARTED)

    def _reservation(self, record: RegistryRecord) -> Entry | None:
        if self.ctx.compiled is None or not self.ctx.compiled.keyed or self.key is None:
            return None
        return Entry(
            tenant=self.ctx.principal.tenant,
            key=self.key,
            request_hash=self.request,
            status=Status.PENDING,
            phase=Phase.RESERVED,
            call_id=self.ctx.call_id,
            tool=record.name,
            version=record.version,
        )

    def _not_admitted(self, admission: Admission) -> End:
        if admission.refused is Refused.BUDGET and admission.charge is not None:
            return self._overruled(exhausted(admission.charge, admission.spent))
        if admission.refused is Refused.RATE:
            return self._overruled(rate_limited(admission.retry_after))
        if admission.refused is Refused.DUPLICATE and admission.entry is not None:
            return self._duplicate(admission.entry) or AGAIN
        return AGAIN

    def _overruled(self, decision: Decision) -> Decision:
        """The budget gate's last word, in place of its first."""
        self.trail.decisions[-1] = decision
        return decision

    # --- execute, observe, settle -----------------------------------------------------------------

    async def execute(self) -> None:
        """Run the tool. What it may have done is written down even when nobody waits any more."""
        ctx, record = self.ctx, self.ctx.record
        if record is None or record.tool is None:
            missing = RuntimeError("this contract has no code here")
            self.outcome = Outcome(Code.DEPENDENCY_UNAVAILABLE, error=missing, began=False)
            return
        secrets = self.runtime.secrets
        work = Work(record.contract, record.tool, ctx.arguments, self._context, secrets)
        try:
            self.outcome = await execute(work)
            while self.outcome.code is not Code.SUCCESS and await self._may_retry(record.contract):
                await self.runtime.pause(_backoff(self.attempt))
                self.attempt += 1
                self.outcome = await execute(work)
        except asyncio.CancelledError:
            self.outcome = Outcome(Code.TIMEOUT)
            self.runtime.tell(self, await asyncio.shield(self.settle(self.observe())))
            raise

    async def _may_retry(self, contract: Contract) -> bool:
        """Whether a failed read may be tried again. What may have changed something never is."""
        ctx, limits = self.ctx, contract.runtime
        if ctx.compiled is None or ctx.compiled.mutates or self.attempt > limits.max_retries:
            return False
        if not ctx.compiled.profile.responses[self.outcome.code].retryable:
            return False
        allowed = ctx.run.budgets.retries
        if allowed is None:
            return True
        spend = Charge("run.retries", "retries", 1, allowed, of_run=True)
        admission = await self.runtime.store.admit(
            Admit(
                tenant=ctx.principal.tenant,
                run_id=ctx.run.run_id,
                tool=contract.name,
                version=contract.version,
                now=ctx.now,
                charges=(spend,),
                rates=(),
                entry=None,
                approval_id=None,
                epoch=self.epoch,
                events=(),
            )
        )
        return admission.refused is None

    def _context(self) -> Context:
        ctx, record = self.ctx, self.ctx.record
        timeout = record.contract.runtime.timeout_ms if record else 0
        reads = record.contract.state_reads if record else ()
        return Context(
            tenant=ctx.principal.tenant,
            user=ctx.principal.user,
            agent=ctx.principal.agent,
            run_id=ctx.run.run_id,
            call_id=ctx.call_id,
            key=self.key,
            deadline=deadline(ctx.now, timeout),
            expected_version=ctx.version_seen,
            config=ctx.config,
            state={read.key: ctx.run.state.get(read.key) for read in reads},
        )

    def observe(self) -> Observation:
        """The outcome as the agent may see it: checked, redacted, bounded, labelled."""
        outcome, ctx, record = self.outcome, self.ctx, self.ctx.record
        if outcome.error is not None:
            self.runtime.report(ctx.call_id, "execution", outcome.error)
        if outcome.code is not Code.SUCCESS or record is None or ctx.compiled is None:
            reason = _FAILURES.get(outcome.code, "The tool failed.")
            return self.answer(deny("execution", outcome.code, reason))
        self.observed = observe(
            outcome.value,
            compiled_output_validator=ctx.compiled.output,
            contract=record.contract,
            redactor=self.runtime.redactor,
            own=ctx.compiled.profile,
        )
        return answer(
            self.observed,
            record.contract,
            own=ctx.compiled.profile,
            call_id=ctx.call_id,
            timestamp=ctx.now,
            latency_ms=(perf_counter_ns() - self.started) // 1_000_000,
            trace_id=self.trace_id,
            decisions=self.trail,
            warnings=self._warnings() if ctx.corrections else (),
            approval_id=ctx.approval_id,
            attempt=self.entry.attempts if self.entry else self.attempt,
            verification=self._verification(self.observed, record.contract),
        )

    def _verification(self, observed: Observed, contract: Contract) -> VerificationHint:
        if not contract.transactional.post_action_verification_required or observed.data is None:
            return NOT_VERIFIED
        return VerificationHint(
            required=True, target_state_reference=resource_of(contract, self.ctx.arguments)
        )

    def _warnings(self) -> tuple[str, ...]:
        return tuple(note for timed in self.trail for note in timed.decision.warnings)

    async def settle(self, observation: Observation) -> Observation:
        """One transaction: entry, what the run has seen, run state, events."""
        store, tenant = self.runtime.store, self.ctx.principal.tenant
        raw = self.observed.raw if self.observed else None
        if raw is not None:
            kept = await store.keep(tenant, self.ctx.call_id, raw)
            observation = observation._replace(raw=kept)
        kind = EventType.SUCCEEDED if observation.ok else EventType.FAILED
        body = {"corrections": len(self.ctx.corrections)} if self.ctx.corrections else None
        event = self._event(kind, observation.code.value, body)
        seen, state = self._effects(observation)
        awaited = self.ctx.compiled is None or self.ctx.compiled.announced
        if self.entry is None and not seen and not state and not awaited:
            store.note(event)
            return observation
        settled = await store.settle(
            Settle(
                tenant,
                self.ctx.run.run_id,
                self.runtime.clock(),
                self._settled(observation),
                seen,
                state,
                (event,),
            )
        )
        if not settled:
            # Somebody else holds the entry by now; what happened here goes on record all the same.
            store.note(event._replace(body={**event.body, "settled": False}))
        return observation

    def _settled(self, observation: Observation) -> Entry | None:
        if self.entry is None:
            return None
        code = observation.code
        if not self.outcome.began:
            return dataclasses.replace(self.entry, status=Status.FAILED_RETRYABLE, phase=None)
        if code in _MAY_HAVE_HAPPENED:
            return dataclasses.replace(self.entry, phase=Phase.UNKNOWN)
        failed = not observation.ok and code is not Code.OBSERVATION_NORMALIZATION_FAIL
        status = Status.FAILED_FINAL if failed else Status.COMPLETED
        stored = observation.record()
        return dataclasses.replace(self.entry, status=status, phase=None, observation=stored)

    def _effects(
        self, observation: Observation
    ) -> tuple[Mapping[str, str | int], Sequence[tuple[str, str, Any]]]:
        """What the run has seen now, and what the contract declares to leave in its state."""
        contract = self.ctx.record.contract if self.ctx.record else None
        data = observation.data
        if contract is None or data is None or not observation.ok:
            return _NOTHING, ()
        if contract.version_from is None and not contract.state_effects:
            return _NOTHING, ()
        state = [(one.key, one.merge, data.get(one.key, data)) for one in contract.state_effects]
        if contract.version_from is None:
            return {}, state
        resource = resource_of(contract, self.ctx.arguments)
        version: Any = data
        for part in contract.version_from.split("/")[1:]:
            version = version.get(part) if isinstance(version, Mapping) else None
        known = resource is not None and isinstance(version, str | int)
        return ({resource: version} if known else {}), state  # type: ignore[dict-item]

    # --- answers ----------------------------------------------------------------------------------

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
        events = [self._event(EventType.DENIED, "deny", body)]
        if any(gate.name == decision.gate for gate in GATES):
            events.insert(0, self._event(EventType.refused_by(decision.gate), "deny", body))
        fingerprint = f"{_shown(ctx.proposal)}/{code.value}/{decision.rule}"
        times = await self.runtime.store.refuse(
            ctx.principal.tenant, ctx.run.run_id, fingerprint, events
        )
        patience = _PATIENCE if code in _SUSPICIOUS else _PATIENCE_WITH_MISTAKES
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
        if escalate and not seen.response.escalate:
            return seen._replace(response=dataclasses.replace(seen.response, escalate=True))
        return seen

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

    def _event(
        self, kind: EventType, decision: str, body: Mapping[str, Any] | None = None
    ) -> Event:
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


def _shown(proposal: Proposal) -> str:
    """A tool's name as the model wrote it, fit to be kept."""
    return str(proposal.tool)[:128].encode(errors="replace").decode()


def _backoff(attempt: int) -> float:
    """Seconds to wait before another attempt: doubling, with jitter so that callers spread out."""
    return float(0.05 * 2**attempt * (0.5 + random()))  # noqa: S311 - spreading, not secrecy


_FAILURES = {
    Code.TIMEOUT: "The tool did not answer in time.",
    Code.DEPENDENCY_UNAVAILABLE: "Something that the tool needs is not available.",
    Code.UNKNOWN_ERROR: "The tool failed.",
}
