"""The semantics gate: the tool's own invariants. Correct, drop, ask a person, or reject.

A corrected call is validated again, so that no corrector can bypass the schema. Rules written in
Python receive copies, so that a check can't change the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from counterseal.approvals.terms import Terms
from counterseal.canonical import thaw
from counterseal.codes import Code
from counterseal.contract.invariants import Fixed, Invariant, Judgement, ProposedCall, judge
from counterseal.contract.money import AmountError
from counterseal.contract.tool_context import UnusableConfigError, config_as_json, resolve_config
from counterseal.gates.base import (
    Decision,
    GateContext,
    Learned,
    allow,
    deny,
    require_approval,
)
from counterseal.gates.parse import sound_copy
from counterseal.gates.schema import refusing
from counterseal.observation.envelope import FieldError

NAME: Final = "semantics"
ALLOW = allow(NAME)


def check(ctx: GateContext) -> Decision | Learned:
    """Check the contract's invariants, and apply their corrections."""
    proposed: Any = ctx.proposal.configurable  # not validated before
    if proposed is not None and not isinstance(proposed, Mapping):
        return _unusable("The config of this call is not a mapping of keys to values.")
    contract = ctx.resolved.contract
    config = resolve_config(contract.config_params, proposed, ctx.run.config)
    try:
        shown = config_as_json(config) if config else config
    except UnusableConfigError as error:
        return _unusable(f"The config value of {error} can't be used.")
    facts: dict[str, Any] = {"config": config, "config_shown": shown}
    # The state gate checks the rules about the target.
    rules = [rule for rule in contract.invariants if not rule.of_target]
    if not rules:
        return _without_amount(ctx) or (Learned(ALLOW, facts) if config else ALLOW)
    ctx = ctx.replace(**facts)
    verdict, watched = _judged(rules, ctx)
    facts["state_read"] = {
        key: version for rule in watched for key, version in rule.state.read.items()
    }
    if verdict.call is None or not verdict.ok:
        return _refused(_rejected(verdict), facts)
    read = dict(facts)
    if ctx.pending:
        facts["unknown"] = (NAME,) if len(watched) < len(rules) else ()
    result = _corrected(ctx, verdict, facts) if verdict.corrections else Learned(ALLOW, facts)
    if isinstance(result, Decision):
        return _refused(result, read)
    refused = _without_amount(ctx.replace(**facts))
    if refused is not None:
        return _refused(refused, read)
    if not verdict.asking:
        return result
    return Learned(asking(NAME, verdict.asking, result.decision.warnings), facts)


def _refused(decision: Decision, read: Mapping[str, Any]) -> Decision | Learned:
    """Return a denial with the config and the state that it depended on, for the record."""
    return Learned(decision, read) if any(read.values()) else decision


def _without_amount(ctx: GateContext) -> Decision | None:
    """Return the denial of a call that does not say clearly what it spends."""
    spends = ctx.resolved.contract.spends
    try:
        if spends is not None:
            spends.of(ctx.arguments)
    except AmountError as error:
        reason, code = f"What this call spends can't be told: {error}.", Code.SEMANTIC_INVALIDITY
        wrong = FieldError(error.place, str(error), "amount", "a decimal number from 0 on")
        return deny(NAME, code, reason, rule="amount", field_errors=(wrong,))
    return None


def asking(gate: str, rules: Sequence[Any], warnings: tuple[str, ...] = ()) -> Decision:
    """Return the decision that requires approval of a call that breaks these rules."""
    first, most = rules[0], max(rule.approvers for rule in rules)
    terms = Terms(approvers=most, reason=first.rule, rule=first.id)
    return require_approval(
        gate, first.rule, rule=first.id, approvers=most, terms=terms, warnings=warnings
    )


def _unusable(reason: str) -> Decision:
    """Return the denial for a config that only the tool's owner can repair."""
    return deny(NAME, Code.UNKNOWN_ERROR, reason, rule="config-unusable")


def proposed_call(ctx: GateContext) -> ProposedCall:
    """Return the call as rules see it."""
    earlier = tuple(_copy(step) for step in ctx.earlier)
    return ProposedCall(ctx.resolved.contract.name, ctx.arguments, earlier)


