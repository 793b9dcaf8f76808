"""Policy as code: rules in a file that allow, deny, or demand approval; their tests and versions.

`reading` turns documents into rules, `policy` layers them and prepares them for a contract,
`evaluate` decides a call, `cases` runs the tests that lie beside a policy. What a condition can see
is fixed in `names`. Knows nothing of gates: whoever decides a call brings the facts.
"""

from counterseal.policy.evaluate import CompiledPolicy, Facts
from counterseal.policy.policy_files import Policy
from counterseal.policy.policy_rules import (
    PolicyDecision,
    PolicyError,
    PolicyRule,
    PolicyVerdict,
    contract_facts,
    shown,
)

__all__ = [
    "CompiledPolicy",
    "Facts",
    "Policy",
    "PolicyDecision",
    "PolicyError",
    "PolicyRule",
    "PolicyVerdict",
    "contract_facts",
    "shown",
]
