"""The policy gate: the policy's rules.

They were compiled for the contract at registration. Facts about the call are computed only when a
rule reads them: most calls are decided from the contract and the principal alone.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from counterseal.codes import Code
from counterseal.gates.base import (
    Decision,
    GateContext,
    Learned,
    allow,
    deny,
    require_approval,
)
from counterseal.gates.budget import counter_name, windows
from counterseal.policy import PolicyDecision, PolicyVerdict
from counterseal.proposal import Principal

NAME: Final = "policy"


def check(ctx: GateContext) -> Decision | Learned:
    """Return the strictest verdict of all rules that apply, with its rule and policy version.

    Rules that need the target's state are left to the state gate.
    """
    rules, probe = ctx.resolved.policy, ctx.resolved.contract.probe
    decision = _decision(rules.decide(_Facts(ctx), before_probe=probe is not None))
    keys = rules.state_keys
    if not keys:
        return decision
    versions = {key: ctx.run.state_versions.get(key, 0) for key in keys}
    facts: dict[str, Any] = {"state_read": {**ctx.state_read, **versions}}
    if ctx.pending and ("*" in keys or not ctx.pending.isdisjoint(keys)):
        facts["unknown"] = (*ctx.unknown, NAME)
    return Learned(decision, facts)


def check_target(ctx: GateContext, gate: str) -> Decision | None:
    """Return the verdict of all rules with the target's state; None if no rule reads it."""
    rules = ctx.resolved.policy
    if not rules.reads_target:
        return None
    return _decision(rules.decide(_Facts(ctx), probed=True))._replace(gate=gate)


def asks(ctx: GateContext) -> bool:
    """Return True if a rule may require approval of this principal's call."""
    return ctx.resolved.policy.asks(_Facts(ctx))


@lru_cache(maxsize=1024)
def _decision(decision: PolicyDecision) -> Decision:
    rule, version = decision.rule, decision.version
    if decision.verdict is PolicyVerdict.ALLOW:
        return allow(NAME, reason=decision.reason, rule=rule, policy_version=version)
    if decision.verdict is PolicyVerdict.REQUIRE_APPROVAL:
        return require_approval(
            NAME,
            decision.reason,
            rule=rule,
            policy_version=version,
            approvers=decision.approvers,
            terms=decision.terms,
        )
    code = Code.POLICY_VIOLATION
    return deny(NAME, code, decision.reason, rule=rule, policy_version=version)


class _Facts:
    """The call as conditions see it, one name at a time."""

    __slots__ = ("_ctx",)

    def __init__(self, ctx: GateContext) -> None:
        self._ctx = ctx

    def __getitem__(self, name: str) -> Any:
        return _READERS[name](self._ctx)


def _proposal(ctx: GateContext) -> dict[str, Any]:
    fields = {name: getattr(ctx.proposal, name) for name in ("tool", "run_id", "version")}
    return {**fields, "has_key": ctx.proposal.key is not None}


@lru_cache(maxsize=1024)
def _principal(principal: Principal) -> dict[str, Any]:
    names = ("tenant", "user", "agent", "roles", "scopes", "risk_level")
    return {name: getattr(principal, name) for name in names}


def _run(ctx: GateContext) -> dict[str, Any]:
    run, tool = ctx.run, ctx.resolved.contract.name
    counters = ctx.memory.run_counters if ctx.memory else {}
    return {
        "id": run.run_id,
        "objective": run.objective,
        "allowed_tools": None if run.allowed_tools is None else sorted(run.allowed_tools),
        "age_seconds": ctx.now - run.started_at,
        "state": run.state,
        "calls": int(counters.get(f"tool/{tool}", 0)),
    }


def _spends(ctx: GateContext) -> dict[str, float]:
    """Return what this call spends, by currency, in units."""
    amounts = dict.fromkeys(ctx.resolved.policy.currencies, 0.0)
    spends = ctx.resolved.contract.spends
    if spends is not None:
        amount = spends.of(ctx.arguments)
        amounts[amount.currency] = amount.millionths / 10**6
    return amounts


def _spent(ctx: GateContext) -> dict[str, dict[str, float]]:
    """Return what was spent before this call, by window and currency, in units."""
    names = (*ctx.resolved.policy.currencies, *_spends(ctx))
    run = ctx.memory.run_counters if ctx.memory else {}
    tenant = ctx.memory.tenant_counters if ctx.memory else {}
    spent: dict[str, dict[str, float]] = {}
    for window, (counter, of_run) in windows(ctx).items():
        counters = run if of_run else tenant
        spent[window] = {
            name: counters.get(counter_name(ctx, "money", counter, name, of_run=of_run), 0) / 10**6
            for name in names
        }
    return spent


_READERS: Final[dict[str, Callable[[GateContext], Any]]] = {
    "call": lambda ctx: ctx.arguments,
    "proposal": _proposal,
    "principal": lambda ctx: _principal(ctx.principal),
    "run": _run,
    "tenant": lambda ctx: ctx.tenant,
    "state": lambda ctx: ctx.run.state,
    "spends": _spends,
    "spent": _spent,
    "target": lambda ctx: ctx.before,
    "now": lambda ctx: datetime.fromtimestamp(ctx.now, UTC),
}
