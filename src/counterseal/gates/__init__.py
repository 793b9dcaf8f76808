"""The gates, in the order in which a proposal meets them. The tuple is the whole pipeline.

A contract or a setting cannot leave out, add or reorder gates: this tuple is the only list. Where a
contract gives a gate nothing to check, `gates_for` puts its constant answer in its place;
`compile_record` works out at registration everything that calls of a contract need.
"""

from __future__ import annotations

from typing import Any, Final

from counterseal.contract.effects import RISKS, Effect, RiskClass
from counterseal.contract.model import Contract, KeepReads
from counterseal.contract.schemas import compile_schema, exact_integers
from counterseal.execution.executor import Executor, Runner
from counterseal.execution.http import http_tool
from counterseal.gates import approval, budget, parse, policy, schema, scope, semantics, state
from counterseal.gates.base import AsyncGate, CompiledContract, Gate, TimedDecision
from counterseal.observation import profile
from counterseal.policy import Policy, contract_facts
from counterseal.registry import RegistryRecord

GATES: Final = (
    Gate("parse", parse.check),
    Gate("schema", schema.check),
    Gate("scope", scope.check),
    Gate("semantics", semantics.check),
    Gate("policy", policy.check),
    AsyncGate("state", state.look, state.check),
    Gate("approval", approval.check),
    Gate("budget", budget.check),
)
BEFORE_RECALL: Final[tuple[Any, ...]] = GATES[:3]


def gates_for(contract: Contract) -> tuple[Gate | AsyncGate | TimedDecision, ...]:
    """Return the gates after recall; in the place of one with nothing to check, its answer."""
    answers = {}
    no_rules = all(rule.of_target for rule in contract.invariants)
    if no_rules and not contract.config_params and contract.spends is None:
        answers["semantics"] = TimedDecision(semantics.ALLOW)
    if contract.probe is None:
        answers["state"] = TimedDecision(state.ALLOW)
    return tuple(answers.get(gate.name, gate) for gate in GATES[len(BEFORE_RECALL) :])


def compile_record(
    record: RegistryRecord,
    policy: Policy,
    executor: Executor,
    keep_reads: KeepReads = KeepReads.REDACTED,
) -> CompiledContract:
    """Return what calls of this contract need. ValueError if a schema does not compile."""
    contract = record.contract
    exact = exact_integers(contract.affordance.input_schema)
    effect = contract.effect or Effect.IRREVERSIBLE
    mutates = contract.mutates
    # The contract may ask for audit, and can't refuse it where its risk class demands it.
    audited = contract.observability.audit_required or RISKS[record.risk].audit
    announced = mutates or audited or contract.by_client
    keeps = keep_reads if contract.keep_reads is None else contract.keep_reads
    leaves = announced or contract.version_from or contract.state_effects
    facts = contract_facts(contract, record.risk)
    rules = policy.compile_for(facts)
    return CompiledContract(
        contract=contract,
        input=compile_schema(contract.affordance.input_schema),
        exact=None if exact is None else compile_schema(exact),
        output=compile_schema(contract.affordance.output_schema),
        mutates=mutates,
        policy=rules,
        facts=facts,
        classes=_classes(effect, record.risk, mutates=mutates),
        profile=profile(contract),
        keyed=contract.idempotency.required,
        asks=any(rule.asks for rule in contract.invariants),
        reads_run=not rules.names.isdisjoint(("run", "spent")),
        announced=announced,
        takes_money=bool(contract.spends or contract.runtime.cost_profile.cost_per_call),
        # A redacted read is settled in full anyhow, so only "all" matters here.
        leaves_nothing=not (leaves or keeps is KeepReads.ALL),
        keeps=keeps,
        runner=_runner(record, executor),
        event_facts=_event_facts(contract, announced=announced),
        gates=gates_for(contract),
    )


def _event_facts(contract: Contract, *, announced: bool) -> dict[str, Any]:
    flags = {"mutates": contract.mutates, "announced": announced}
    cost = contract.runtime.cost_profile
    price = {"cost": cost.cost_per_call, "currency": cost.currency} if cost.cost_per_call else {}
    return {name: True for name, value in flags.items() if value} | price


def _runner(record: RegistryRecord, executor: Executor) -> Runner | None:
    contract, tool = record.contract, record.tool
    if contract.by_client:
        return None  # the function is only its signature
    if tool is None and contract.http is not None:
        tool = http_tool(contract)
    return None if tool is None else executor.runner(contract, tool)


def _classes(effect: Effect, risk: RiskClass, *, mutates: bool) -> tuple[str, ...]:
    classes = ["writes" if mutates else "reads"]
    if effect is Effect.EXTERNAL_NOTIFICATION or risk >= RiskClass.HIGH_RISK_EXTERNAL:
        classes.append("external")
    if risk >= RiskClass.CRITICAL_MUTATION:
        classes.append("critical")
    return tuple(classes)
