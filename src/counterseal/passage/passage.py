"""What was done before, and admission. Judges nothing anew; what follows is in `settling`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from counterseal.audit import Event, EventType
from counterseal.codes import Code
from counterseal.contract.model import Contract, OnUnknown
from counterseal.errors import RegistryError
from counterseal.execution.hooks import ProbeError
from counterseal.execution.work import Outcome
from counterseal.gates import semantics
from counterseal.gates.base import Decision, Learned, Verdict, deny
from counterseal.gates.budget import exhausted, rate_limited
from counterseal.ledger import Entry, Phase, Status
from counterseal.observation import Observation
from counterseal.passage.settling import Settling
from counterseal.passage.trail import AGAIN, Again
from counterseal.registry import RegistryRecord
from counterseal.storage.base import Admission, Admit, Refused

__all__ = ["Passage"]


End = Decision | Observation | Again | None
"""How a step ends: a refusal, an answer, "decide anew", or not at all."""


class Passage(Settling):
    """A call's whole way. Made anew for every try."""

    async def known(self, entry: Entry) -> Decision | Observation | None:
        """As for any duplicate; but where nobody knows what became of it, the destination may."""
        end = self.duplicate(entry)
        if isinstance(end, Observation):
            return end if end.ok or self.ctx.preview else await self._failed_before(end)
        if end is not None or self.takes_over is None:
            return end
        self.takes_over = None
        contract = self._contract_of(entry)
        if contract is None or self._still_runs():
            return self._not_known(1.0)
        if contract.on_unknown is OnUnknown.RETRY_SAME_KEY:
            self.takes_over, self.in_doubt = entry.fence, True
            return None
        return self._not_known(None) if self.ctx.preview else await self._asked(entry, contract)

    def _contract_of(self, entry: Entry) -> Contract | None:
        """What was executed: only that version can say what to do about its outcome."""
        record = self.ctx.record
        if record is not None and record.version == entry.version:
            return record.contract
        try:
            older = self.ctx.registry.get(entry.tool, entry.version).contract
        except RegistryError:
            return None
        return None if older.on_unknown is OnUnknown.ESCALATE else older

    def _still_runs(self) -> bool:
        tenant = self.ctx.principal.tenant
        return self.key is not None and self.runtime.executor.still_runs(tenant, self.key)

    async def _asked(self, entry: Entry, contract: Contract) -> Decision | Observation | None:
        """What the destination says of a call whose answer was lost."""
        if not self._corrected():
            return self._not_known(None)
        try:
            found = await self.read_back(contract, self._until - self.runtime.clock())
        except ProbeError as error:
            self.runtime.report(self.ctx.call_id, "read_back", error.trace)
            return self._not_known(None)
        if found is not None:
            self.entry, self.reconciled = entry, True
            self.outcome = Outcome(Code.SUCCESS, found)
            return (await self.settle(self.observe()))._replace(idempotency_hit=True)
        # It may still be on its way: only after as long again is "not there" taken for "not done".
        patience = contract.runtime.timeout_ms / 1000
        rest = (entry.unknown_since or 0.0) + patience - self.runtime.clock()
        if rest > 0:
            return self._not_known(rest)
        self.takes_over = entry.fence
        return None

    def _corrected(self) -> bool:
        """Let the invariants correct the arguments, as they did before the first execution."""
        said = semantics.check(self.ctx)
        decision = said.decision if isinstance(said, Learned) else said
        if decision.verdict is not Verdict.ALLOW:
            return False
        if isinstance(said, Learned):
            self.ctx.learn(said.found)
        return True

    async def _failed_before(self, replayed: Observation) -> Observation:
        """The answer of a call that failed, asked for again: the same mistake once more."""
        answer = await self.bounded(replayed)
        if answer is not replayed:
            self.note_path(answer)
        return answer

    def _not_known(self, retry_after: float | None) -> Decision:
        reason = "It is not known yet whether an earlier call with this key took effect."
        code = Code.IDEMPOTENCY_CONFLICT
        return deny("ledger", code, reason, rule="outcome-unknown", retry_after=retry_after)

    async def admit(self) -> End:
        """One transaction: check again what can have changed, spend, reserve, record."""
        ctx, record = self.ctx, self.ctx.record
        compiled = ctx.compiled
        if record is None or compiled is None or self.epoch != self.runtime.registry.epoch:
            return AGAIN
        request = Admit(
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
            ctx.state_read,
            self.takes_over,
        )
        if request.entry is None:
            admission = await self.runtime.store.admit(request)
        else:
            admission = await self._reserve(request)
        self.entry = admission.entry
        return None if admission.refused is None else self._not_admitted(admission)

    async def _reserve(self, request: Admit) -> Admission:
        """Admit what changes something. A caller who goes away meanwhile leaves no reservation."""
        admitting = self.runtime.begin(self.runtime.store.admit(request))
        try:
            return await asyncio.shield(admitting)
        except asyncio.CancelledError:
            await self.runtime.surely(self._let_go(admitting))
            raise

    async def _let_go(self, admitting: asyncio.Future[Admission]) -> None:
        admission = await admitting
        if admission.refused is None:
            self.entry = admission.entry
            await self._settle(self.observe())  # nothing has begun

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
