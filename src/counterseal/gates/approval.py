"""The approval gate: is a required approval there?

Earlier gates require approval; this one looks for an approval of exactly these arguments and this
config. Without one, the call is held after the budget gate has allowed it, too.

Where the project has approval keys, only a proven approval counts: votes signed one by one, and the
token issued for them. A person who can write to the database but has no key can neither vote for
others, nor weaken the terms of a vote, nor turn a request into an approved one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final

from counterseal.approvals.terms import (
    Choice,
    Demand,
    Tally,
    Vote,
    contract_terms,
    eligible,
    strictest,
    tally,
)
from counterseal.approvals.tokens import ApprovedCall, TokenError
from counterseal.approvals.tokens import check as check_token
from counterseal.canonical import canonical, digest
from counterseal.codes import Code
from counterseal.contract.approval_terms import Then
from counterseal.gates.base import (
    EMPTY,
    Decision,
    GateContext,
    Learned,
    allow,
    deny,
    require_approval,
)
from counterseal.keys import KeyRing, Purpose, Signer
from counterseal.ledger.holds import stands
from counterseal.ledger.records import Held, HeldStatus
from counterseal.observation import FieldError, neutralise
from counterseal.proposal import System, folded

NAME: Final = "approval"
ALLOW = allow(NAME)
_COVERED = allow(NAME, rule="covered-by-original")
_ENDED = {
    HeldStatus.REJECTED: "An approver rejected the call.",
    HeldStatus.EXPIRED: "The request for approval expired.",
}
_MAX_COMMENT = 300
_NOT_OURS: Final = ("malformed", "algorithm", "forged", "unknown-key", "scope")
"""Why a token is none that this project has issued."""
_SIGNATURE: Final = "signature"
_SIGNED: Final = (
    *("tenant", "approval_id", "approval_hash", "contract_hash", "tool", "version", "key"),
    *("run_id", "trace_id", "agent", "user", "expires_at", "demand"),
)
"""What a vote's signature covers of a request, beside the state and the packet that were shown."""
_FORM: Final = b"counterseal vote\0"
"""Prefix of a signed vote, so that its signature can't be taken for a token's."""


def check(ctx: GateContext) -> Decision | Learned:
    """Allow an approved call, deny a rejected or expired one, else require approval."""
    if not ctx.requirements:
        return ALLOW
    requirement = ctx.requirements[0]
    if isinstance(ctx.principal, System) and ctx.principal.covered:
        return _COVERED
    held = request_for(ctx)
    if held is None:
        return require_approval(NAME, requirement.reason, rule=requirement.rule)
    over = ended(held, requirement, ctx.now, ctx.run.run_id)
    if over is not None:
        return over
    if held.status is HeldStatus.SPENT and ctx.takes_over:
        decision = allow(NAME, rule=requirement.rule)
        return Learned(decision, {"approval_id": held.approval_id, "approval_spent": True})
    if held.status is HeldStatus.APPROVED and ctx.now < held.expires_at:
        refused = _denied_as_unproven(ctx, held, requirement)
        if refused is not None:
            return refused
        return Learned(allow(NAME, rule=requirement.rule), {"approval_id": held.approval_id})
    return require_approval(NAME, requirement.reason, rule=requirement.rule)


def request_for(ctx: GateContext) -> Held | None:
    """Return the request for exactly this call: arguments, config, contract, caller and terms.

    An approval of another version, of another caller's call, or on easier terms than are required
    now, does not count.
    """
    held = ctx.memory.held if ctx.memory else None
    if held is None or ctx.record is None or held.contract_hash != ctx.record.contract.hash:
        return None
    if (held.agent, held.user) != (ctx.principal.agent, ctx.principal.user):
        return None
    if held.approval_hash != approval_hash(ctx):
        return None
    try:
        demand = Demand.from_record(held.demand)
    except (ValueError, KeyError, TypeError):
        return None  # not a record that this software has written
    return held if _as_strict(demand, demand_of(ctx)) else None


def approval_hash(ctx: GateContext) -> str:
    """Return the hash of what is approved: corrected arguments, config and exceeded budgets."""
    return hash_of(ctx.arguments, ctx.config_shown, ctx.over_budget)


def hash_of(
    arguments: Mapping[str, Any], config: Mapping[str, Any], over_budget: Iterable[str]
) -> str:
    """Return the approval hash of these arguments, config and exceeded budgets."""
    shown: Any = {"arguments": arguments, "config": config} if config else arguments
    over = sorted(over_budget)
    return digest({"call": shown, "over_budget": over} if over else shown)


