"""The sixth gate: is the world still as the proposal takes it to be?

The only gate that asks the world, and therefore the only async one. A contract's probe tells the
resource's version now; it is compared with the one that was approved, else the one that the
proposal names, else the one that the run saw last.
"""

from __future__ import annotations

import logging
from functools import partial
from math import inf
from typing import Final

from counterseal.codes import Code
from counterseal.contract.filling import resource_of
from counterseal.contract.model import Contract
from counterseal.execution.hooks import Asked, ProbeError, probe
from counterseal.gates.approval import request_for
from counterseal.gates.base import Decision, GateContext, Learned, allow, deny
from counterseal.gates.context import context_for
from counterseal.observation.models import FieldError
from counterseal.storage.base import Held, HeldStatus

__all__ = ["ALLOW", "check"]

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
    context = partial(context_for, ctx, contract, until=ctx.now + seconds)
    asked = Asked(contract, ctx.arguments, context, ctx.registry, ctx.executor, seconds)
    try:
        found = await probe(contract.probe, asked)
    except ProbeError as error:
        _log.warning(
            "the probe of %s failed in call %s: %s", contract.name, ctx.call_id, error.trace
        )
        return deny(NAME, Code.DEPENDENCY_UNAVAILABLE, "The target's state could not be read.")
    if found is None:
        return _stale("The target does not exist.", "existing", "missing")
    approved = _approved(ctx)
    expected = _expected(ctx, contract) if approved is None else approved.version_seen
    if expected is not None and not _same(found.version, expected):
        stale = _stale("The target has changed since it was seen.", "the version seen", "another")
        if approved is None:
            return stale
        return stale._replace(voids=True, approval_id=approved.approval_id)
    return Learned(ALLOW, {"before": found.state, "version_seen": found.version})


def _left(ctx: GateContext) -> float:
    """What is left of the caller's patience and of the run's time."""
    deadline = inf if ctx.run.deadline is None else ctx.run.deadline
    return max(0.0, min(ctx.until, deadline) - ctx.now)


def _same(found: str | int | None, expected: str | int) -> bool:
    return type(found) is type(expected) and found == expected


def _approved(ctx: GateContext) -> Held | None:
    """The approval of exactly this call, if there is one."""
    held = request_for(ctx)
    return held if held is not None and held.status is HeldStatus.APPROVED else None


def _expected(ctx: GateContext, contract: Contract) -> str | int | None:
    if ctx.proposal.expected_version is not None:
        return ctx.proposal.expected_version
    resource = resource_of(contract, ctx.arguments)
    return None if resource is None else ctx.run.seen.get(resource)


def _stale(reason: str, expected: str, actual: str) -> Decision:
    error = FieldError("", reason, Code.STALE_STATE.value, expected, actual)
    return deny(NAME, Code.STALE_STATE, reason, field_errors=(error,))
