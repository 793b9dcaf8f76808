"""The seventh gate: if somebody must say yes, has somebody?

The demand is an obligation that earlier gates laid down; here it is met by an approval that stands
for exactly these arguments and this config, or the call is held. Nobody is asked yet: that happens
only when the budget gate would let the call through as well.

Where there is a key for it, an approval is what is proven, and not what stands in a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from counterseal.approvals.terms import Demand, Then, contract_terms, strictest
from counterseal.approvals.tokens import Expected
from counterseal.approvals.votes import Choice
from counterseal.canonical import digest
from counterseal.codes import Code
from counterseal.gates.base import Decision, GateContext, Learned, allow, deny, require_approval
from counterseal.gates.proof import has_keys, unproven, votes_of
from counterseal.ledger.rules import stands
from counterseal.observation import FieldError, neutralise
from counterseal.proposal import System
from counterseal.storage.base import Held, HeldStatus

__all__ = ["ALLOW", "approval_hash", "check", "demand_of", "ended", "hash_of", "request_for"]

NAME: Final = "approval"
ALLOW = allow(NAME)
_COVERED = allow(NAME, rule="covered-by-original")
_ENDED = {
    HeldStatus.REJECTED: "Approval was refused.",
    HeldStatus.EXPIRED: "The request for approval expired.",
}
_LONGEST_COMMENT = 300


def check(ctx: GateContext) -> Decision | Learned:
    """Whether the obligation is met, still open, or has been answered with no."""
    if not ctx.approvals:
        return ALLOW
    demand = ctx.approvals[0]
    if isinstance(ctx.principal, System) and ctx.principal.covered:
        return _COVERED
    held = request_for(ctx)
    if held is None:
        return require_approval(NAME, demand.reason, rule=demand.rule)
    over = ended(held, demand, ctx.now, ctx.run.run_id)
    if over is not None:
        return over
    if held.status is HeldStatus.SPENT and ctx.takes_over:
        decision = allow(NAME, rule=demand.rule)
        return Learned(decision, {"approval_id": held.approval_id, "approval_spent": True})
    if held.status is HeldStatus.APPROVED and ctx.now < held.expires_at:
        refused = _unproven(ctx, held, demand)
        if refused is not None:
            return refused
        return Learned(allow(NAME, rule=demand.rule), {"approval_id": held.approval_id})
    return require_approval(NAME, demand.reason, rule=demand.rule)


def request_for(ctx: GateContext) -> Held | None:
    """The request made for exactly this: these arguments and config, this contract, these terms.

    What was approved under another version, for somebody else, or on easier terms than are asked
    now, was something else.
    """
    held = ctx.memory.held if ctx.memory else None
    if held is None or ctx.record is None or held.contract_hash != ctx.record.contract.hash:
        return None
    if (held.agent, held.user) != (ctx.principal.agent, ctx.principal.user):
        return None
    if held.approval_hash != approval_hash(ctx):
        return None
    try:
        given = Demand.from_record(held.demand)
    except (ValueError, KeyError, TypeError):
        return None  # whatever that is, nobody here has asked for it
    return held if _as_strict(given, demand_of(ctx)) else None


def approval_hash(ctx: GateContext) -> str:
    """What a person says yes to: the arguments as they would be executed, and what goes with them.

    That is the config, and the budgets that the call would go beyond.
    """
    return hash_of(ctx.arguments, ctx.config_shown, ctx.over_budget)


def hash_of(
    arguments: Mapping[str, Any], config: Mapping[str, Any], over_budget: Iterable[str]
) -> str:
    """The same of a call that was kept."""
    shown: Any = {"arguments": arguments, "config": config} if config else arguments
    over = sorted(over_budget)
    return digest({"call": shown, "over_budget": over} if over else shown)


def demand_of(ctx: GateContext) -> Demand:
    """What an approval of this call takes: the strictest of contract and policy."""
    asked = [one.terms for one in ctx.approvals if one.terms is not None]
    own = [] if ctx.record is None else [contract_terms(ctx.record.contract)]
    demand = strictest([*own, *asked])
    if isinstance(ctx.principal, System):
        demand = replace(demand, then=Then.RESUBMIT)  # who reverses a call tries again by itself
    first = ctx.approvals[0] if ctx.approvals else None
    if first is None:
        return demand
    most = max((one.approvers or 0 for one in ctx.approvals), default=0)
    people = max(demand.approvers, most, 1)
    return replace(demand, approvers=people, reason=first.reason, rule=first.rule)


def _as_strict(given: Demand, asked: Demand) -> bool:
    """Whether what was asked for then leaves nothing open that is asked for now."""
    return replace(strictest([given, asked]), reason=given.reason, rule=given.rule) == given


def _unproven(ctx: GateContext, held: Held, asked: Decision) -> Decision | None:
    """The refusal of an approval that is not proven to stand for exactly this call."""
    ring, record = ctx.keys, ctx.record
    if ring is None or record is None or not has_keys(ring):
        return None
    given, demand = ctx.proposal.approval, demand_of(ctx)
    expected = Expected(
        approval_id=held.approval_id,
        trace_id=held.trace_id,
        tenant=held.tenant,
        tool_name=record.name,
        tool_version=record.version,
        contract_hash=record.contract.hash,
        payload_hash=approval_hash(ctx),
        approvers=demand.approvers,
    )
    why = unproven(held, given or held.token, ring, expected, demand, ctx.now)
    if why == "expired":
        return _over(held, HeldStatus.EXPIRED, asked)
    if why is None:
        return None
    return deny(
        NAME,
        Code.CONFIRMATION_MISSING,
        "The approval of this call can't be proven.",
        rule=f"token-{why}",
        next_action="escalate",
        approval_id=held.approval_id,
        # Then somebody is asked anew; but not because a key has not got here yet, or the clock is
        # behind, nor for whatever a caller passes on.
        voids=given is None and why not in ("unknown-key", "early"),
    )


def ended(held: Held, demand: Decision, now: float, run_id: str | None = None) -> Decision | None:
    """The refusal that a person's no comes to; and for a while and for this run, nobody's answer.

    Without a run's id, nobody's answer is a refusal as long as it is remembered.
    """
    status = held.status
    if status in (HeldStatus.WAITING, HeldStatus.APPROVED) and now >= held.expires_at:
        status = HeldStatus.EXPIRED  # whether or not somebody has written it down yet
    if status not in _ENDED:
        return None
    if run_id is not None and not stands(held, run_id, now):
        return None
    return _over(held, status, demand)


def _over(held: Held, status: HeldStatus, demand: Decision) -> Decision:
    said = _comment(held)
    reason = f"{_ENDED[status]} The approver says: {said}" if said else _ENDED[status]
    return deny(
        NAME,
        Code.CONFIRMATION_MISSING,
        reason,
        field_errors=(FieldError("", reason, status.value, actual=said),),
        rule=demand.rule,
        next_action="replan",
        approval_id=held.approval_id,
    )


def _comment(held: Held) -> str:
    """What the person who refused has said about it."""
    try:
        last = next((one for one in votes_of(held) if one.decision is Choice.REJECT), None)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""  # somebody else's scribbling in the table
    if last is None or not last.comment:
        return ""
    return " ".join(neutralise(last.comment)[0].split())[:_LONGEST_COMMENT]
