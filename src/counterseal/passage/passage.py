"""From a decision to an answer: admit, execute, observe, settle. Judges nothing anew."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from random import random
from time import perf_counter_ns
from types import MappingProxyType
from typing import Any

from counterseal.audit import Event, EventType
from counterseal.canonical import at
from counterseal.codes import Code
from counterseal.contract.model import Contract
from counterseal.contract.surroundings import Context
from counterseal.execution.local import Outcome, Work, deadline, execute
from counterseal.gates.base import Decision, deny
from counterseal.gates.budget import exhausted, rate_limited
from counterseal.gates.state import resource_of
from counterseal.ledger import Entry, Phase, Status
from counterseal.observation import (
    NOT_VERIFIED,
    Observation,
    Observed,
    VerificationHint,
    answer,
    observe,
)
from counterseal.passage.deciding import Deciding
from counterseal.registry import RegistryRecord
from counterseal.storage.base import Admission, Admit, Charge, Refused, Settle

__all__ = ["AGAIN", "Again", "Passage"]

_DONE = Outcome(Code.SUCCESS)
_NOTHING: Mapping[str, str | int] = MappingProxyType({})
_MAY_HAVE_HAPPENED = {Code.TIMEOUT, Code.DEPENDENCY_UNAVAILABLE}
_FAILURES = {
    Code.TIMEOUT: "The tool did not answer in time.",
    Code.DEPENDENCY_UNAVAILABLE: "Something that the tool needs is not available.",
    Code.UNKNOWN_ERROR: "The tool failed.",
}


class Again:
    """Returned by *admit*: what was decided on has changed; decide anew."""


AGAIN = Again()

End = Decision | Observation | Again | None
"""How a step ends: a refusal, an answer, "decide anew", or not at all."""


class Passage(Deciding):
    """A call's whole way. Made anew for every try."""

    entry: Entry | None = None
    outcome = _DONE
    observed: Observed | None = None

    async def admit(self) -> End:
        """One transaction: check again what can have changed, spend, reserve, record."""
        ctx, record = self.ctx, self.ctx.record
        compiled = ctx.compiled
        if record is None or compiled is None or self.epoch != self.runtime.registry.epoch:
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
                self._reservation(record) if compiled.keyed else None,
                ctx.approval_id,
                self.epoch,
                self._announced() if compiled.announced else (),
            )
        )
        self.entry = admission.entry
        return None if admission.refused is None else self._not_admitted(admission)

    def _announced(self) -> Sequence[Event]:
        """What goes on record beforehand. A read can't be half done: its end tells it all."""
        requested = self.event(EventType.REQUESTED, "allow")
        return requested, requested._replace(type=EventType.STARTED)

    def _reservation(self, record: RegistryRecord) -> Entry | None:
        if self.key is None:
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
            return self.duplicate(admission.entry) or AGAIN
        return AGAIN

    def _overruled(self, decision: Decision) -> Decision:
        """The budget gate's last word, in place of its first."""
        self.trail.decisions[-1] = decision
        return decision

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
        except (asyncio.CancelledError, KeyboardInterrupt):
            self.outcome = Outcome(Code.TIMEOUT)
            self.runtime.tell(self, await asyncio.shield(self.settle(self.observe())))
            raise

    async def _may_retry(self, contract: Contract) -> bool:
        """Whether a failed read may be tried again. What may have changed something never is."""
        ctx, limits = self.ctx, contract.runtime
        if self.epoch != self.runtime.registry.epoch:
            return False  # a kill stops the next attempt too
        if ctx.compiled is None or ctx.compiled.mutates or self.attempt > limits.max_retries:
            return False
        if not ctx.compiled.profile.responses[self.outcome.code].retryable:
            return False
        budgets, lasted = ctx.run.budgets, self.runtime.clock() - ctx.run.started_at
        if budgets.seconds is not None and lasted >= budgets.seconds:
            return False
        # Another attempt costs what a call costs, in money and in rate.
        charges = [charge for charge in ctx.charges if charge.budget.endswith(".money")]
        if budgets.retries is not None:
            charges.append(Charge("run.retries", "retries", 1, budgets.retries, of_run=True))
        admission = await self.runtime.store.admit(
            Admit(
                tenant=ctx.principal.tenant,
                run_id=ctx.run.run_id,
                tool=contract.name,
                version=contract.version,
                now=self.runtime.clock(),
                charges=charges,
                rates=ctx.rates,
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
        own = ctx.compiled.profile
        try:
            self.observed = observe(
                outcome.value,
                compiled_output_validator=ctx.compiled.output,
                contract=record.contract,
                redactor=self.runtime.redactor,
                own=own,
            )
        # The tool has run: whatever its output does to us, the call must come to its end.
        except Exception as error:  # noqa: BLE001 - an output is somebody else's code too
            self.runtime.report(ctx.call_id, "observing", error)
            code = Code.OBSERVATION_NORMALIZATION_FAIL
            return self.answer(deny("execution", code, "The tool's output can't be read."))
        return answer(
            self.observed,
            record.contract,
            own=own,
            call_id=ctx.call_id,
            timestamp=ctx.now,
            latency_ms=(perf_counter_ns() - self.started) // 1_000_000,
            trace_id=self.trace_id,
            decisions=self.trail,
            warnings=self._warnings() if ctx.corrections else (),
            approval_id=ctx.approval_id,
            attempt=self.entry.attempts if self.entry else self.attempt,
            verification=self._verification(record.contract) if own.verified else NOT_VERIFIED,
        )

    def _verification(self, contract: Contract) -> VerificationHint:
        if self.observed is None or self.observed.data is None:
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
        event = self.event(kind, observation.code.value, body)
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
        if contract is None or not (contract.version_from or contract.state_effects):
            return _NOTHING, ()
        output = self.observed.output if self.observed else None
        if output is None or not observation.ok:
            return _NOTHING, ()
        # What was checked, not what is shown: that may be a summary, or wrapped in steps.
        data = output.get("data") if observation.code is Code.PARTIAL_SUCCESS else output
        if not isinstance(data, Mapping):
            return _NOTHING, ()
        clean, _ = self.runtime.redactor.redact(data)
        state = [(one.key, one.merge, clean.get(one.key, clean)) for one in contract.state_effects]
        fitting = [
            (key, merge, value)
            for key, merge, value in state
            if merge != "merge_dict" or isinstance(value, Mapping)
        ]
        resource = resource_of(contract, self.ctx.arguments)
        version = at(data, contract.version_from) if contract.version_from else None
        if resource is None or not isinstance(version, str | int):
            return _NOTHING, fitting
        return {resource: version}, fitting


def _backoff(attempt: int) -> float:
    """Seconds to wait before another attempt: doubling, with jitter so that callers spread out."""
    return float(0.05 * 2**attempt * (0.5 + random()))  # noqa: S311 - spreading, not secrecy
