"""Policy as code: rules in files that allow, deny, or require approval; their tests and versions.

`policy_rules` has the records and what a condition can see, `policy_files` reads rules and layers
them into a `Policy`, `evaluate` decides calls, `policy_tests` runs the tests of a policy. Policies
know nothing of gates: the caller provides the facts.
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
