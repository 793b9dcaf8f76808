"""What was done before, and admission. Judges nothing anew; what follows is in `settling`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from time import monotonic

from counterseal.audit import Event, EventType
from counterseal.call.deciding import UNDER_WAY
from counterseal.call.resume import pack
from counterseal.call.settling import UNRECORDED, Settling
from counterseal.call.trail import AGAIN, Again, Patience
from counterseal.codes import Code
from counterseal.contract.model import Contract, OnUnknown
from counterseal.errors import RegistryError, StoreError
from counterseal.execution.attempt import Outcome
from counterseal.execution.probes import ProbeError
from counterseal.gates import semantics
from counterseal.gates.base import Decision, Learned, Verdict, deny
from counterseal.gates.budget import can_ask, exhausted, rate_limited
from counterseal.ledger.entry import Entry, Phase, Status
from counterseal.observation import Observation
from counterseal.positional import made
from counterseal.registry import RegistryRecord
from counterseal.storage.base import NEW_KEY, Admission, Admit, Charge, Refused, Settle

__all__ = ["Passage", "patience_left"]


# Found on their classes anew each time, they would cost as much as a gate.
_REQUESTED, _STARTED = EventType.REQUESTED, EventType.STARTED
_PENDING, _RESERVED = Status.PENDING, Phase.RESERVED
End = Decision | Observation | Again | None
"""How a step ends: a refusal, an answer, "decide anew", or not at all."""


class Passage(Settling):
    """A call's whole way. Made anew for every try."""

    _abandoned = False
    """Whether nobody waits for its admission any more."""

    async def known(self, entry: Entry) -> Decision | Observation | None:
        """As for any duplicate; but where nobody knows what became of it, the destination may."""
        end = self.duplicate(entry)
        if isinstance(end, Observation):
            if self.ctx.preview:
                return end
            self._note_replay(end)
            return end if end.ok else await self._failed_before(end)
        if end is not None or self.takes_over is None:
            return end
        self.takes_over = None
        contract = self._contract_of(entry)
        if contract is None or self._still_runs():
            return self._not_known(1.0)
        if contract.on_unknown is OnUnknown.RETRY_SAME_KEY:
            self._take_over(entry)
            self.in_doubt = True
            return None
        return self._not_known(None) if self.ctx.preview else await self._asked(entry, contract)

    def _note_replay(self, answer: Observation) -> None:
        """That a call was answered from what an earlier one did is on record, too."""
        body = {**self.told(), "of": answer.call_id}
        self.runtime.store.note(self.event(EventType.REPLAYED, answer.code.value, body))

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
        # Before the question: an answer is as old as that.
        rest = patience_left(entry, contract, self.runtime.clock())
        try:
            found = await self.read_back(contract, self._until - self.runtime.clock())
        except ProbeError as error:
            self.runtime.report(self.ctx.call_id, "read_back", error.trace)
            return self._not_known(None)
        if found is not None:
            self.entry, self.reconciled = entry, True
            self.outcome = Outcome(Code.SUCCESS, found)
            return (await self.settle(self.observe()))._replace(idempotency_hit=True)
        if rest > 0:
            if entry.unknown_since is None:  # its worker is gone, and nobody has noticed before
                await self._note_unknown(entry, rest)
            return self._not_known(rest)
        self._take_over(entry)
        return None

    def _take_over(self, entry: Entry) -> None:
        """Go on where somebody else left off; what was approved for it stays approved."""
        self.takes_over = entry.fence
        self.ctx.learn({"takes_over": True})

    async def _note_unknown(self, entry: Entry, rest: float) -> None:
        """Write down since when nobody knows what became of it."""
        ctx, now = self.ctx, self.runtime.clock()
        unknown = entry._replace(phase=Phase.UNKNOWN, unknown_since=now, worker=None)
        request = Settle(ctx.principal.tenant, entry.run_id, now, unknown, {}, (), ())
        await self.runtime.store.settle(request._replace(again_after=rest))

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
        entry = None
        if compiled.keyed:
            if self.key is None:
                self.identify(record)
            entry = self._reservation(record)
        runtime = self.runtime
        request = made(
            Admit,
            (
                ctx.principal.tenant,
                ctx.run.run_id,
                record.name,
                record.version,
                ctx.now,
                self._beyond(ctx.over_budget) if ctx.over_budget else ctx.charges,
                ctx.rates,
                entry,
                None if ctx.approval_spent else ctx.approval_id,
                runtime.registry.stored,
                self._announced() if compiled.announced else (),
                ctx.state_read,
                NEW_KEY if ctx.memory is None else self.takes_over,
                runtime.leases.seconds,
                None if entry is None else self._packed(record),
            ),
        )
        asked = 0.0
        if entry is None:
            admission = await runtime.store.admit(request)
        else:
            asked = monotonic()
            admission = await self._reserve(request)
        if admission.refused is not None:
            return await self._not_admitted(admission)
        self.entry = admission.entry
        if self.entry is not None:
            runtime.leases.hold(self.entry, asked)
        return None

    def _packed(self, record: RegistryRecord) -> bytes:
        """What somebody else needs to go on from the reservation."""
        try:
            hashed, key = record.contract.hash, self.key or ""
            return pack(self.ctx, hashed, self.trace_id, key, self.runtime.vault)
        except (TypeError, ValueError) as error:
            raise StoreError("what is needed to go on from here can't be kept") from error

    async def _reserve(self, request: Admit) -> Admission:
        """Admit what changes something. A caller who goes away meanwhile leaves no reservation."""
        runtime = self.runtime
        told: list[Admission | StoreError] = []
        try:
            await runtime.surely(self._admitted(request, told))
        except asyncio.CancelledError:
            if told:
                await runtime.surely(self._let_go(told[0]))
            else:  # cancelled once more: what goes on without us sees to it
                self._abandoned = True
            raise
        if isinstance(told[0], StoreError):
            raise told[0]
        return told[0]

    async def _admitted(self, request: Admit, told: list[Admission | StoreError]) -> None:
        """Have it told, so that whoever is cancelled meanwhile still learns what came of it."""
        try:
            told.append(await self.runtime.store.admit(request))
        except StoreError as error:
            told.append(error)
        if self._abandoned:
            await self._let_go(told[0])

    async def _let_go(self, admission: Admission | StoreError) -> None:
        if isinstance(admission, StoreError):
            self.runtime.report(self.ctx.call_id, "store", admission)
        elif admission.refused is None:
            self.entry = admission.entry
            await self._settle(self.observe())  # nothing has begun

    def _announced(self) -> Sequence[Event]:
        """What goes on record beforehand. A read can't be half done: its end tells it all."""
        return self.event(_REQUESTED, "allow"), self.event(_STARTED, "allow")

    def _reservation(self, record: RegistryRecord) -> Entry | None:
        if self.key is None:
            return None
        ctx = self.ctx
        return made(
            Entry,
            (
                ctx.principal.tenant,
                self.key,
                self.request,
                _PENDING,
                ctx.call_id,
                record.name,
                record.version,
                _RESERVED,
                1,
                1,
                None,
                None,
                ctx.run.run_id,
                self.runtime.worker,
                False,
                0,
            ),
        )

    async def _not_admitted(self, admission: Admission) -> End:
        if admission.refused is Refused.BUDGET and admission.charge is not None:
            return await self._over_budget(admission.charge, admission.spent)
        if admission.refused is Refused.RATE:
            return self._overruled(rate_limited(admission.retry_after))
        if admission.refused is Refused.DUPLICATE and admission.entry is not None:
            if self.ctx.memory is None:
                return await self.recall() or AGAIN
            end = self.duplicate(admission.entry)
            if isinstance(end, Observation):
                self._note_replay(end)
            return end or AGAIN
        if admission.refused is Refused.EPOCH:
            await self.runtime.catch_up()
        return AGAIN

    def _beyond(self, over: Sequence[str]) -> Sequence[Charge]:
        """What the call costs. Budgets that people allowed it to go beyond have no limit."""
        return [one._replace(limit=inf) if one.budget in over else one for one in self.ctx.charges]

    async def _over_budget(self, charge: Charge, spent: float) -> End:
        """A budget is spent: the end, or a question to people where the budget says so."""
        ctx = self.ctx
        if not can_ask(ctx, charge):
            return self._overruled(exhausted(charge, spent))
        decided = await self.decide_beyond(charge, spent)
        return await self.admit() if decided is None else decided

    async def waited(self, end: Decision, patience: Patience) -> bool:
        """Wait for whoever is at work under the same key. Whether there is something new to see."""
        if end.rule != UNDER_WAY or self.key is None or not patience.left:
            return False
        tenant = self.ctx.principal.tenant
        return await self.runtime.store.wait(tenant, self.key, patience.left)

    def unrecorded(self, error: StoreError) -> Observation:
        """The answer when the store fails: what can't be put on record is not done."""
        self.runtime.report(self.ctx.call_id, "store", error)
        self.refused = deny("ledger", Code.DEPENDENCY_UNAVAILABLE, UNRECORDED, rule="store-failed")
        self.trail.add(self.refused)
        return self.answer(self.refused)

    def _overruled(self, decision: Decision) -> Decision:
        """The budget gate's last word, in place of its first."""
        self.trail.overrule(decision)
        return decision


def patience_left(entry: Entry, contract: Contract, now: float) -> float:
    """How long "not there" must not be taken for "not done": it may still be on its way."""
    since = now if entry.unknown_since is None else entry.unknown_since
    return since + contract.runtime.timeout_ms / 1000 - now
