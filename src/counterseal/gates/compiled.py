"""What registration works out once, so that no call does it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from counterseal.contract.effects import EFFECTS, Effect, RiskClass
from counterseal.contract.model import Contract
from counterseal.contract.schemas import Validator, compile_schema
from counterseal.policy import CompiledPolicy, Policy, contract_facts
from counterseal.registry import RegistryRecord

__all__ = ["Compiled", "compile_record"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A contract, ready for calls."""

    contract: Contract
    input: Validator
    output: Validator
    mutates: bool
    policy: CompiledPolicy
    facts: dict[str, Any]
    """The contract as policy conditions see it."""
    classes: tuple[str, ...]
    """The budgets that a call is charged to, beside those of its effect and its tool."""


def compile_record(record: RegistryRecord, policy: Policy) -> Compiled:
    """ValueError when a schema does not compile; registration has ruled that out."""
    contract = record.contract
    effect = contract.effect or Effect.IRREVERSIBLE
    mutates = EFFECTS[effect].mutates
    facts = contract_facts(contract)
    return Compiled(
        contract=contract,
        input=compile_schema(contract.affordance.input_schema),
        output=compile_schema(contract.affordance.output_schema),
        mutates=mutates,
        policy=policy.compile_for(facts),
        facts=facts,
        classes=_classes(effect, contract.risk, mutates=mutates),
    )


def _classes(effect: Effect, risk: RiskClass, *, mutates: bool) -> tuple[str, ...]:
    classes = ["writes" if mutates else "reads"]
    if effect is Effect.EXTERNAL_NOTIFICATION or risk >= RiskClass.HIGH_RISK_EXTERNAL:
        classes.append("external")
    if risk >= RiskClass.CRITICAL_MUTATION:
        classes.append("critical")
    return tuple(classes)
