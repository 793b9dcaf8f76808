"""Makes a contract ready for calls, once, at registration."""

from __future__ import annotations

from typing import Any

from counterseal.contract.effects import Effect, RiskClass
from counterseal.contract.model import Contract, KeepReads
from counterseal.contract.schemas import compile_schema
from counterseal.execution.executor import Executor, Runner
from counterseal.execution.http import http_tool
from counterseal.gates import gates_for
from counterseal.gates.compiled import Compiled
from counterseal.observation import profile
from counterseal.policy import Policy, contract_facts
from counterseal.registry import RegistryRecord

__all__ = ["compile_record"]


def compile_record(
    record: RegistryRecord,
    policy: Policy,
    executor: Executor,
    keep_reads: KeepReads = KeepReads.REDACTED,
) -> Compiled:
    """ValueError when a schema does not compile; registration has ruled that out."""
    contract = record.contract
    effect = contract.effect or Effect.IRREVERSIBLE
    mutates = contract.mutates
    announced = mutates or contract.observability.audit_required
    keeps = keep_reads if contract.keep_reads is None else contract.keep_reads
    leaves = announced or contract.version_from or contract.state_effects
    facts = contract_facts(contract)
    compiled = policy.compile_for(facts)
    of_run, keyed = "run" in compiled.names, contract.idempotency.required
    weighs = of_run or compiled.asks
    return Compiled(
        contract=contract,
        input=compile_schema(contract.affordance.input_schema),
        output=compile_schema(contract.affordance.output_schema),
        mutates=mutates,
        policy=compiled,
        facts=facts,
        classes=_classes(effect, contract.risk, mutates=mutates),
        profile=profile(contract),
        keyed=keyed,
        # Whether a call was made before, its admission finds out. It is looked up earlier where
        # somebody is asked before that who must not be asked twice: people, or the world.
        recalls=of_run or (keyed and (weighs or contract.probe is not None)),
        weighs=weighs,
        announced=announced,
        # Something that is taken out leads off the short way anyhow; only "all" has to.
        leaves_nothing=not (leaves or keeps is KeepReads.ALL),
        keeps=keeps,
        waits=contract.probe is not None,
        runner=_runner(record, executor),
        told=_told(contract, announced=announced),
        gates=gates_for(contract),
    )


def _told(contract: Contract, *, announced: bool) -> dict[str, Any]:
    told = {"mutates": contract.mutates, "announced": announced}
    cost = contract.runtime.cost_profile.cost_per_call
    return {name: True for name, so in told.items() if so} | ({"cost": cost} if cost else {})


def _runner(record: RegistryRecord, executor: Executor) -> Runner | None:
    contract, tool = record.contract, record.tool
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