def demand_of(ctx: GateContext) -> Demand:
    """Return the terms of an approval of this call: the strictest of contract and policy."""
    required = [decision.terms for decision in ctx.requirements if decision.terms is not None]
    own = [] if ctx.record is None else [contract_terms(ctx.record.contract)]
    demand = strictest([*own, *required])
    if isinstance(ctx.principal, System):
        demand = replace(demand, then=Then.RESUBMIT)  # the reconciler tries a reversal again
    first = ctx.requirements[0] if ctx.requirements else None
    if first is None:
        return demand
    most = max((decision.approvers or 0 for decision in ctx.requirements), default=0)
    approvers = max(demand.approvers, most, 1)
    return replace(demand, approvers=approvers, reason=first.reason, rule=first.rule)


def _as_strict(earlier: Demand, now: Demand) -> bool:
    """Return True if the earlier terms are at least as strict as those required now."""
    both = strictest([earlier, now])
    return replace(both, reason=earlier.reason, rule=earlier.rule) == earlier


def _denied_as_unproven(ctx: GateContext, held: Held, requirement: Decision) -> Decision | None:
    """Return a denial if the approval is not proven to be of exactly this call."""
    ring, record = ctx.keys, ctx.record
    if ring is None or record is None or not has_keys(ring):
        return None
    given, demand = ctx.proposal.approval, demand_of(ctx)
    expected = ApprovedCall(
        approval_id=held.approval_id,
        trace_id=held.trace_id,
        tenant=held.tenant,
        tool_name=record.name,
        tool_version=record.version,
        contract_hash=record.contract.hash,
        payload_hash=approval_hash(ctx),  # a token's; in events it is a fingerprint (`capture`)
    )
    reason = unproven(held, given or held.token, ring, expected, demand, ctx.now)
    if reason == "expired":
        return _over(held, HeldStatus.EXPIRED, requirement)
    if reason is None:
        return None
    return deny(
        NAME,
        Code.CONFIRMATION_MISSING,
        "The approval of this call can't be proven.",
        rule=f"token-{reason}",
        next_action="escalate",
        approval_id=held.approval_id,
        # Voiding it leads to a new request. Not for a key that is still to be distributed, nor for
        # a clock that is behind, nor for a token that the caller has passed in.
        voids=given is None and reason not in ("unknown-key", "early"),
    )


def refused_token(ctx: GateContext) -> str | None:
    """Return a rule that says why the caller's approval token is not valid for this call.

    None if it is valid, if a gate has refused it already, or if no approval is required and the
    token is one of ours.
    """
    token, ring, compiled = ctx.proposal.approval, ctx.keys, ctx.compiled
    if token is None or ctx.approval_id is not None:
        return None
    if ring is None or not has_keys(ring):
        return "token-unknown-key"
    parsed = compiled is not None and ctx.arguments is not EMPTY
    held = request_for(ctx) if parsed else None
    if held is not None and held.status is HeldStatus.APPROVED:
        return None  # `_denied_as_unproven` has looked at it
    expected = ApprovedCall(
        approval_id=held.approval_id if held else "",
        trace_id=held.trace_id if held else "",
        tenant=ctx.principal.tenant,
        tool_name=compiled.contract.name if compiled else "",
        tool_version=compiled.contract.version if compiled else "",
        contract_hash=compiled.contract.hash if compiled else "",
        payload_hash=approval_hash(ctx) if parsed else "",
    )
    try:
        check_token(token, ring, expected, approvers=1, may_approve=lambda _: True, now=ctx.now)
    except TokenError as error:
        ours = error.why not in _NOT_OURS
        return None if ours and not ctx.requirements else f"token-{error.why}"
    return "token-used"


def ended(
    held: Held, requirement: Decision, now: float, run_id: str | None = None
) -> Decision | None:
    """Return the denial that follows from a rejected or expired request; None if it is open.

    An expired request denies only calls of its own run, and for a limited time; without `run_id`,
    for as long as it is stored.
    """
    status = held.status
    if status in (HeldStatus.WAITING, HeldStatus.APPROVED) and now >= held.expires_at:
        status = HeldStatus.EXPIRED  # even before its expiry is recorded
    if status not in _ENDED:
        return None
    if run_id is not None and not stands(held, run_id, now):
        return None
    return _over(held, status, requirement)


