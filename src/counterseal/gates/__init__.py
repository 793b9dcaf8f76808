"""The gates, in the order in which a proposal meets them. The tuple is the whole pipeline.

No gate can be left out, added or reordered: there is no other list than this one. Registration may
find that a contract gives a gate nothing to ask, and puts its answer there instead.
"""

from __future__ import annotations

from typing import Final

from counterseal.contract.model import Contract
from counterseal.gates import approval, budget, parse, policy, schema, scope, semantics, state
from counterseal.gates.base import AsyncGate, Decision, Gate, GateContext, Verdict

__all__ = [
    "BEFORE_RECALL",
    "GATES",
    "PARSE",
    "Decision",
    "Gate",
    "GateContext",
    "Verdict",
    "gates_for",
]

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
PARSE: Final = GATES[:1]
BEFORE_RECALL: Final = GATES[1:3]


def gates_for(contract: Contract) -> tuple[Gate | AsyncGate | Decision, ...]:
    """The gates after recall, with the answer in place of one that has nothing to ask."""
    nothing_to_ask = {
        "semantics": not contract.config_params
        and all(rule.of_target for rule in contract.invariants),
        "state": contract.probe is None,
    }
    answers = {"semantics": semantics.ALLOW, "state": state.ALLOW}
    return tuple(
        answers[gate.name] if nothing_to_ask.get(gate.name) else gate for gate in GATES[3:]
    )
