"""The sixth gate: is the world still as the proposal takes it to be?

The only gate that asks the world, and therefore the only async one. A contract's probe tells the
resource's version now; it is compared with the one that was approved, else the one that the
proposal or its arguments name, else the one that the run saw last. Where a probe tells no version,
an approval is bound to the whole state that was shown. The contract's rules about the target are
asked here, too: whoever approves is never shown a call that does not fit what it acts on.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from math import inf
from typing import Any, Final

from counterseal.codes import Code
from counterseal.contract.fill import resource_of
from counterseal.contract.invariants import Invariant
from counterseal.contract.model import Contract, OnUnknown
from counterseal.execution.probes import Probe, ProbeError, ProbeRequest, probe
from counterseal.gates.approval import request_for
from counterseal.gates.base import Decision, GateContext, Learned, allow, deny, tool_context
from counterseal.ledger.rules import stands
from counterseal.observation.envelope import FieldError
from counterseal.storage.base import Held, HeldStatus

__all__ = ["ALLOW", "check", "state_seen"]

NAME: Final = "state"
ALLOW = allow(NAME)
_log = logging.getLogger("counterseal")


async def check(ctx: GateContext) -> Decision | Learned:
    """Whether the target exists and is the one that was seen."""
    record = ctx.record
    if record is None:
        return deny(NAME, Code.PERMISSION_DENIED, "The tool can't be used.")
    contract = record.contract
    if contract.probe is None:
        return ALLOW
    seconds = min(contract.runtime.timeout_ms / 1000, _left(ctx))
    context = partial(tool_context, ctx, contract, until=ctx.now + seconds)
    asked = ProbeRequest(contract, ctx.arguments, context, ctx.registry, ctx.executor, seconds)
    try:
        found = await probe(contract.probe, asked)
    except ProbeError as error:
        _log.warning(
            "the probe of %s failed in call %s: %s", contract.name, ctx.call_id, error.trace
        )
        return deny(NAME, Code.DEPENDENCY_UNAVAILABLE, "The target's state could not be read.")
    if ctx.takes_over and contract.on_unknown is OnUnknown.RETRY_SAME_KEY:
        # The world may show this very call already. The destination tells by the key.
        return Learned(ALLOW, {} if found is None else _seen(found))
    approved = _approved(ctx)
    if found is None:
        stale = _stale("The target does not exist.", "existing", "missing")
        return stale if approved is None else _void(stale, approved)
    changed = _stale("The target has changed since it was seen.", "the version seen", "another")
    if approved is not None:
        if not _is_as_approved(found, approved):
            return _void(changed, approved)
    elif not _same(found.version, _expected(ctx, contract)):
        return changed
    broken = [rule for rule in contract.invariants if _is_broken(rule, ctx.arguments, found.state)]
    if broken:
        return _unfit(broken)
    return Learned(ALLOW, _seen(found))


def _seen(found: Probe) -> dict[str, Any]:
    return {"before": found.state, "version_seen": found.version}


def _is_broken(rule: Invariant, call: Mapping[str, Any], target: Mapping[str, Any]) -> bool:
    return rule.of_target and not rule.holds_of(call, target)


def _unfit(broken: Sequence[Invariant]) -> Decision:
    """The call does not fit what it acts on: what the model says of the world is not so."""
    errors = tuple(FieldError("", rule.rule, rule.id) for rule in broken)
    code, first = Code.SEMANTIC_INVALIDITY, broken[0]
    return deny(NAME, code, first.rule, rule=first.id, field_errors=errors)


def _left(ctx: GateContext) -> float:
    """What is left of the caller's patience and of the run's time."""
    deadline = inf if ctx.run.deadline is None else ctx.run.deadline
    return max(0.0, min(ctx.until, deadline) - ctx.now)


def state_seen(version: str | int | None, state: Mapping[str, Any] | None) -> str | int | None:
    """What an approval is bound to: the target's version, else a digest of all that was seen.

    ValueError for a state that can't be written down.
    """
    if version is not None or state is None:
        return version
    # Not the canonical form: a state may hold numbers and texts that it does not know.
    plain = json.dumps(state, sort_keys=True, default=repr)
    return f"state:{sha256(plain.encode()).hexdigest()}"


def _is_as_approved(found: Probe, approved: Held) -> bool:
    try:
        return _same(state_seen(found.version, found.state), approved.version_seen)
    except (ValueError, RecursionError):
        return False  # what was approved could be written down


def _void(stale: Decision, approved: Held) -> Decision:
    return stale._replace(voids=True, approval_id=approved.approval_id)


def _same(found: str | int | None, expected: str | int | None) -> bool:
    if expected is None:
        return True
    return type(found) is type(expected) and found == expected


def _approved(ctx: GateContext) -> Held | None:
    """The approval of exactly this call, if there is one; an old one stands for nothing."""
    held = request_for(ctx)
    if held is None or held.status is not HeldStatus.APPROVED:
        return None
    return held if stands(held, ctx.run.run_id, ctx.now) else None


def _expected(ctx: GateContext, contract: Contract) -> str | int | None:
    if ctx.proposal.expected_version is not None:
        return ctx.proposal.expected_version
    if contract.version_argument is not None:
        said: str | int | None = ctx.arguments.get(contract.version_argument)
        if said is not None:
            return said
    resource = resource_of(contract, ctx.arguments)
    return None if resource is None else ctx.run.seen.get(resource)


def _stale(reason: str, expected: str, actual: str) -> Decision:
    error = FieldError("", reason, Code.STALE_STATE.value, expected, actual)
    return deny(NAME, Code.STALE_STATE, reason, field_errors=(error,))
