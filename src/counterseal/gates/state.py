"""The state gate: is the target still in the state that the proposal assumes?

The only gate that runs a probe, and therefore the only one that waits: `look` runs the probe, and
`check` decides from its answer. The probe returns the target's version now. It is compared with the
approved version, else the one that the proposal or its arguments name, else the one that the run
has seen last. Where a probe returns no version, an approval is bound to the whole state that was
shown. The contract's rules about the target are checked here, too, so that no approver is shown a
call that does not fit its target.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import inf
from typing import Any, Final

from counterseal.approvals.terms import merged
from counterseal.codes import Code
from counterseal.contract.fill import resource_of
from counterseal.contract.model import Contract, OnUnknown
from counterseal.execution.probes import Probe, ProbeError, probe
from counterseal.gates.approval import request_for
from counterseal.gates.base import (
    EMPTY,
    Decision,
    GateContext,
    Learned,
    Probed,
    Verdict,
    allow,
    deny,
    hook_request,
)
from counterseal.gates.policy import check_target
from counterseal.gates.semantics import WatchedRule, asking, proposed_call
from counterseal.ledger.holds import stands
from counterseal.ledger.records import Held, HeldStatus
from counterseal.observation.envelope import FieldError

NAME: Final = "state"
ALLOW = allow(NAME)
_log = logging.getLogger("counterseal")


async def look(ctx: GateContext) -> Probed:
    """Return the target as the contract's probe reads it now."""
    contract = ctx.resolved.contract
    if contract.probe is None:
        return Probed(None)
    seconds = min(contract.runtime.timeout_ms / 1000, _left(ctx))
    try:
        return Probed(await probe(contract.probe, hook_request(ctx, contract, seconds)))
    except ProbeError as error:
        message, extra = "the probe of %s failed in call %s: %s", {"counterseal_trace": error.trace}
        _log.warning(message, contract.name, ctx.call_id, error.trace, extra=extra)
        return Probed(None, failed=True)


def check(ctx: GateContext) -> Decision | Learned:
    """Deny a call whose target is missing, has changed, or breaks a rule about the target."""
    contract, probed = ctx.resolved.contract, ctx.probed
    if contract.probe is None:
        return ALLOW
    if probed is None or probed.failed:
        return deny(NAME, Code.DEPENDENCY_UNAVAILABLE, "The target's state could not be read.")
    target = probed.target
    if ctx.takes_over and contract.on_unknown is OnUnknown.RETRY_SAME_KEY:
        # The target may show this very call already; the destination recognises the key.
        return Learned(ALLOW, {} if target is None else _facts(target))
    approved = _approved(ctx)
    if target is None:
        stale = _stale("The target does not exist.", "existing", "missing")
        return stale if approved is None else _void(stale, approved)
    changed = _stale("The target has changed since it was seen.", "the version seen", "another")
    if approved is not None:
        if not _is_as_approved(target, approved):
            return _void(changed, approved)
    elif not _same(target.version, _expected(ctx, contract)):
        return changed
    return _judged(ctx, target)


def _facts(target: Probe) -> dict[str, Any]:
    return {"before": target.state, "version_seen": target.version}


def _judged(ctx: GateContext, target: Probe) -> Decision | Learned:
    """Check the contract's and the policy's rules about the target: reject, ask, or allow."""
    facts = _facts(target)
    call, invariants = proposed_call(ctx), ctx.resolved.contract.invariants
    rules = [WatchedRule(rule, ctx, target.state) for rule in invariants if rule.of_target]
    broken = [rule for rule in rules if not rule.holds(call, EMPTY, EMPTY)]
    reads = {key: version for rule in rules for key, version in rule.state.read.items()}
    if reads:
        facts["state_read"] = {**ctx.state_read, **reads}
    if not all(rule.can_tell for rule in rules):  # an earlier step of the plan may change it
        broken = [rule for rule in broken if rule.can_tell]
        facts["unknown"] = (*ctx.unknown, NAME)
    rejecting = [rule for rule in broken if not rule.asks]
    if rejecting:
        return Learned(_unfit(rejecting), {"state_read": {**ctx.state_read, **reads}})
    decided = check_target(ctx.replace(**facts), NAME)
    if decided is not None and decided.verdict is Verdict.DENY:
        return decided
    asked = [asking(NAME, broken)] if broken else []
    if decided is not None and decided.verdict is Verdict.REQUIRE_APPROVAL:
        asked.append(decided)
    return Learned(_together(asked) if asked else decided or ALLOW, facts)


def _together(asked: Sequence[Decision]) -> Decision:
    """Return one decision that requires approval on terms which meet all of these."""
    terms = merged(one.terms for one in asked if one.terms is not None)
    return asked[-1]._replace(approvers=terms.approvers, terms=terms)


def _unfit(broken: Sequence[WatchedRule]) -> Decision:
    """Return the denial of a call that does not fit its target."""
    errors = tuple(FieldError("", rule.rule, rule.id) for rule in broken)
    code, first = Code.SEMANTIC_INVALIDITY, broken[0]
    return deny(NAME, code, first.rule, rule=first.id, field_errors=errors)


def _left(ctx: GateContext) -> float:
    """Return the seconds left until the caller's or the run's deadline."""
    deadline = inf if ctx.run.deadline is None else ctx.run.deadline
    return max(0.0, min(ctx.until, deadline) - ctx.now)


def state_seen(version: str | int | None, state: Mapping[str, Any] | None) -> str | int | None:
    """Return what an approval is bound to: the target's version, else a digest of its state.

    ValueError if the state can't be serialised.
    """
    if version is not None or state is None:
        return version
    # Not canonical JSON, which refuses some numbers and texts that a state may hold.
    plain = json.dumps(state, sort_keys=True, default=repr)
    return f"state:{sha256(plain.encode()).hexdigest()}"


def _is_as_approved(target: Probe, approved: Held) -> bool:
    try:
        return _same(state_seen(target.version, target.state), approved.version_seen)
    except (ValueError, RecursionError):
        return False  # the approved state could be serialised


def _void(stale: Decision, approved: Held) -> Decision:
    return stale._replace(voids=True, approval_id=approved.approval_id)


def _same(version: str | int | None, expected: str | int | None) -> bool:
    if expected is None:
        return True
    return type(version) is type(expected) and version == expected


def _approved(ctx: GateContext) -> Held | None:
    """Return the valid approval of exactly this call, if there is one."""
    held = request_for(ctx)
    if held is None or held.status is not HeldStatus.APPROVED:
        return None
    return held if stands(held, ctx.run.run_id, ctx.now) else None


def _expected(ctx: GateContext, contract: Contract) -> str | int | None:
    if ctx.proposal.expected_version is not None:
        return ctx.proposal.expected_version
    if contract.version_argument is not None:
        version: str | int | None = ctx.arguments.get(contract.version_argument)
        if version is not None:
            return version
    resource = resource_of(contract, ctx.arguments)
    return None if resource is None else ctx.run.seen.get(resource)


def _stale(reason: str, expected: str, actual: str) -> Decision:
    error = FieldError("", reason, Code.STALE_STATE.value, expected, actual)
    return deny(NAME, Code.STALE_STATE, reason, field_errors=(error,))
