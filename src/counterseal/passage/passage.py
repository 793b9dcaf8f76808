"""What was done before, and admission. Judges nothing anew; what follows is in `settling`."""

from __future__ import annotations

from collections.abc import Sequence

from counterseal.audit import Event, EventType
from counterseal.codes import Code
from counterseal.contract.model import OnUnknown
from counterseal.execution.hooks import ProbeError
from counterseal.execution.work import Outcome
from counterseal.gates.base import Decision, deny
from counterseal.gates.budget import exhausted, rate_limited
from counterseal.ledger import Entry, Phase, Status
from counterseal.observation import Observation
from counterseal.passage.settling import Settling
from counterseal.registry import RegistryRecord
from counterseal.storage.base import Admission, Admit, Refused

__all__ = ["AGAIN", "Again", "Passage"]


class Again:
    """Returned by *admit*: what was decided on has changed; decide anew."""


AGAIN = Again()

End = Decision | Observation | Again | None
"""How a step ends: a refusal, an answer, "decide anew", or not at all."""


class Passage(Settling):
    """A call's whole way. Made anew for every try."""

    async def known(self, entry: Entry) -> Decision | Observation | None:
        """As for any duplicate; but where nobody knows what became of it, the destination may."""
        end = self.duplicate(entry)
        if isinstance(end, Observation):
            return end if end.ok or self.ctx.preview else await self._failed_before(end)
        record = self.ctx.record
        if end is not None or self.takes_over is None or record is None:
            return end
        if record.contract.on_unknown is not OnUnknown.READ_BACK:
            return None
        self.takes_over = None
        if self.ctx.preview:
            return self._not_known(None)
        try:
            found = await self.read_back(record.contract)
        except ProbeError as error:
            self.runtime.report(self.ctx.call_id, "read_back", error.trace)
            return self._not_known(None)
        if found is not None:
            self.entry, self.reconciled = entry, True
            self.outcome = Outcome(Code.SUCCESS, found)
            return (await self.settle(self.observe()))._replace(idempotency_hit=True)
        # It may still be on its way: only after as long again is "not there" taken for "not done".
        patience = record.contract.runtime.timeout_ms / 1000
        rest = (entry.unknown_since or 0.0) + patience - self.runtime.clock()
        if rest > 0:
            return self._not_known(rest)
        self.takes_over = entry.fence
        return None

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
                ctx.state_read,
                self.takes_over,
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