def _over(held: Held, status: HeldStatus, requirement: Decision) -> Decision:
    comment = _comment(held)
    reason = f"{_ENDED[status]} The approver says: {comment}" if comment else _ENDED[status]
    return deny(
        NAME,
        Code.CONFIRMATION_MISSING,
        reason,
        field_errors=(FieldError("", reason, status.value, actual=comment),),
        rule=requirement.rule,
        next_action="replan",
        approval_id=held.approval_id,
    )


def _comment(held: Held) -> str:
    """Return the comment of the approver who rejected the request, on one line."""
    try:
        vote = next((vote for vote in votes_of(held) if vote.decision is Choice.REJECT), None)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""  # not votes that this software has written
    if vote is None or not vote.comment:
        return ""
    return " ".join(neutralise(vote.comment)[0].split())[:_MAX_COMMENT]


# --- proof ----------------------------------------------------------------------------------------


def has_keys(ring: KeyRing | None) -> bool:
    """Return True if approvals must be proven; the public half of a key is enough for that."""
    return ring is not None and any(key.purpose is Purpose.APPROVAL for key in ring.keys)


def votes_of(held: Held) -> tuple[Vote, ...]:
    """Return the votes of a request as they are stored."""
    return tuple(Vote.from_record(_unsigned(vote)) for vote in held.votes)


def vote_record(held: Held, vote: Vote, signer: Signer | None) -> dict[str, Any]:
    """Return a vote as it is stored, signed if there is a signer.

    Its signature covers the request, the call and the terms.
    """
    record = vote.record()
    if signer is None:
        return record
    signature = signer.sign(_message(held, record)).hex()
    return {**record, _SIGNATURE: f"{signer.key_id}.{signature}"}


def proven_votes(held: Held, ring: KeyRing) -> tuple[Vote, ...]:
    """Return the votes with a valid signature on exactly this request."""
    proven = [vote for vote in held.votes if _is_proven(held, vote, ring)]
    return tuple(Vote.from_record(_unsigned(vote)) for vote in proven)


def has_unknown_keys(held: Held, ring: KeyRing) -> bool:
    """Return True if a vote is signed with a key that is not here: neither proven nor forged."""
    return any(_is_proven(held, vote, ring) is None for vote in held.votes)


def unproven(
    held: Held, token: str | None, ring: KeyRing, expected: ApprovedCall, demand: Demand, now: float
) -> str | None:
    """Return in one word why an approval is not valid for this call; None if it is."""
    votes = proven_votes(held, ring)
    approvers = {folded(vote.approver) for vote in votes if vote.decision is Choice.APPROVE}
    reason: str | None = None
    try:
        known, count = approvers.__contains__, demand.approvers
        check_token(token or "", ring, expected, approvers=count, may_approve=known, now=now)
    except TokenError as error:
        reason = error.why
    pattern = held.demand["pattern"]
    if reason is None and not eligible(approvers, pattern, agent=held.agent, user=held.user):
        return "approver"
    outcome = tally(demand, votes, now=now, expires_at=held.expires_at)
    if reason is None and outcome is Tally.APPROVED:
        return None
    if reason in (None, "approver") and has_unknown_keys(held, ring):
        return "unknown-key"  # a worker that has the key can tell
    return reason or "votes"


def _unsigned(vote: Any) -> dict[str, Any]:
    return {name: value for name, value in vote.items() if name != _SIGNATURE}


def _is_proven(held: Held, vote: Any, ring: KeyRing) -> bool | None:
    """Return whether a vote's signature is valid; None if its key is not here."""
    if not isinstance(vote, Mapping):
        return False
    key_id, _, signature = str(vote.get(_SIGNATURE, "")).partition(".")
    try:
        raw, message = bytes.fromhex(signature), _message(held, _unsigned(vote))
    except ValueError:
        return False
    return ring.verify(Purpose.APPROVAL, key_id, message, raw) if raw else False


def _message(held: Held, vote: dict[str, Any]) -> bytes:
    """Return the bytes that a vote's signature covers."""
    version = held.version_seen
    request = {name: getattr(held, name) for name in _SIGNED}
    # As text with its type, because JSON is not exact for large numbers.
    request["version_seen"] = None if version is None else f"{type(version).__name__} {version}"
    request["shown"] = sha256(held.sealed).hexdigest()
    return _FORM + canonical([request, vote])
