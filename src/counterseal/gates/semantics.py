"""The fourth gate: the tool's own invariants. Correct, drop, or reject.

A correction is validated again: a corrector can mend a call, not smuggle one past the schema.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from counterseal.codes import Code
from counterseal.contract.invariants import Call, Judgement, judge
from counterseal.contract.surroundings import resolve_config
from counterseal.gates.base import Decision, GateContext, Learned, allow, deny
from counterseal.gates.parse import is_sound
from counterseal.observation.models import FieldError

__all__ = ["ALLOW", "check"]

NAME: Final = "semantics"
ALLOW = allow(NAME)


def check(ctx: GateContext) -> Decision | Learned:
    """What the contract's invariants make of the call."""
    if ctx.record is None or ctx.compiled is None:
        return deny(NAME, Code.PERMISSION_DENIED, "The tool can't be used.")
    contract = ctx.record.contract
    config = resolve_config(contract.config_params, ctx.proposal.configurable, ctx.run.config)
    # A check looks; it has no way to change what the schema has seen.
    call = Call(contract.name, MappingProxyType(dict(ctx.arguments)))
    verdict = judge(contract.invariants, call, ctx.run.state, config)
    if verdict.call is None or not verdict.ok:
        return _rejected(verdict)
    if not verdict.corrections:
        return Learned(ALLOW, {"config": config})
    corrected = dict(verdict.call.arguments)
    tenant = contract.tenant_argument
    foreign = tenant is not None and corrected.get(tenant) != ctx.principal.tenant
    if foreign or not is_sound(corrected) or not ctx.compiled.input.is_valid(corrected):
        reason = "A correction of this call would break the tool's schema."
        return deny(NAME, Code.SEMANTIC_INVALIDITY, reason, rule=verdict.corrections[-1].invariant)
    found = {
        "config": config,
        "arguments": corrected,
        "corrections": verdict.corrections,
    }
    notes = tuple(f"Corrected: {one.rule} ({one.invariant})" for one in verdict.corrections)
    decision = allow(NAME, rule=verdict.corrections[0].invariant, warnings=notes)
    return Learned(decision, found)


def _rejected(verdict: Judgement) -> Decision:
    code = Code.SEMANTIC_INVALIDITY
    if verdict.dropped_by is not None:
        rule = verdict.dropped_by
        return deny(
            NAME,
            code,
            f"This step should not be taken: {rule.rule}",
            rule=rule.id,
            next_action="drop_step",
        )
    errors = tuple(FieldError("", rule.rule, rule.id) for rule in verdict.violations)
    first = verdict.violations[0]
    return deny(NAME, code, first.rule, rule=first.id, field_errors=errors)
