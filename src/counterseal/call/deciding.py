"""From a proposal to a decision: receive, check, recall, decide.

Spends and executes nothing; what a decision leads to is in `passage.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from counterseal.approvals.terms import Then
from counterseal.call.requesting import Requesting, beyond_budget
from counterseal.call.trail import Again, Preview
from counterseal.codes import Code
from counterseal.contract.model import OnUnknown
from counterseal.gates import BEFORE_RECALL
from counterseal.gates.base import Decision, GateContext, deny
from counterseal.gates.parse import is_sound
from counterseal.ledger import entry as ledger
from counterseal.ledger.entry import Answer, Entry, Phase
from counterseal.ledger.rules import adrift
from counterseal.observation import Observation
from counterseal.observation.stored import from_stored
from counterseal.proposal import Proposal
from counterseal.registry import Reason, Refusal, RegistryRecord
from counterseal.storage.base import Charge, HeldStatus, Memory, RunRecord

__all__ = ["UNDER_WAY", "Ahead", "Deciding", "as_proposed"]

UNDER_WAY = "in-progress"
"""The rule that answers who comes with a key while somebody is at work on it."""
_RETRY_AFTER = 1.0


class Ahead(NamedTuple):
    """What the steps before one will have spent, and whether they will have changed anything."""

    of_run: defaultdict[str, float]
    of_tenant: defaultdict[str, float]
    mutates: bool

    def upon(self, memory: Memory) -> Memory:
        """The memory that a step will find."""
        return memory._replace(
            run_counters=_sum(memory.run_counters, self.of_run),
            tenant_counters=_sum(memory.tenant_counters, self.of_tenant),
        )


def as_proposed(ctx: GateContext) -> Mapping[str, Any]:
    """What a key stands for: the arguments before any correction, by a plan's judge or by a gate.

    A step that was corrected and the step as the model wrote it are one operation.
    """
    first: object = ctx.proposal.proposed
    if first is not None and isinstance(first, Mapping) and is_sound(dict(first)):
        return first
    return ctx.corrections[0].before if ctx.corrections else ctx.arguments


def _sum(spent: Mapping[str, float], planned: Mapping[str, float]) -> dict[str, float]:
    return {**spent, **{key: spent.get(key, 0.0) + more for key, more in planned.items()}}


class Deciding(Requesting):
    """The steps before admission. Nothing is spent or executed; a call may be held."""

    request = b""
    """The hash of the arguments as proposed."""
    recalls = False
    """Whether anything stored bears on the call before it is decided on."""
    again = False
    """Whether it was tried before, and something was in the way."""
    decided_since = 0
    """How many decisions there were before the gates after recall were asked."""
    beyond: tuple[Decision, ...] = ()
    """What is asked of people because budgets are spent."""
    takes_over: int | None = None
    """The fence of an earlier call under the same key, whose outcome is unknown."""
    _weighed = False
    """Whether what was spent was recalled, too."""

    def receive(self, run: RunRecord) -> Decision | None:
        """Find the version of the tool that this run uses; parse; shape and authority.

        Nothing is read from the store for it.
        """
        ctx = self.ctx
        found = self._resolved(run, ctx.proposal)
        if isinstance(found, Refusal):
            ctx.learn({"run": run, "refusal": found})
        else:
            compiled = self.runtime.compiled_for(found)
            ctx.learn({"run": run, "record": found, "compiled": compiled})
            self.recalls = compiled.recalls or self.again
        return self.ask(BEFORE_RECALL)

    def _resolved(self, run: RunRecord, proposal: Proposal) -> RegistryRecord | Refusal:
        """What the run began with, it keeps; a proposal can't talk it into another version."""
        who, registry = self.ctx.principal, self.ctx.registry
        tool, version = proposal.tool, proposal.version
        try:
            pinned = run.pins.get(tool)
            hash(version)
        except TypeError:  # no name at all, which the first gate will say
            return Refusal(reason=Reason.UNKNOWN, message="There is no such tool here.")
        if pinned is not None:
            if version is not None and version != pinned:
                return Refusal(
                    reason=Reason.VERSION_UNKNOWN,
                    message=f"This run uses version {pinned} of {tool}.",
                )
            version = pinned
            known = registry.chosen(tool, version, who.tenant)
            if known is not None:
                return known
        return registry.resolve(
            tool, tenant=who.tenant, run_id=run.run_id, version=version, agent=who.agent
        )

    async def recall(self) -> Decision | Observation | None:
        """One read. What was done under this key before is answered from memory."""
        ctx, record, compiled = self.ctx, self.ctx.record, self.ctx.compiled
        if record is None or compiled is None or not (compiled.keyed or compiled.recalls):
            return None
        if compiled.keyed:
            self.identify(record)
        entry = (await self._remember(spent=compiled.weighs or ctx.preview)).entry
        return None if entry is None else await self.known(entry)

    def identify(self, record: RegistryRecord) -> None:
        """Work out under which key, and as which request, the ledger knows the call."""
        given = as_proposed(self.ctx)
        self.request = ledger.request_hash(given)
        self.key = self._derived_key(record, given)

    async def known(self, entry: Entry) -> Decision | Observation | None:
        """What a call gets that finds an entry under its key."""
        return self.duplicate(entry)

    async def _remember(self, *, spent: bool = True) -> Memory:
        ctx = self.ctx
        principal, run_id = ctx.principal, ctx.run.run_id
        who = (principal.agent, principal.user)
        store, tenant = self.runtime.store, principal.tenant
        memory = await store.recall(tenant, run_id, self.key, who, spent=spent)
        self._weighed = spent
        ctx.learn({"memory": memory})
        return memory

    def _derived_key(self, record: RegistryRecord, given: Mapping[str, Any]) -> str:
        ctx, hashed = self.ctx, self.request or None
        run, who = ctx.run, ctx.principal
        return ledger.derive_key(
            record.contract, ctx.proposal, who, run.run_id, run.started_at, given, hashed
        )

    def duplicate(self, entry: Entry) -> Decision | Observation | None:
        """What a second request under the same key gets. Nothing is executed or spent."""
        found = ledger.duplicate(entry, self.request)
        if found is Answer.EXECUTE:
            return None
        if found is Answer.MISMATCH:
            reason = "The key was used for another request."
            return deny("ledger", Code.SIGNATURE_MISMATCH, reason)
        if found is Answer.REPLAY and self._repeats() and not self._was_carried_out():
            reason = "This call was made before. To mean it again, give an operation_id or a key."
            return deny("ledger", Code.SEMANTIC_INVALIDITY, reason, rule="repeat-unnamed")
        if found is Answer.REPLAY and entry.observation is not None:
            # The outcome is the first call's; the trace is that of whoever asks now.
            return from_stored(entry.observation, idempotency_hit=True, trace_id=self.trace_id)
        if found is Answer.EXPIRED:
            reason = "The answer to this key is no longer kept."
            code, action = Code.IDEMPOTENCY_CONFLICT, "use_new_operation"
            return deny("ledger", code, reason, rule="key-expired", next_action=action)
        if self._may_find_out(entry):
            self.takes_over = entry.fence
            return None
        code = Code.IDEMPOTENCY_CONFLICT
        if entry.phase is Phase.ESCALATED or adrift(entry):
            reason = "It is not known whether an earlier call with this key took effect."
            return deny("ledger", code, reason, rule="outcome-unknown", next_action="escalate")
        reason = "A call with the same key is under way."
        return deny("ledger", code, reason, rule=UNDER_WAY, retry_after=_RETRY_AFTER)

    def _may_find_out(self, entry: Entry) -> bool:
        """Whether the contract says what to do about an outcome that nobody knows."""
        record = self.ctx.record
        if record is None or not adrift(entry):
            return False
        return record.contract.on_unknown is not OnUnknown.ESCALATE

    def _repeats(self) -> bool:
        proposal, record = self.ctx.proposal, self.ctx.record
        unnamed = proposal.key is None and proposal.operation_id is None
        return unnamed and record is not None and record.contract.repeatable

    def _was_carried_out(self) -> bool:
        """Whether it was done for this caller after an approval, who now asks what came of it."""
        held, who = self.ctx.memory.held if self.ctx.memory else None, self.ctx.principal
        if held is None or held.status is not HeldStatus.SPENT:
            return False
        asked = (held.agent, held.user) == (who.agent, who.user)
        return asked and held.demand.get("then") == Then.EXECUTE

    async def decide(self) -> Decision | Observation | Again | None:
        """Rules, policy, state, approval, budget. Asks for approval only where the rest allows."""
        ctx, compiled = self.ctx, self.ctx.compiled
        self.decided_since = len(self.trail.told) // 2
        if compiled is not None and not compiled.waits:
            refused = self.ask(compiled.gates)
        else:
            refused = await self.ask_all()
        record = ctx.record
        if refused is not None and ctx.memory is None:
            # What may not be done any more may have been done before.
            return await self.recall() or refused
        if refused is None and self.asked and record and self.key is None:
            # Somebody must be asked, so what was asked and answered before matters after all.
            self.identify(record)
            await self._remember()
            self.forget(self.decided_since)
            refused = await self.ask_all()
        memory = ctx.memory
        if memory is not None and memory.held and memory.held.approval_id == ctx.approval_id:
            self.take_on(memory.held.trace_id)
        if refused is not None or self.asked is None:
            return refused
        over = self._overdrawn()
        if over is not None:
            return await self.decide_beyond(*over)
        return await self.hold(self.asked)

    async def decide_beyond(
        self, charge: Charge, spent: float
    ) -> Decision | Observation | Again | None:
        """Decide anew on a call that goes beyond a budget: every gate has to know, and people."""
        if self.key is not None and not self._weighed:
            await self._remember()  # people are asked about every budget at once
        self.beyond += (beyond_budget(charge, spent),)
        self.ctx.learn({"over_budget": (*self.ctx.over_budget, charge.budget)})
        self.forget(self.decided_since)
        return await self.decide()

    def _overdrawn(self) -> tuple[Charge, float] | None:
        """A budget that the call would go beyond, and what was spent of it."""
        memory, known = self.ctx.memory, self.ctx.over_budget
        if memory is None:
            return None
        for charge in self.ctx.charges:
            counters = memory.run_counters if charge.of_run else memory.tenant_counters
            spent = counters.get(charge.counter, 0.0)
            if charge.budget not in known and charge.exceeds(spent):
                return charge, spent
        return None

    def forget(self, since: int) -> None:
        super().forget(since)
        self.ctx.learn({"approvals": self.beyond})

    async def preview(self, run: RunRecord, ahead: Ahead | None = None) -> Preview:
        """What the gates say. Nothing is recorded, held, spent or executed."""
        self.ctx.learn({"preview": True})
        # What a step before may change is not worth asking about yet.
        self.unasked = ahead is not None and ahead.mutates
        stopped: Decision | None = self.receive(run)
        if stopped is None:
            known = await self.recall()
            stopped = known if isinstance(known, Decision) else None
            if stopped is not None:
                self.trail.add(stopped)  # it was found in the ledger, not by a gate
            if isinstance(known, Observation):
                return Preview(
                    decisions=tuple(self.trail),
                    arguments=self.ctx.arguments,
                    verdict="allow",
                    code=known.code.value,
                    reason="It was done before; the answer would come from memory.",
                )
            memory = self.ctx.memory or await self._remember()
            if ahead is not None:
                self.ctx.learn({"memory": ahead.upon(memory)})
        if stopped is None:
            stopped = await self.ask_all() or self.asked
            over = self._overdrawn()
            if stopped is None and over is not None:
                self.asked = stopped = beyond_budget(*over)
        last = stopped or self.trail[-1].decision
        return Preview(
            decisions=tuple(self.trail),
            arguments=self.ctx.arguments,
            verdict=last.verdict.value,
            code=last.code.value if last.code else None,
            reason=last.reason,
        )
