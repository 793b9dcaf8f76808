"""The fourth gate: the tool's own invariants. Correct, drop, or reject.

A correction is validated again: a corrector can mend a call, not smuggle one past the schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from counterseal.codes import Code
from counterseal.contract.invariants import Call, Invariant, Judgement, judge
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
    call = Call(contract.name, MappingProxyType(dict(ctx.arguments)), ctx.earlier)
    state = Watched(ctx.run.state, ctx.run.state_versions)
    rules = contract.invariants
    found: dict[str, Any] = {"config": config, "state_read": state.read}
    if ctx.pending:
        rules = tuple(rule for rule in rules if _can_tell(rule, call, ctx, config))
        found["unknown"] = (NAME,) if len(rules) < len(contract.invariants) else ()
    verdict = judge(rules, call, state, config)
    if verdict.call is None or not verdict.ok:
        rejected = _rejected(verdict)
        return Learned(rejected, {"config": config}) if config else rejected
    if not verdict.corrections:
        return Learned(ALLOW, found)
    corrected = dict(verdict.call.arguments)
    tenant = contract.tenant_argument
    foreign = tenant is not None and corrected.get(tenant) != ctx.principal.tenant
    if foreign or not is_sound(corrected) or not ctx.compiled.input.is_valid(corrected):
        reason = "A correction of this call would break the tool's schema."
        return deny(NAME, Code.SEMANTIC_INVALIDITY, reason, rule=verdict.corrections[-1].invariant)
    found |= {"arguments": corrected, "corrections": verdict.corrections}
    notes = tuple(f"Corrected: {one.rule} ({one.invariant})" for one in verdict.corrections)
    decision = allow(NAME, rule=verdict.corrections[0].invariant, warnings=notes)
    return Learned(decision, found)


def _can_tell(rule: Invariant, call: Call, ctx: GateContext, config: Mapping[str, Any]) -> bool:
    """Whether a rule looks at nothing that the plan's earlier steps may still change."""
    state = Watched(ctx.run.state, ctx.run.state_versions)
    with suppress(Exception):  # what it makes of the state is asked when the state is there
        rule.holds(call, state, config)
    return "*" not in state.read and ctx.pending.isdisjoint(state.read)


class Watched(Mapping[str, Any]):
    """Run state as the invariants see it, and which of it they looked at.

    If that changes before the call is admitted, it is decided anew.
    """

    __slots__ = ("_state", "_versions", "read")

    def __init__(self, state: Mapping[str, Any], versions: Mapping[str, int]) -> None:
        self._state = state
        self._versions = versions
        self.read: dict[str, int] = {}

    def __getitem__(self, key: str) -> Any:
        self._note(key)
        return self._state[key]

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            self._note(key)
        return key in self._state

    def __iter__(self) -> Iterator[str]:
        self._note("*")
        return iter(self._state)

    def __len__(self) -> int:
        self._note("*")
        return len(self._state)

    def _note(self, key: str) -> None:
        self.read[key] = self._versions.get(key, 0)


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
