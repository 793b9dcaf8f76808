"""The seventh gate: if somebody must say yes, has somebody?

The demand is an obligation that earlier gates laid down; here it is met by an approval that stands
for exactly these arguments and this config, or the call is held. Nobody is asked yet: that happens
only when the budget gate would let the call through as well.
"""

from __future__ import annotations

from typing import Any, Final

from counterseal.canonical import digest
from counterseal.codes import Code
from counterseal.gates.base import Decision, GateContext, Learned, allow, deny, hold
from counterseal.proposal import System
from counterseal.storage.base import Held, HeldStatus

__all__ = ["approval_hash", "approvers_asked", "check", "ended", "request_for"]

NAME: Final = "approval"
_ALLOW = allow(NAME)
_COVERED = allow(NAME, rule="covered-by-original")
_ENDED = {
    HeldStatus.REJECTED: "Approval was refused.",
    HeldStatus.EXPIRED: "The request for approval expired.",
}


def check(ctx: GateContext) -> Decision | Learned:
    """Whether the obligation is met, still open, or has been answered with no."""
    if not ctx.approvals:
        return _ALLOW
    demand = ctx.approvals[0]
    if isinstance(ctx.principal, System) and ctx.principal.covered:
        return _COVERED
    held = request_for(ctx)
    if held is None:
        return hold(NAME, demand.reason, rule=demand.rule)
    if held.status is HeldStatus.APPROVED:
        decision = allow(NAME, rule=demand.rule)
        return Learned(decision, {"approval_id": held.approval_id})
    if held.status is HeldStatus.SPENT and ctx.takes_over:
        decision = allow(NAME, rule=demand.rule)
        return Learned(decision, {"approval_id": held.approval_id, "approval_spent": True})
    return ended(held, demand) or hold(NAME, demand.reason, rule=demand.rule)


def request_for(ctx: GateContext) -> Held | None:
    """The request made for exactly this: these arguments and config, this contract, as many people.

    What was approved under another version, for somebody else, or by fewer than are asked now, was
    something else.
    """
    held = ctx.memory.held if ctx.memory else None
    if held is None or ctx.record is None or held.contract_hash != ctx.record.contract.hash:
        return None
    if held.approvers < approvers_asked(ctx):
        return None
    if (held.agent, held.user) != (ctx.principal.agent, ctx.principal.user):
        return None
    return held if held.approval_hash == approval_hash(ctx) else None


def approval_hash(ctx: GateContext) -> str:
    """What a person says yes to: the arguments as they would be executed, and the config."""
    shown: Any = ctx.arguments
    if ctx.config_shown:
        shown = {"arguments": shown, "config": ctx.config_shown}
    return digest(shown)


def approvers_asked(ctx: GateContext) -> int:
    """How many people must say yes: the most that policy and contract ask for, and one at least."""
    asked = max((one.approvers or 0 for one in ctx.approvals), default=0)
    return max(asked, ctx.record.contract.approvers if ctx.record else 0, 1)


def ended(held: Held, demand: Decision) -> Decision | None:
    """The refusal that a person's no, or nobody's answer, comes to."""
    if held.status not in _ENDED:
        return None
    return deny(
        NAME,
        Code.CONFIRMATION_MISSING,
        _ENDED[held.status],
        rule=demand.rule,
        next_action="replan",
        approval_id=held.approval_id,
    )
