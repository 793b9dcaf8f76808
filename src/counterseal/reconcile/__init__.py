"""Due work: what became of calls nobody answered for, after-checks, reversals, and forgetting."""

from __future__ import annotations

from counterseal.reconcile.operator import OperatorList
from counterseal.reconcile.reconciler import Reconciler, Retention, Tally

__all__ = ["OperatorList", "Reconciler", "Retention", "Tally"]
