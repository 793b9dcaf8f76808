"""The scope gate: may this caller use this tool at all?

It comes before the business rules, so that a caller without authority learns nothing about them. It
decides from the principal, the registry and the run, and from nothing that the model wrote.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from counterseal.codes import Code
from counterseal.gates.base import Decision, GateContext, Learned, allow, deny
from counterseal.observation.envelope import FieldError
from counterseal.registry import Grant, Reason, Refusal, RegistryRecord

NAME: Final = "scope"
ALLOW: Final = allow(NAME)


def check(ctx: GateContext) -> Decision | Learned:
    """Return the grant under which the call is made, or a denial."""
    if ctx.record is None:
        return _refused(ctx.refusal)
    allowed = ctx.run.allowed_tools
    if allowed is not None and ctx.record.name not in allowed:
        return _denied("This run's objective does not cover the tool.", "run-objective")
    grant = ctx.authority.authorize(ctx.record, ctx.principal)
    if isinstance(grant, Refusal):
        return _refused(grant)
    if ctx.principal.parents:
        tightest = _tightest(ctx, ctx.record, grant)
        if isinstance(tightest, Decision):
            return tightest
        grant = tightest
    tenant = ctx.record.contract.tenant_argument
    if tenant is not None and ctx.arguments.get(tenant) != ctx.principal.tenant:
        error = FieldError(
            f"/{tenant}",
            f"{tenant} must be the caller's own tenant",
            Code.PERMISSION_DENIED.value,
            "the caller's tenant",
        )
        reason = "The arguments name another tenant."
        code = Code.PERMISSION_DENIED
        return deny(NAME, code, reason, rule="tenant-argument", field_errors=(error,))
    return Learned(ALLOW, {"grant": grant})


def _tightest(ctx: GateContext, record: RegistryRecord, own: Grant) -> Grant | Decision:
    """Return the grant with the fewest calls among those of the agent and its parents.

    A denial if an agent that this one works for could not make the call itself.
    """
    grants = [own]
    for parent in ctx.principal.parents:
        principal = replace(ctx.principal, agent=parent, parents=())
        grant = ctx.authority.authorize(record, principal)
        if isinstance(grant, Refusal):
            return _denied("The agent that delegated this may not use the tool.", "parent")
        grants.append(grant)
    return min(grants, key=lambda one: one.calls_per_run(record.contract))


def _refused(refusal: Refusal | None) -> Decision:
    if refusal is None:
        return _denied("The tool can't be used.", "unavailable")
    decision = _denied(refusal.message, refusal.reason.value)
    if refusal.reason not in (Reason.SUNSET, Reason.DISABLED):
        return decision
    # The message may name what to use instead, so the model is not told to give up.
    error = FieldError("", refusal.message, refusal.reason.value)
    action = "replan" if refusal.reason is Reason.SUNSET else None
    return decision._replace(field_errors=(error,), next_action=action)


def _denied(reason: str, rule: str) -> Decision:
    return deny(NAME, Code.PERMISSION_DENIED, reason, rule=rule)
