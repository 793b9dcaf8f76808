"""Policy as code: rules in files that allow, deny, or require approval; their tests and versions.

`policy_rules` has the records, what a condition can see, and the decision of a call; `policy_files`
reads rules and layers them into a `Policy`; `policy_tests` runs the tests of a policy. Policies
know nothing of gates: the caller provides the facts.
"""

from counterseal.policy.policy_files import Policy
from counterseal.policy.policy_rules import (
    CompiledPolicy,
    Facts,
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