def _judged(
    rules: Sequence[Invariant], ctx: GateContext
) -> tuple[Judgement, tuple[WatchedRule, ...]]:
    """Return the verdict, and the rules that led to it.

    Rules that read state which the plan's earlier steps may still change are left out: neither a
    check nor a correction can rely on it yet.
    """
    call = proposed_call(ctx)
    watched = tuple(WatchedRule(rule, ctx) for rule in rules)
    while True:
        try:
            verdict = judge(watched, call, ctx.run.state, ctx.config)
        except Exception:
            verdict = None
            if all(rule.can_tell for rule in watched):
                raise
        left = tuple(rule for rule in watched if rule.can_tell)
        if verdict is not None and len(left) == len(watched):
            return verdict, watched
        watched = tuple(WatchedRule(rule.of, ctx) for rule in left)


def _corrected(ctx: GateContext, verdict: Judgement, facts: dict[str, Any]) -> Decision | Learned:
    corrected = sound_copy(verdict.call.arguments) if verdict.call else {}
    compiled = ctx.resolved
    tenant = compiled.contract.tenant_argument
    if (
        corrected is None
        or (tenant is not None and corrected.get(tenant) != ctx.principal.tenant)
        or refusing(compiled, corrected, has_large=True) is not None
    ):
        reason = "A correction of this call would break the tool's schema."
        return deny(NAME, Code.SEMANTIC_INVALIDITY, reason, rule=verdict.corrections[-1].invariant)
    facts |= {"arguments": corrected, "corrections": verdict.corrections}
    notes = tuple(
        f"Corrected: {correction.rule} ({correction.invariant})"
        for correction in verdict.corrections
    )
    decision = allow(NAME, rule=verdict.corrections[0].invariant, warnings=notes)
    return Learned(decision, facts)


class WatchedRule:
    """An invariant while it checks one call: what it receives, and which state it reads."""

    __slots__ = ("_config", "_facts", "_pending", "_shown", "of", "state")

    def __init__(
        self, of: Invariant, ctx: GateContext, target: Mapping[str, Any] | None = None
    ) -> None:
        self.of = of
        now = datetime.fromtimestamp(ctx.now, UTC)
        self._facts: dict[str, Any] = {"principal": ctx.principal, "now": now}
        if target is not None:
            self._facts["target"] = thaw(target)
        self.state = WatchedState(ctx.run.state, ctx.run.state_versions)
        self._config = ctx.config
        self._shown = ctx.config_shown
        self._pending = ctx.pending

    @property
    def id(self) -> str:
        return self.of.id

    @property
    def rule(self) -> str:
        return self.of.rule

    @property
    def asks(self) -> bool:
        return self.of.asks

    @property
    def approvers(self) -> int:
        return self.of.approvers

    @property
    def can_tell(self) -> bool:
        """True if the rule has read no state that an earlier step may still change."""
        if not self._pending:
            return True
        return "*" not in self.state.read and self._pending.isdisjoint(self.state.read)

    def holds(
        self, call: ProposedCall, _state: Mapping[str, Any], _config: Mapping[str, Any]
    ) -> bool:
        if not self.of.in_python:
            return self.of.holds(call, self.state, self._shown, self._facts)
        return self.of.holds(_copy(call), self.state, thaw(self._config), self._facts)

    def fix(
        self, call: ProposedCall, _state: Mapping[str, Any], _config: Mapping[str, Any]
    ) -> Fixed:
        fixed = self.of.fix(_copy(call), self.state, thaw(self._config))
        if not isinstance(fixed, ProposedCall):
            return fixed
        # A corrector changes arguments only, and must not share them with the call.
        return ProposedCall(call.tool, thaw(fixed.arguments), call.earlier)


def _copy(call: ProposedCall) -> ProposedCall:
    """Return a copy of the call, with arguments of its own."""
    return ProposedCall(call.tool, MappingProxyType(thaw(call.arguments)), call.earlier)


class WatchedState(Mapping[str, Any]):
    """Run state as copies for an invariant, which notes the keys that are read.

    If one of them changes before the call is admitted, the call is decided again.
    """

    __slots__ = ("_state", "_versions", "read")

    def __init__(self, state: Mapping[str, Any], versions: Mapping[str, int]) -> None:
        self._state = state
        self._versions = versions
        self.read: dict[str, int] = {}

    def __getitem__(self, key: str) -> Any:
        self._note(key)
        return thaw(self._state[key])

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
