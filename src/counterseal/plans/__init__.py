"""Plans: several steps, judged together before any of them runs.

A tool's invariants are rules about its own calls; plan rules are about a whole plan, across tools.
`plan.py` runs the gates for each step.
"""

from __future__ import annotations

from counterseal.plans.plan import Fate, Plan, PlannedStep, changes
from counterseal.plans.rules import PlanningError, PlanRule, distinct, load_plan_rules

__all__ = [
    "Fate",
    "Plan",
    "PlanRule",
    "PlannedStep",
    "PlanningError",
    "changes",
    "distinct",
    "load_plan_rules",
]
