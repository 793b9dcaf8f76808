"""Plans: several steps, judged together before any of them runs.

A tool's invariants say what a call of that tool must be like; what a *plan* must be like, across
tools, is said by plan rules. Asking the gates about each step is `passage`'s business.
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
