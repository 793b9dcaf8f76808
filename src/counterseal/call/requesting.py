"""Asking people: a call that somebody must approve is kept for them, with what they are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from counterseal.approvals.terms import Pattern, Terms, Then
from counterseal.audit import EventType
from counterseal.call.holding import UnkeepableError, can_be_kept, held_of
from counterseal.call.telling import Telling
from counterseal.call.trail import AGAIN, Again
from counterseal.codes import Code
from counterseal.contract.model import Contract
from counterseal.execution.probes import ProbeError, ProbeRequest, ask
from counterseal.gates.approval import demand_of, ended
from counterseal.gates.base import Decision, deny, hold
from counterseal.gates.context import context_for
from counterseal.observation import Observation
from counterseal.storage.base import Charge, HeldStatus

__all__ = ["Requesting", "beyond_budget"]

_SUPERSEDED = "Something else was asked for under the same key, or on other terms."
_NAMELESS = "The call has no key, so nobody can be asked about it."
_NOBODY = "The user would have to consent, and this call is made on nobody's behalf."
_UNKEEPABLE = "The call can't be kept for approval."
_OVERTAKEN = {
    HeldStatus.WAITING: (HeldStatus.EXPIRED, EventType.APPROVAL_EXPIRED),
    HeldStatus.APPROVED: (HeldStatus.VOID, EventType.APPROVAL_VOID),
}


def beyond_budget(charge: Charge, spent: float) -> Decision:
    """A demand to let a call go beyond a budget, once."""
    more, limit = f"{charge.amount:g} more", f"{spent:g} of {charge.limit:g}"
    reason = f"The budget {charge.budget} is spent: {limit}, and this call takes {more}."
    rule = f"budget:{charge.budget}"
    terms = Terms(approvers=1, reason=reason, rule=rule)
    return hold("budget", reason, rule=rule, approvers=1, terms=terms)


class Requesting(Telling):
    """What becomes of a call that only people can allow."""

    async def hold(self, demand: Decision) -> Decision | Observation | Again:
        """Keep the proposal for a person, unless an approval for exactly this is there already."""
        record, ctx = self.ctx.record, self.ctx
        if record is None or self.key is None:
            return deny("approval", Code.UNKNOWN_ERROR, _NAMELESS)
        asked = demand_of(ctx)
        if asked.pattern is Pattern.USER_CONSENT and ctx.principal.user is None:
            code, action = Code.CONFIRMATION_MISSING, "replan"
            return deny("approval", code, _NOBODY, rule=demand.rule, next_action=action)
        if not can_be_kept(ctx.proposal.configurable):
            asked = replace(asked, then=Then.RESUBMIT)  # only the caller can give it once more
        after = await self._after(record.contract)
        try:
            held = held_of(
                ctx,
                record.contract,
                asked,
                key=self.key,
                after=after,
                trace_id=self.trace_id,
                vault=self.runtime.vault,
            )
        except UnkeepableError as error:
            self.runtime.report(ctx.call_id, "approval", error)
            return deny("approval", Code.UNKNOWN_ERROR, _UNKEEPABLE, rule="unkeepable")
        body = {"rule": demand.rule, "approval_id": held.approval_id, **self.config_told()}
        body |= self.told()
        event = self.event(EventType.APPROVAL_REQUIRED, "require_approval", body)
        made = held.approval_id
        held = await self.runtime.store.hold(held, [event], self.runtime.notices(held))
        if held.approval_id == made:
            await self._supersede()
        if held.status is HeldStatus.APPROVED and ctx.now < held.expires_at:
            return AGAIN  # approved this very moment: every gate must see it, *state* too
        return ended(held, demand, ctx.now) or self.answer(demand, approval_id=held.approval_id)

    async def _supersede(self) -> None:
        """End the request that the same caller has replaced by another, under the same key."""
        ctx, before = self.ctx, self.ctx.memory.held if self.ctx.memory else None
        who = ctx.principal
        if before is None or (before.agent, before.user) != (who.agent, who.user):
            return
        told = {"approval_id": before.approval_id, "reason": _SUPERSEDED}
        if before.status in _OVERTAKEN:
            status, kind = _OVERTAKEN[before.status]
            event = self.event(kind, status.value, told)
            await self.runtime.store.decide(who.tenant, before.approval_id, status, [event])

    async def _after(self, contract: Contract) -> Mapping[str, Any] | None:
        """What the contract's preview says the call would lead to; None when it can't say."""
        if contract.preview is None:
            return None
        ctx, seconds = self.ctx, contract.runtime.timeout_ms / 1000
        about = partial(context_for, ctx, contract, until=ctx.now + seconds)
        asked = ProbeRequest(contract, ctx.arguments, about, ctx.registry, ctx.executor, seconds)
        try:
            found = await ask(contract.preview, asked)
        except ProbeError as error:
            self.runtime.report(ctx.call_id, "preview", error.trace)
            return None
        return found if isinstance(found, Mapping) else None
