"""The gates, in the order in which a proposal meets them. The tuple is the whole pipeline.

No gate can be left out, added or reordered: there is no other list than this one. Registration may
find that a contract gives a gate nothing to ask, and puts its answer there instead.
"""

from __future__ import annotations

from typing import Final

from counterseal.contract.model import Contract
from counterseal.gates import approval, budget, parse, policy, schema, scope, semantics, state
from counterseal.gates.base import (
    AsyncGate,
    Decision,
    Gate,
    GateContext,
    Prepared,
    Verdict,
    prepared,
)

__all__ = [
    "BEFORE_RECALL",
    "GATES",
    "Decision",
    "Gate",
    "GateContext",
    "Verdict",
    "gates_for",
]

GATES: Final = (
    Gate("parse", parse.check, parse.ALLOW),
    Gate("schema", schema.check, schema.ALLOW),
    Gate("scope", scope.check, scope.ALLOW),
    Gate("semantics", semantics.check, semantics.ALLOW),
    Gate("policy", policy.check),
    AsyncGate("state", state.check),
    Gate("approval", approval.check, approval.ALLOW),
    Gate("budget", budget.check, budget.ALLOW),
)
_PREPARED: Final = tuple(prepared(gate) for gate in GATES)
BEFORE_RECALL: Final = _PREPARED[:3]


def gates_for(contract: Contract) -> tuple[Prepared, ...]:
    """The gates after recall, with the answer in place of one that has nothing to ask."""
    nothing_to_ask = {
        "semantics": not contract.config_params
        and all(rule.of_target for rule in contract.invariants),
        "state": contract.probe is None,
    }
    answers = {"semantics": semantics.ALLOW, "state": state.ALLOW}
    return tuple(
        ((answers[one[0].name], 0), None, None) if nothing_to_ask.get(one[0].name) else one
        for one in _PREPARED[3:]
    )
