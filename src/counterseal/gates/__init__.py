"""The gates, in the order in which a proposal meets them. The tuple is the whole pipeline.

A contract or a setting cannot leave out, add or reorder gates: this tuple is the only list. Where a
contract gives a gate nothing to check, `gates_for` puts its constant answer in its place.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from counterseal.contract.model import Contract
from counterseal.gates import approval, budget, parse, policy, schema, scope, semantics, state
from counterseal.gates.base import AsyncGate, Decision, Gate, GateContext, Verdict

__all__ = ["BEFORE_RECALL", "GATES", "Decision", "Gate", "GateContext", "Verdict", "gates_for"]

GATES: Final = (
    Gate("parse", parse.check),
    Gate("schema", schema.check),
    Gate("scope", scope.check),
    Gate("semantics", semantics.check),
    Gate("policy", policy.check),
    AsyncGate("state", state.check),
    Gate("approval", approval.check),
    Gate("budget", budget.check),
)
BEFORE_RECALL: Final[tuple[Any, ...]] = GATES[:3]


def gates_for(contract: Contract) -> tuple[Gate | AsyncGate, ...]:
    """Return the gates after recall, with a constant answer for one that has nothing to check."""
    answers = {}
    if not contract.config_params and all(rule.of_target for rule in contract.invariants):
        answers["semantics"] = Gate("semantics", partial(_constant, semantics.ALLOW))
    if contract.probe is None:
        answers["state"] = Gate("state", partial(_constant, state.ALLOW))
    return tuple(answers.get(gate.name, gate) for gate in GATES[3:])


def _constant(decision: Decision, _ctx: GateContext) -> Decision:
    return decision
