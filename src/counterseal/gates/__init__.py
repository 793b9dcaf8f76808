"""The gates, in the order in which a proposal meets them. The tuple is the whole pipeline.

No gate can be left out, added or reordered at run time: there is no other list than this one.
"""

from __future__ import annotations

from typing import Final

from counterseal.gates import approval, budget, parse, policy, schema, scope, semantics, state
from counterseal.gates.base import AsyncGate, Decision, Gate, GateContext, Verdict

__all__ = [
    "AFTER_STATE",
    "BEFORE_RECALL",
    "BEFORE_STATE",
    "GATES",
    "PARSE",
    "STATE",
    "WITHOUT_STATE",
    "Decision",
    "Gate",
    "GateContext",
    "Verdict",
]

PARSE: Final = (Gate("parse", parse.check),)
BEFORE_RECALL: Final = (Gate("schema", schema.check), Gate("scope", scope.check))
BEFORE_STATE: Final = (Gate("semantics", semantics.check), Gate("policy", policy.check))
STATE: Final = AsyncGate("state", state.check)
AFTER_STATE: Final = (Gate("approval", approval.check), Gate("budget", budget.check))

WITHOUT_STATE: Final = (
    *BEFORE_STATE,
    Gate("state", state.nothing_to_probe),
    *AFTER_STATE,
)
"""The same gates for a contract without a probe: nothing has to be waited for."""

GATES: Final = (*PARSE, *BEFORE_RECALL, *BEFORE_STATE, STATE, *AFTER_STATE)
